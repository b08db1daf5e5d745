"""Real handwritten digits that come with scikit-learn: 1,797 images of 8×8 pixels, ten classes.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part).
"""

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
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).to(torch.float32).view(-1, 1, 8, 8) / 16
    targets = torch.from_numpy(labels).to(torch.int64)
    held_out = _held_out(targets)
    source = Source(
        DataSpec((1, 8, 8), CLASSES),
        TensorSamples(images[~held_out], targets[~held_out]),
        TensorSamples(images[held_out], targets[held_out]),
    )
    return standardised(source, MEAN, STD)


def _held_out(targets: Tensor) -> Tensor:
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(CLASSES):
        mask[torch.nonzero(targets == label).flatten()[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return mask
