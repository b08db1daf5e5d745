"""Made-up images of any shape, with any number of classes, that a model can learn to tell apart."""

import torch
from torch import Generator, Tensor
from torch.nn import functional

from dynsl_app.data.source import DataSpec, Source
from dynsl_app.seeds import derive_seed

COARSE = 4
"""Choice: a class is a smooth random pattern, drawn on a grid of 4×4 and enlarged, so that pooling keeps it."""

HELD_OUT_FRACTION = 5
"""Choice: one held-out sample for every five training samples, and at least one of each class."""


class SyntheticSamples:
    """Sample i is the pattern of class ``i % classes`` plus white noise of unit variance.

    Noise is drawn per sample when it is fetched, from a generator seeded by (part, i): memory does not
    grow with the number of samples.
    """

    def __init__(self, part: str, patterns: Tensor, samples: int) -> None:
        self._part = part
        self._patterns = patterns
        self.targets = torch.arange(samples) % len(patterns)

    def __len__(self) -> int:
        return len(self.targets)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`."""
        images = self._patterns[self.targets[indices]]
        for image, index in zip(images, indices.tolist(), strict=True):
            generator = Generator().manual_seed(derive_seed("synthetic", self._part, index))
            image += torch.randn(image.shape, generator=generator)
        return images


def synthetic(shape: tuple[int, int, int], classes: int, samples: int) -> Source:
    """``samples`` training samples of ``shape`` (C, H, W); the same ones in every run, whatever its seed."""
    channels, height, width = shape
    generator = Generator().manual_seed(derive_seed("synthetic", "patterns"))
    coarse = torch.randn((classes, channels, COARSE, COARSE), generator=generator)
    patterns = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    held_out = max(classes, samples // HELD_OUT_FRACTION)
    return Source(
        DataSpec(shape, classes),
        SyntheticSamples("train", patterns, samples),
        SyntheticSamples("test", patterns, held_out),
    )
