"""Classifiers at a cut: what they take, and where their weights begin."""

import pytest
import torch
from torch import nn

from dynsl_app.data.source import DataSpec
from dynsl_app.model.build import build_chain
from dynsl_app.model.local_head import features, local_head, local_heads
from dynsl_app.model.probe import CutShape, probe
from dynsl_app.settings import ModelSettings


@pytest.mark.parametrize(("shape", "values"), [((6, 4, 3), 6), ((5, 8), 8), ((7,), 7), ((2, 3, 4, 5), 120)])
def test_space_and_tokens_are_averaged(shape: tuple[int, ...], values: int) -> None:
    cut = CutShape(shape, torch.float32, 0)
    assert features(cut) == values
    head = local_head(cut, 10, 3)
    x = torch.rand(4, *shape)
    averaged = {3: x.mean(dim=(-1, -2)), 2: x.mean(dim=1)}.get(len(shape), x.reshape(4, -1))
    (linear,) = [part for part in head.modules() if isinstance(part, nn.Linear)]
    assert torch.equal(head(x), linear(averaged))
    assert dict(head.named_parameters_global()).keys() == {"local_head.3.weight", "local_head.3.bias"}


def test_every_cut_but_the_last_has_one() -> None:
    spec = DataSpec((1, 8, 8), 10)
    chain = build_chain(ModelSettings(name="mlp"), spec, 0)
    shapes = probe(chain, spec)
    once, again, other = (local_heads(shapes, 10, seed) for seed in (1, 1, 2))
    assert list(once) == list(range(1, len(chain)))
    for cut, weights in once.items():
        assert all(torch.equal(value, again[cut][name]) for name, value in weights.items())
        assert not torch.equal(weights[f"local_head.{cut}.weight"], other[cut][f"local_head.{cut}.weight"])
