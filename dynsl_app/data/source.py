"""What a source of data is: samples with a known shape, a part to train on and a part held out.

Write one of your own by returning a :class:`Source` from the callable that ``data._target_`` names.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What a model must fit: the shape (C, H, W) of one sample and the number of classes."""

    shape: tuple[int, int, int]
    classes: int


class Samples(Protocol):
    """Labelled images, fetched by index so that they need not be in memory.

    ``fetch`` must be a pure function of the indices: no randomness, callable from several threads.
    """

    @property
    def targets(self) -> Tensor:
        """Class of every sample, int64, shape (N,)."""
        ...

    def __len__(self) -> int:
        """N."""
        ...

    def fetch(self, indices: Tensor) -> Tensor:
        """Images at ``indices`` (int64, shape (B,)), float32, shape (B, C, H, W)."""
        ...


@dataclass(frozen=True)
class Source:
    """A data set: training samples, to be shared out among the clients, and held-out samples."""

    spec: DataSpec
    train: Samples
    test: Samples


class TensorSamples:
    """Samples in memory.

    Parameters
    ----------
    images
        Shape (N, C, H, W): float32, or uint8, which is kept as it is (a quarter of the memory) and scaled to
        0..1 when fetched.
    targets
        Shape (N,).
    """

    def __init__(self, images: Tensor, targets: Tensor) -> None:
        self._images = images
        self.targets = targets.to(torch.int64)

    def __len__(self) -> int:
        return len(self.targets)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`."""
        images = self._images[indices]
        return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images


class Subset:
    """Some samples of another :class:`Samples`, renumbered 0..len-1 in the order of ``indices`` (int64)."""

    def __init__(self, samples: Samples, indices: Tensor) -> None:
        self._samples = samples
        self._indices = indices
        self.targets = samples.targets[indices]

    def __len__(self) -> int:
        return len(self._indices)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`."""
        return self._samples.fetch(self._indices[indices])
