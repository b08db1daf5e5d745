"""Masks depend on whose batch it is and where in the model, never on place, threads or company."""

import copy
import threading

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from dynsl_app.errors import ModelError
from dynsl_app.model.dropout import Dropout, place_dropouts, replace_dropout, seed_dropout
from dynsl_app.plan import BatchKey

KEY = BatchKey(seed=0, client=1, round=2, batch=3)
KEYS = st.builds(BatchKey, *[st.integers(0, 3)] * 4)


def placed(p: float = 0.5, block: int = 1, dims: int | None = None) -> nn.Sequential:
    module = nn.Sequential(nn.Identity(), Dropout(p, dims))
    place_dropouts(module, block)
    return module


def mask(module: nn.Module, key: BatchKey = KEY, shape: tuple[int, ...] = (4, 16)) -> Tensor:
    seed_dropout(module, [(key, shape[0])])
    output: Tensor = module(torch.ones(shape))
    return output


@given(keys=st.lists(st.tuples(KEYS, st.integers(1, 4)), min_size=1, max_size=4))
def test_merged_masks_are_those_of_separate_requests(keys: list[tuple[BatchKey, int]]) -> None:
    module = placed()
    seed_dropout(module, keys)
    merged = module(torch.ones(sum(size for _, size in keys), 5))
    assert torch.equal(merged, torch.cat([mask(module, key, (size, 5)) for key, size in keys]))


@given(one=KEYS, other=KEYS)
def test_every_part_of_the_key_counts(one: BatchKey, other: BatchKey) -> None:
    module = placed()
    assert torch.equal(mask(module, one), mask(module, other)) == (one == other)


def test_every_place_and_use_has_its_own_mask() -> None:
    twins = nn.Sequential(Dropout(), Dropout())
    place_dropouts(twins, 1)
    seed_dropout(twins, [(KEY, 4)])
    x = torch.ones(4, 16)
    masks = [twins[0](x), twins[1](x), twins[0](x), mask(placed(block=2))]
    assert all(not torch.equal(masks[i], masks[j]) for i in range(4) for j in range(i))
    assert torch.equal(mask(twins[0]), masks[0])


def test_a_copied_block_draws_the_same_and_is_seeded_by_itself() -> None:
    module = placed()
    expected = mask(module)
    moved = copy.deepcopy(module)
    mask(module, BatchKey(9, 9, 9, 9))
    assert torch.equal(mask(moved), expected)


def test_threads_and_torchs_own_generator_do_not_disturb_it() -> None:
    expected = [mask(placed(), BatchKey(0, client, 1, 1), (64, 64)) for client in range(4)]
    found: dict[int, Tensor] = {}
    start = threading.Barrier(4)

    def draw(client: int) -> None:
        start.wait()
        torch.rand(client + 1)
        found[client] = mask(placed(), BatchKey(0, client, 1, 1), (64, 64))

    threads = [threading.Thread(target=draw, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[client], expected[client]) for client in range(4))
    state = torch.get_rng_state()
    mask(placed())
    assert torch.equal(torch.get_rng_state(), state)


def test_it_is_dropout() -> None:
    """Zeros with probability p, the rest scaled so that the mean stays; identity in eval mode; gradients masked too."""
    module = placed(0.25)
    values, counts = mask(module, shape=(200, 200)).unique(return_counts=True)
    assert torch.equal(values, torch.tensor([0, 1 / 0.75]))
    assert counts[0].item() / 40_000 == pytest.approx(0.25, abs=0.01)
    x = torch.ones(4, 16, requires_grad=True)
    seed_dropout(module, [(KEY, 4)])
    output = module(x)
    output.sum().backward()
    assert torch.equal(x.grad, output)  # type: ignore[arg-type]
    assert module.eval()(x) is x


def test_whole_channels_and_whole_samples_can_be_dropped() -> None:
    channels = mask(placed(dims=2), shape=(8, 8, 3, 3)).flatten(2)
    samples = mask(placed(dims=1), shape=(32, 2, 3)).flatten(1)
    for drawn in (channels, samples):
        assert torch.equal(drawn, drawn[..., :1].expand_as(drawn))
        assert drawn.unique().tolist() == [0, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    module = placed()
    seed_dropout(module, [(KEY, 4)])
    assert module(torch.ones(4, 16, dtype=dtype)).dtype == dtype


def test_training_without_a_seed_is_refused() -> None:
    with pytest.raises(ModelError, match="not told whose batch"):
        placed()(torch.ones(2, 2))
    module = placed()
    seed_dropout(module, [(KEY, 2), (KEY, 1)])
    with pytest.raises(ModelError, match="seeded for 3 samples and got 4"):
        module(torch.ones(4, 2))
    assert placed(0.0)(torch.ones(2)).tolist() == [1, 1]


def test_one_module_cannot_be_in_two_blocks() -> None:
    shared = Dropout()
    place_dropouts(nn.Sequential(shared), 1)
    with pytest.raises(ModelError, match="in blocks 1 and 2"):
        place_dropouts(nn.Sequential(shared), 2)


def test_torchs_dropout_is_replaced_wherever_it_is() -> None:
    twice = nn.Dropout(0.3)
    model = nn.Sequential(twice, nn.Sequential(twice, nn.Dropout2d(0.2)), StochasticDepth(0.1, "row"))
    replace_dropout(model)
    found = [module for module in model.modules() if isinstance(module, Dropout)]
    assert [(module.p, module.dims) for module in found] == [(0.3, None), (0.3, None), (0.2, 2), (0.1, 1)]
    assert len({id(module) for module in found}) == 4


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.TransformerEncoderLayer(4, 2, dropout=0.1),
        nn.LSTM(4, 4, num_layers=2, dropout=0.1),
        nn.AlphaDropout(0.1),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_ratio=0.5),
        StochasticDepth(0.1, "batch"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_random_layers_are_refused_by_their_path(layer: nn.Module) -> None:
    with pytest.raises(ModelError, match=r"^top\.0"):
        replace_dropout(nn.Sequential(nn.Identity(), nn.ModuleDict({"top": nn.Sequential(layer)}))[1])


def test_attention_without_dropout_is_welcome() -> None:
    replace_dropout(nn.Sequential(nn.TransformerEncoderLayer(4, 2, dropout=0.0), nn.LSTM(4, 4)))
