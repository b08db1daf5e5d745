"""A multi-layer perceptron: the smallest thing that can be cut."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from dynsl_app.errors import ModelError
from dynsl_app.model.dropout import Dropout


def build(
    shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0, hidden: Sequence[int] = (256, 128, 64)
) -> nn.Sequential:
    """One block per hidden layer (linear, ReLU, dropout), then the classifier.

    Parameters
    ----------
    shape, classes
        (C, H, W) of a sample and the number of classes.
    dropout
        After every hidden layer.
    hidden
        Sizes of the hidden layers.
    """
    if not hidden:
        raise ModelError("mlp: model.params.hidden is empty; give at least one layer, such as [64]")
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    size = math.prod(shape)
    for number, width in enumerate(hidden, start=1):
        layer: list[nn.Module] = [nn.Flatten()] if number == 1 else []
        blocks[f"hidden{number}"] = nn.Sequential(*layer, nn.Linear(size, width), nn.ReLU(), Dropout(dropout))
        size = width
    blocks["classifier"] = nn.Linear(size, classes)
    return nn.Sequential(blocks)
