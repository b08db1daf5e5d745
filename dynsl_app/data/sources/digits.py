"""Real handwritten digits that come with scikit-learn: 1,797 images of 8×8 pixels, ten classes.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part).
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dynsl_app.data.source import DataSpec, Source, TensorSamples
from dynsl_app.data.transforms import standardised

CLASSES = 10
HELD_OUT_EVERY = 5
"""Choice: of each class, every fifth image in the file's order is held out. No random draw, so the split is the same
with any seed and any version of any library."""

MEAN, STD = (0.3051,), (0.3762,)
"""Of the training part, over all pixels scaled to 0..1."""


def digits() -> Source:
    """The digits, standardised; 1,442 to train on and 355 held out."""
    table = torch.from_numpy(np.loadtxt(_file(), delimiter=",", dtype=np.float32))
    images = table[:, :-1].reshape(-1, 1, 8, 8) / 16
    targets = table[:, -1].to(torch.int64)
    held_out = _held_out(targets)
    source = Source(
        DataSpec((1, 8, 8), CLASSES),
        TensorSamples(images[~held_out], targets[~held_out]),
        TensorSamples(images[held_out], targets[held_out]),
    )
    return standardised(source, MEAN, STD)


def _file() -> Path:
    """scikit-learn's own file, which ``load_digits`` reads after seconds of imports that a device can do without."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _held_out(targets: Tensor) -> Tensor:
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(CLASSES):
        mask[torch.nonzero(targets == label).flatten()[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return mask
