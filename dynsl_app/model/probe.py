"""What crosses every cut, found by running the model and never typed in."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError
from dynsl_app.model.chain import Chain

_BATCH = 2
"""More than one sample, so that a block that loses or moves the batch dimension is seen."""


@dataclass(frozen=True)
class CutShape:
    """The activation after some block, for one sample.

    Attributes
    ----------
    shape
        Without the batch dimension.
    bytes_per_sample
        Of the raw tensor, before any encoding.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes_per_sample: int


def probe(chain: Chain, spec: DataSpec) -> list[CutShape]:
    """Shapes, dtypes and bytes at cuts 1..L, by one forward of two blank samples in eval mode.

    Nothing in the chain changes, running statistics included.

    Raises
    ------
    ModelError
        If the model does not take this input, a block's output is not one tensor with the batch first, or the last
        block does not give (B, classes).
    """
    weight = next(chain.parameters(), torch.empty(0))
    x = torch.zeros(_BATCH, *spec.shape, device=weight.device, dtype=weight.dtype)
    cuts = []
    with evaluating(chain):
        for block in chain.span(0, len(chain)):
            x = run_block(block, x, f"block {block.index}", spec)
            shape = tuple(x.shape[1:])
            cuts.append(CutShape(shape, x.dtype, math.prod(shape) * x.element_size()))
    if cuts[-1].shape != (spec.classes,):
        raise ModelError(
            f"the model's output has shape {list(cuts[-1].shape)} a sample; the data has {spec.classes} classes, so it "
            f"must be [{spec.classes}]"
        )
    return cuts


def run_block(module: nn.Module, x: Tensor, label: str, spec: DataSpec) -> Tensor:
    """``module(x)``, with a failure said in terms of the data: raises ModelError naming ``label``."""
    try:
        y = module(x)
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        channels, height, width = spec.shape
        raise ModelError(
            f"{label} does not take what images of {channels}×{height}×{width} become there ({list(x.shape[1:])} a "
            f"sample): {error}. Set data.resize to a size the model takes, or change the model"
        ) from error
    if not isinstance(y, Tensor):
        raise ModelError(f"{label} returns {type(y).__name__}; what crosses a cut is one tensor")
    if y.dim() == 0 or len(y) != len(x):
        raise ModelError(f"{label} returns shape {list(y.shape)} for a batch of {len(x)}; the batch comes first")
    return y


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; every submodule's own mode is put back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
