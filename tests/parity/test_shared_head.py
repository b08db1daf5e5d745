"""SplitFed V2 and PSL against a straight-line reference: plain torch, no controller, no wire, no segments.

The reference trains the zoo's plain model cut in two by names, one step after another, with the same
concatenation and scaling (ALGORITHMS §2). Identity holds for a fixed sequence of groups: PSL's lockstep fixes it; for
SplitFed V2 the recorded order of arrival is what the reference follows (user case 7).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from parity_cases import OPTIMIZERS, UNEQUAL
from safetensors.torch import load_file
from torch import Tensor, nn

from dynsl_app.compose import compose
from dynsl_app.data.load import client_data, load_source
from dynsl_app.model.batchnorm import set_members
from dynsl_app.model.build import build_chain
from dynsl_app.model.dropout import seed_dropout
from dynsl_app.plan import BatchKey
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import Settings
from dynsl_app.telemetry.sinks.jsonl import read_events

Train = Callable[..., RunFolder]

COMMON = [*UNEQUAL, "rounds=2", "data.limit=24", "wire=inprocess"]


@dataclass
class Part:
    """Some modules in a row and one optimizer over each block's parameters."""

    blocks: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def part(blocks: list[nn.Module], settings: Settings) -> Part:
    own = [copy.deepcopy(block).train() for block in blocks]
    chosen = settings.optimizer

    def make(block: nn.Module) -> torch.optim.Optimizer:
        if chosen.name == "sgd":
            return torch.optim.SGD(block.parameters(), lr=chosen.lr, momentum=chosen.momentum)
        return torch.optim.Adam(block.parameters(), lr=chosen.lr)

    return Part(own, [make(block) for block in own if list(block.parameters())])


def forward(
    blocks: list[nn.Module], x: Tensor, members: list[tuple[BatchKey, int]], per_request: bool = False
) -> Tensor:
    for block in blocks:
        seed_dropout(block, members)
        if per_request:
            set_members(block, [size for _, size in members])
        x = block(x)
    return x


def reference(settings: Settings, cut: int, groups: list[list[list[tuple[int, int]]]]) -> dict[str, Tensor]:
    """Weights after all rounds; ``groups`` per round: (client, batch) in the order in which they are joined."""
    source = load_source(settings.data)
    model = build_chain(settings.model, source.spec, settings.seed)
    data = {
        client: client_data(source, settings.data, client=client, clients=settings.clients, seed=settings.seed)
        for client in range(settings.clients)
    }
    for round_, sequence in enumerate(groups, start=1):
        blocks = list(model.blocks)
        prefixes = {client: part(blocks[:cut], settings) for client in data}
        head = part(blocks[cut:], settings)
        batches = {client: list(own.epoch(round_, 0)) for client, own in data.items()}
        for group in sequence:
            members = [
                (BatchKey(settings.seed, client, round_, batch), len(batches[client][batch][1]))
                for client, batch in group
            ]
            tops = [
                forward(prefixes[client].blocks, batches[client][batch][0], [member])
                for (client, batch), member in zip(group, members, strict=True)
            ]
            joint = torch.cat([top.detach() for top in tops]).requires_grad_()
            target = torch.cat([batches[client][batch][1] for client, batch in group])
            per_request = settings.heads.batchnorm == "per_request"
            logits = forward(head.blocks, joint, members, per_request)
            nn.functional.cross_entropy(logits, target).backward()
            assert joint.grad is not None
            start = 0
            for (client, _), top in zip(group, tops, strict=True):
                size = len(top)
                top.backward(joint.grad[start : start + size] * (len(joint) / size))
                prefixes[client].step()
                start += size
            head.step()
        # the clients' blocks are averaged by samples, in float64 and in order of client id; the head is used as it is
        samples = {client: own.samples for client, own in data.items()}
        for position in range(cut):
            states = {client: prefixes[client].blocks[position].state_dict() for client in sorted(data)}
            merged = {}
            for name, own in blocks[position].state_dict().items():
                if own.is_floating_point():
                    total = sum(
                        (states[c][name].double() * samples[c] for c in states), torch.zeros(own.shape).double()
                    )
                    merged[name] = (total / sum(samples.values())).to(own.dtype)
                else:
                    merged[name] = torch.stack([states[c][name] for c in states]).amax(dim=0)
            blocks[position].load_state_dict(merged)
        for block, trained in zip(blocks[cut:], head.blocks, strict=True):
            block.load_state_dict(trained.state_dict())
    return model.merged_state()


