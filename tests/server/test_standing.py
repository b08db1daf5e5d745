"""What outlives a round: which replies are used, how they are merged, and that a checkpoint holds all of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dynsl_app.data.source import DataSpec
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Chain
from dynsl_app.model.evaluate import Score
from dynsl_app.model.state import block_weights
from dynsl_app.orders import TrainReply
from dynsl_app.plan import Plan
from dynsl_app.server import checkpoint
from dynsl_app.server.heads import Heads
from dynsl_app.server.standing import Standing
from dynsl_app.settings import ModelSettings, OptimizerSettings, ServerSettings, Settings

SPEC = DataSpec((1, 8, 8), 10)
SAMPLES = {0: 5, 1: 3, 2: 12}


def chain(model: str = "mlp") -> Chain:
    return build_chain(ModelSettings(name=model, dropout=0.0 if model == "mlp" else None), SPEC, 0)


def trained(model: Chain, low: int, high: int, client: int) -> dict[str, Tensor]:
    """What a client could have made of blocks low+1..high: other values, same kinds."""
    generator = torch.Generator().manual_seed(client)
    return {
        name: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value + client
        for block in model.span(low, high)
        for name, value in block_weights(block).items()
    }


def reply(client: int, weights: Mapping[str, Tensor], cut: int = 2, **changes: object) -> TrainReply:
    given = TrainReply(client, 1, cut, weights, {}, SAMPLES[client])
    return replace(given, **changes)


def merged(
    model: str = "mlp",
    settings: Settings | None = None,
    order: tuple[int, ...] = (0, 1, 2),
    values: Mapping[int, float] | None = None,
) -> tuple[Standing, dict[int, dict[str, Tensor]], Heads]:
    """A standing after a round of three clients, what each had trained, and the heads."""
    standing = Standing(chain(model))
    settings = settings or Settings()
    blocks = len(standing.chain)
    plan = Plan(blocks, blocks, dict.fromkeys(sorted(order), 2))
    heads = Heads(standing.chain, plan, settings, {})
    whole: dict[int, dict[str, Tensor]] = {}
    replies: dict[int, TrainReply] = {}
    for client in order:
        heads.open(client, {}, {})
        whole[client] = trained(standing.chain, 0, blocks, client)
        if values is not None:
            whole[client] = {name: torch.full_like(own, values[client]) for name, own in whole[client].items()}
        heads.private(client).load_weights(whole[client])
        replies[client] = reply(client, {name: whole[client][name] for name in standing.weights(client, 0, 2)})
    standing.aggregate(plan, heads, replies, {client: SAMPLES[client] for client in order}, settings)
    return standing, whole, heads


def test_every_layer_is_averaged_wherever_it_was_trained() -> None:
    """By samples, client's blocks and server's alike."""
    standing, whole, _ = merged()
    total = sum(SAMPLES.values())
    for name, value in standing.chain.merged_state().items():
        expected = sum(count / total * whole[client][name].double() for client, count in SAMPLES.items())
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)


def test_the_order_of_arrival_changes_no_bit() -> None:
    """User case 10: client 2 before client 1. Client 0's and 1's part cancel, which in another order hides 2's."""
    values = {0: 3 * 2.0**70, 1: -5 * 2.0**70, 2: 1.0}
    one, other = (merged(order=order, values=values)[0].chain.merged_state() for order in ((0, 1, 2), (2, 0, 1)))
    assert all(one[name].equal(other[name]) for name in one)
    assert all(bool((value == 12 / 20).all()) for value in one.values())


def test_the_model_keeps_its_own_tensors() -> None:
    """Later training of a client's copies must not reach into the merged model."""
    standing, _, heads = merged(order=(1,))
    before = {name: value.clone() for name, value in standing.chain.merged_state().items()}
    for value in heads.private(1).weights().values():
        value.zero_()
    assert all(value.equal(before[name]) for name, value in standing.chain.merged_state().items())


def test_local_batchnorm_stays_the_clients_own() -> None:
    """User case 19: it starts the next round with its own, and a new client with the average."""
    settings = Settings(server=ServerSettings(batchnorm="local"))
    standing, whole, _ = merged("resnet18", settings)
    blocks = len(standing.chain)
    for client in SAMPLES:
        given = standing.weights(client, 0, blocks)
        own = {name for name in given if given[name].equal(whole[client][name])}
        assert own == set(standing.batchnorms[client])
        assert any("running_var" in name for name in own)
    fresh = standing.weights(7, 0, blocks)
    assert all(fresh[name].equal(value) for name, value in standing.chain.merged_state().items())


