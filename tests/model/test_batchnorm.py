"""``heads.batchnorm``: one set of statistics for a merged batch, or each member's own."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from dynsl_app.errors import ModelError
from dynsl_app.model.batchnorm import adopt_batchnorm, set_members


def ours(channels: int = 3) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.BatchNorm2d(channels))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    adopt_batchnorm(model)
    return model


def images(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 2, 2, generator=generator) * (i + 1) + i for i, size in enumerate(sizes)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), layout=st.booleans())
def test_per_request_equals_separate_requests(sizes: list[int], layout: bool) -> None:
    """User case 19. Outputs and running buffers to the bit, in member order; gradients to rounding of their sum."""
    merged, apart = ours(), ours()
    parts = images(*sizes)
    if layout:
        parts = [part.to(memory_format=torch.channels_last) for part in parts]
    set_members(merged, sizes)
    together = merged(torch.cat(parts))
    alone = torch.cat([apart(part) for part in parts])
    assert torch.equal(together, alone)
    for (path, one), other in zip(merged.named_buffers(), apart.buffers(), strict=True):
        assert torch.equal(one, other), path
    together.square().sum().backward()
    alone.square().sum().backward()
    torch.testing.assert_close(gradients(merged), gradients(apart), rtol=1e-4, atol=1e-4)


def test_merged_is_torchs_own() -> None:
    torchs = ours()
    for layer in (torchs[0], torchs[2]):
        layer.__class__ = nn.BatchNorm2d
    mine = ours()
    x = torch.cat(images(2, 3))
    assert torch.equal(mine(x), torchs(x))
    set_members(mine, [2, 3])
    assert not torch.equal(mine(x), torchs(x))
    set_members(mine, [])
    set_members(mine[0], [5])
    assert torch.equal(mine(x), torchs(x))
    set_members(mine, [1, 1])
    mine.load_state_dict(torchs.state_dict())
    assert torch.equal(mine.eval()(x), torchs.eval()(x))


def test_names_objects_and_copies_stay() -> None:
    """User case 18: the counter keeps its shape."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm3d(2))
    layers, names = list(model), list(model.state_dict())
    adopt_batchnorm(model)
    assert list(model) == layers
    assert list(model.state_dict()) == names
    assert model.state_dict()["0.num_batches_tracked"].shape == ()
    other = copy.deepcopy(model)
    set_members(model, [2, 2])
    x = torch.arange(8.0).view(4, 2)
    assert not torch.equal(other[0](x), model[0](x))


@pytest.mark.parametrize(("layer", "shape"), [(nn.BatchNorm2d(2), (1, 2, 1, 1)), (nn.BatchNorm1d(2), (1, 2))])
def test_one_value_a_channel_is_refused(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """User case 20: what a tail of one sample does to BatchNorm, said before it gives NaN."""
    adopt_batchnorm(layer)
    with pytest.raises(ModelError, match=r"one value for each .* data.tail=merge"):
        layer(torch.ones(shape))
    set_members(layer, [2, 1])
    with pytest.raises(ModelError, match="one value for each"):
        layer(torch.ones(3, *shape[1:]))
    assert layer.eval()(torch.ones(shape)).shape == shape


def test_sizes_must_add_up() -> None:
    model = ours()
    set_members(model, [1, 2])
    with pytest.raises(ModelError, match="told of 3 samples and got 4"):
        model(torch.cat(images(4)))


def test_a_foreign_batchnorm_cannot_be_per_request() -> None:
    class Own(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.Sequential(Own(2)))
    adopt_batchnorm(model)
    with pytest.raises(ModelError, match=r"0.0 \(Own\) cannot normalise per request"):
        set_members(model, [1, 1])
