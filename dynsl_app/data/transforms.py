"""Fixed transforms of samples: the same for training and held-out data, for every client and epoch."""

import torch
from torch import Tensor
from torch.nn import functional

from dynsl_app.data.source import DataSpec, Samples, Source


class Standardised:
    """Samples with ``(x - mean) / std`` applied per channel."""

    def __init__(self, samples: Samples, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._samples = samples
        self._mean = torch.tensor(mean).view(1, -1, 1, 1)
        self._std = torch.tensor(std).view(1, -1, 1, 1)

    @property
    def targets(self) -> Tensor:
        """See :attr:`Samples.targets`."""
        return self._samples.targets

    def __len__(self) -> int:
        return len(self._samples)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`."""
        return (self._samples.fetch(indices) - self._mean) / self._std


class Resized:
    """Samples brought to ``size`` × ``size`` by :func:`square`, each time they are fetched."""

    def __init__(self, samples: Samples, size: int) -> None:
        self._samples = samples
        self._size = size

    @property
    def targets(self) -> Tensor:
        """See :attr:`Samples.targets`."""
        return self._samples.targets

    def __len__(self) -> int:
        return len(self._samples)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`."""
        return square(self._samples.fetch(indices), self._size)


def standardised(source: Source, mean: tuple[float, ...], std: tuple[float, ...]) -> Source:
    """Both parts of ``source``, standardised with the same numbers."""
    return Source(source.spec, Standardised(source.train, mean, std), Standardised(source.test, mean, std))


def resized(source: Source, size: int) -> Source:
    """Both parts of ``source`` at ``size`` × ``size``; ``source`` itself if they are so already."""
    channels, height, width = source.spec.shape
    if (height, width) == (size, size):
        return source
    spec = DataSpec((channels, size, size), source.spec.classes)
    return Source(spec, Resized(source.train, size), Resized(source.test, size))


def square(images: Tensor, size: int) -> Tensor:
    """Scale the shorter side to ``size`` (bilinear, antialiased) and cut out the middle.

    Choice: the convention of torchvision's evaluation transforms, ``Resize`` then ``CenterCrop``.

    Parameters
    ----------
    images
        Float, shape (B, C, H, W).
    size
        Pixels.

    Returns
    -------
    Tensor
        Shape (B, C, size, size).
    """
    height, width = images.shape[2:]
    short = min(height, width)
    scaled = (max(size, height * size // short), max(size, width * size // short))
    if scaled != (height, width):
        images = functional.interpolate(images, size=scaled, mode="bilinear", align_corners=False, antialias=True)
    top, left = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return images[:, :, top : top + size, left : left + size].contiguous()