@pytest.mark.parametrize("persist", ["round", "run"])
def test_optimizer_state_outlives_a_round_only_when_asked(persist: str) -> None:
    """User case 23."""
    settings = Settings(optimizer=OptimizerSettings(name="sgd", momentum=0.9, persist=persist))
    standing = Standing(chain())
    blocks = len(standing.chain)
    plan = Plan(blocks, blocks, {0: 2})
    heads = Heads(standing.chain, plan, settings, {})
    heads.open(0, {}, {})
    segment = heads.private(0)
    for block in segment.blocks:
        for parameter in block.parameters():
            parameter.grad = torch.ones_like(parameter)
    segment.step(0.1)
    first = next(name for name, _ in standing.chain.block(1).named_parameters_global())
    state = {f"{first}/momentum_buffer": torch.ones_like(standing.weights(0, 0, 1)[first])}
    own = reply(0, standing.weights(0, 0, 2), optimizer=state)
    standing.aggregate(plan, heads, {0: own}, {0: 5}, settings)
    assert set(standing.optimizer(0, 0, 1)) == (set(state) if persist == "run" else set())
    server_side = standing.optimizer(0, 2, blocks)
    assert bool(server_side) == (persist == "run")
    assert not set(server_side) & set(state)
    assert standing.optimizer(1, 0, blocks) == {}


def test_a_reply_that_does_not_fit_is_not_used() -> None:
    standing = Standing(chain())
    weights = standing.weights(0, 0, 2)
    name = next(iter(weights))
    assert standing.unfit(reply(0, weights), 2) is None
    for changed, cut, reason in [
        (weights, 1, "its reply holds blocks 1..2, but its cut was 1 at the end"),
        ({k: v for k, v in weights.items() if k != name}, 2, f"its reply does not hold {name} as torch.float32"),
        ({**weights, name: weights[name][1:]}, 2, f"its reply does not hold {name} as torch.float32"),
        ({**weights, name: weights[name].double()}, 2, f"its reply does not hold {name} as torch.float32"),
        ({**weights, name: weights[name] * float("nan")}, 2, f"its {name} has NaN or Inf; lower optimizer.lr"),
    ]:
        message = standing.unfit(reply(0, changed), cut)
        assert message is not None
        assert reason in message


def took_part(cut: int, moves: int, samples: int = 0) -> SimpleNamespace:
    numbers = {"samples": samples, "loss_sum": 2.0 * samples, "correct": samples // 2}
    return SimpleNamespace(cut=cut, generation=moves, traffic=(5, 10), **numbers)


def test_a_round_that_ended_counts_and_is_told() -> None:
    """Traffic and moves of all, training of those that count only."""
    standing = Standing(chain())
    standing.cuts = {1: 3, 4: 1}
    told = standing.count(2, 1.5, {4: took_part(2, 3, samples=6), 0: took_part(1, 0, samples=4)}, [4])
    assert (standing.round, standing.epoch_s, standing.moves, standing.cuts) == (2, [1.5], 3, {0: 1, 1: 3, 4: 2})
    assert (standing.bytes_up, standing.bytes_down) == (told["bytes_up"], told["bytes_down"]) == (10, 20)
    assert (told["clients"], told["lost"], told["cuts"], told["samples"]) == (1, [0], {"0": 1, "4": 2}, 6)
    assert (told["train_loss"], told["train_accuracy"]) == (2.0, 0.5)
    assert standing.count(3, 1.5, {4: took_part(2, 3)}, [4])["train_loss"] is None, "nothing was computed"


def test_a_checkpoint_holds_all_of_it(tmp_path: Path) -> None:
    """User cases 13, 38."""
    standing, _, _ = merged("resnet18", Settings(server=ServerSettings(batchnorm="local")))
    standing.optimizers = {2: {"fc.weight/step": torch.tensor(7.0)}, 0: {}}
    standing.head_optimizers = {1: {"fc.bias/exp_avg": torch.ones(10)}}
    standing.count(4, 1.5, {11: took_part(5, moves=2), 0: took_part(2, moves=1)}, [0])
    standing.score = Score(100, 93, 12.5)
    checkpoint.save(tmp_path, standing.checkpoint())

    again = Standing(build_chain(ModelSettings(name="resnet18"), SPEC, seed=1))
    again.restore(checkpoint.load(tmp_path))
    for field in ("round", "epoch_s", "bytes_up", "bytes_down", "moves", "cuts", "score"):
        assert getattr(again, field) == getattr(standing, field)
    state = again.chain.merged_state()
    assert all(state[name].equal(value) for name, value in standing.chain.merged_state().items())
    for field in ("optimizers", "head_optimizers", "batchnorms"):
        groups, expected = getattr(again, field), getattr(standing, field)
        assert groups.keys() == expected.keys()
        for key, group in expected.items():
            assert groups[key].keys() == group.keys()
            assert all(groups[key][name].equal(value) for name, value in group.items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Standing(chain("cnn")).checkpoint())
    with pytest.raises(KeyError):
        Standing(chain()).restore(checkpoint.load(tmp_path))