def recorded(folder: RunFolder, rounds: int) -> list[list[list[tuple[int, int]]]]:
    steps = [event for event in read_events(folder.events) if event["event"] == "step"]
    return [
        [[(client, batch) for client, batch, _ in step["members"]] for step in steps if step["round"] == round_]
        for round_ in range(1, rounds + 1)
    ]


def assert_equal(folder: RunFolder, expected: dict[str, Tensor]) -> None:
    found = load_file(folder.model)
    assert found.keys() == expected.keys()
    assert not [name for name in found if not torch.equal(found[name], expected[name])]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("model", "cut"), [("cnn", 2), ("resnet18", 4), ("vit_tiny", 2)])
def test_splitfed_v2(train: Train, model: str, cut: int, optimizer: str) -> None:
    overrides = [
        f"model={model}",
        "model.dropout=0.2",
        *COMMON,
        *OPTIMIZERS[optimizer],
        "algorithm=splitfed_v2",
        f"algorithm.cut={cut}",
    ]
    if model == "resnet18":
        overrides.remove("model.dropout=0.2")
    folder, settings = train(*overrides), compose(overrides)
    groups = recorded(folder, settings.rounds)
    assert all(len(group) == 1 for sequence in groups for group in sequence)
    assert_equal(folder, reference(settings, cut, groups))


@pytest.mark.parametrize("batchnorm", ["merged", "per_request"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("model", "cut"), [("cnn", 2), ("resnet18", 4), ("vit_tiny", 2)])
def test_psl(train: Train, model: str, cut: int, optimizer: str, batchnorm: str) -> None:
    overrides = [
        f"model={model}",
        *COMMON,
        *OPTIMIZERS[optimizer],
        "algorithm=psl",
        f"algorithm.cut={cut}",
        f"heads.batchnorm={batchnorm}",
    ]
    folder, settings = train(*overrides), compose(overrides)
    source = load_source(settings.data)
    counts = {
        client: client_data(source, settings.data, client=client, clients=3, seed=settings.seed).batches_per_epoch
        for client in range(3)
    }
    assert len(set(counts.values())) > 1  # unequal on purpose
    lockstep = [[(client, step) for client in counts if step < counts[client]] for step in range(max(counts.values()))]
    assert recorded(folder, settings.rounds) == [lockstep] * settings.rounds
    assert_equal(folder, reference(settings, cut, [lockstep] * settings.rounds))


def test_replay_gives_the_bits_of_the_recorded_run(train: Train) -> None:
    """Continuous merging is decided by timing; its recorded groups are not."""
    overrides = [*COMMON, "algorithm=uniform", "heads.count=1", "heads.boundary=3", "algorithm.cut=2"]
    live = train(*overrides, "server.policy=continuous")
    again = train(*overrides, "server.policy=replay", f"server.replay={live.events}")
    assert recorded(live, 3) == recorded(again, 3)
    assert_equal(again, load_file(live.model))


def test_private_blocks_below_the_boundary_may_be_anywhere(train: Train) -> None:
    """Same boundary, another cut: the same bits under lockstep."""
    overrides = [
        *COMMON,
        "model=resnet18",
        "algorithm=uniform",
        "heads.count=1",
        "heads.boundary=5",
        "server.policy=lockstep",
    ]
    first = train(*overrides, "algorithm.cut=5")
    for cut in (1, 3):
        assert_equal(train(*overrides, f"algorithm.cut={cut}"), load_file(first.model))


def test_k_heads_are_averaged_by_samples(train: Train) -> None:
    """Two heads: client id modulo 2 decides; deterministic under lockstep, and not one head's result."""
    overrides = [*COMMON, "algorithm=uniform", "heads.boundary=2", "algorithm.cut=2", "server.policy=lockstep"]
    two, again, one = (
        train(*overrides, f"heads.count={k}", f"name={name}") for k, name in ((2, "a"), (2, "b"), (1, "c"))
    )
    heads = [event["head"] for event in read_events(two.events) if event["event"] == "step"]
    assert set(heads) == {0, 1}
    assert_equal(two, load_file(again.model))
    assert any(not torch.equal(value, load_file(one.model)[name]) for name, value in load_file(two.model).items())
