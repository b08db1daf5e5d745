"""A classifier at a cut, with which a client trains on a loss of its own (``dtfl_localloss``).

Source: Mohammadabadi et al., arXiv 2312.05642: an average pool, then a linear layer.
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dynsl_app.model.build import initialising
from dynsl_app.model.chain import Block
from dynsl_app.model.probe import CutShape
from dynsl_app.model.state import block_weights
from dynsl_app.seeds import derive_seed


def local_head(shape: CutShape, classes: int, cut: int) -> Block:
    """The classifier at one cut: activations (B, C, H, W), (B, T, D) or (B, F) to logits (B, classes).

    Averages over H and W, or over the tokens T; other shapes are taken flat (choice). Its parameters are
    ``local_head.<cut>.weight`` and ``.bias``.
    """
    linear = nn.Linear(features(shape), classes, dtype=shape.dtype)
    return Block(cut, [("average", _Average()), (f"local_head.{cut}", linear)])


def local_heads(shapes: Sequence[CutShape], classes: int, seed: int) -> dict[int, Mapping[str, Tensor]]:
    """Initial weights of the classifiers at cuts 1..L-1, by cut; equal seeds give equal bits.

    Parameters
    ----------
    shapes
        Activation at each cut 1..L.
    """
    with initialising(derive_seed(seed, "local heads")):
        return {cut: block_weights(local_head(shape, classes, cut)) for cut, shape in enumerate(shapes[:-1], start=1)}


def features(shape: CutShape) -> int:
    """Values of a sample that the linear layer gets."""
    match shape.shape:
        case (channels, _, _):
            return channels
        case (_, width):
            return width
        case other:
            return math.prod(other)


class _Average(nn.Module):
    """Over space or tokens; (B, …) to (B, features)."""

    def forward(self, x: Tensor) -> Tensor:
        match x.dim():
            case 4:
                return x.mean(dim=(2, 3))
            case 3:
                return x.mean(dim=1)
            case _:
                return x.flatten(1)
