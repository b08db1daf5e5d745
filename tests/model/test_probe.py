"""Sizes at the cuts are measured, and what cannot cross a cut is named."""

import pytest
import torch
from torch import Tensor, nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.probe import CutShape, evaluating, probe

SPEC = DataSpec((1, 4, 4), 3)


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16)


class Float(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)


def chain_of(*modules: nn.Module) -> Chain:
    return Chain(Block(index, [(f"part{index}", module)]) for index, module in enumerate(modules, start=1))


def test_bytes_follow_the_dtype() -> None:
    """User cases 6 and 15."""
    chain = chain_of(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), Half(), nn.Sequential(Float(), nn.Linear(8, 3)))
    assert probe(chain, SPEC) == [
        CutShape((8,), torch.float32, 32),
        CutShape((8,), torch.bfloat16, 16),
        CutShape((3,), torch.float32, 12),
    ]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([nn.Conv2d(3, 1, 1)], r"block 1 does not take what images of 1×4×4 .* data.resize"),
        ([nn.Identity(), nn.Flatten(0)], r"block 2 returns shape \[32\] for a batch of 2; the batch comes first"),
        ([nn.Flatten(), nn.LSTM(16, 3)], "block 2 returns tuple"),
        ([nn.Flatten(), nn.Linear(16, 4)], r"output has shape \[4\] .* 3 classes"),
    ],
)
def test_what_cannot_cross_a_cut_is_refused(modules: list[nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        probe(chain_of(*modules), SPEC)


def test_modes_are_put_back_even_after_a_failure() -> None:
    chain = chain_of(nn.BatchNorm2d(1), nn.Conv2d(1, 1, 9))
    chain.train()
    chain.block(1).eval()
    modes = [module.training for module in chain.modules()]
    with pytest.raises(ModelError):
        probe(chain, SPEC)
    assert [module.training for module in chain.modules()] == modes
    with evaluating(chain):
        assert not any(module.training for module in chain.modules())
        assert not torch.is_grad_enabled()
