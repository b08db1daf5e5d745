"""Random transforms of a training batch, drawn from a generator that belongs to that batch alone."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional

PADDING = 4
"""Pixels added on every side before a crop back to the original size (the usual choice for CIFAR)."""


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror each image left to right with probability ½. Shape (B, C, H, W) in and out."""
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def crop(images: Tensor, generator: Generator) -> Tensor:
    """Shift each image by up to :data:`PADDING` pixels either way; zeros come in. Shape (B, C, H, W) in and out."""
    count, _, height, width = images.shape
    padded = functional.pad(images, [PADDING] * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    top, left = torch.randint(0, 2 * PADDING + 1, (2, count), generator=generator)
    return windows[torch.arange(count), :, top, left].contiguous()


TRANSFORMS: Mapping[str, Callable[[Tensor, Generator], Tensor]] = {"flip": flip, "crop": crop}


def augment(images: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """Apply the named transforms in order, all drawn from one generator seeded by ``seed``."""
    generator = Generator().manual_seed(seed)
    for name in names:
        images = TRANSFORMS[name](images, generator)
    return images
