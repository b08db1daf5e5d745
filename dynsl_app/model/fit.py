"""Fitting published architectures to other images: channels, stems and smallest inputs."""

from typing import Literal

from torch import nn

from dynsl_app.errors import ModelError

Size = Literal["auto", "small", "standard"]

SMALL_PIXELS = 64
"""Images up to this side count as small. Choice: published small-image variants are for 32 (CIFAR) and 64 (Tiny
ImageNet) pixels, the standard ones for 224."""


def is_small(choice: Size, shape: tuple[int, int, int]) -> bool:
    """Whether to build the variant for small images; shape is (C, H, W)."""
    if choice not in ("auto", "small", "standard"):
        raise ModelError(f"{choice!r} is not one of auto, small, standard")
    return choice == "small" or (choice == "auto" and max(shape[1:]) <= SMALL_PIXELS)


def require_size(model: str, shape: tuple[int, int, int], minimum: int) -> None:
    """Raise ModelError if an image (C, H, W) is below the model's smallest."""
    channels, height, width = shape
    if min(height, width) < minimum:
        raise ModelError(
            f"{model} needs images of at least {minimum}×{minimum} and got {channels}×{height}×{width}; set "
            f"data.resize={minimum} or more, or where data are made up, data.shape or testbed.shape"
        )


def input_conv(like: nn.Conv2d, channels: int, *, kernel: int | None = None, stride: int | None = None) -> nn.Conv2d:
    """A first convolution like ``like`` for other channels, kernel or stride, padded by half the kernel.

    Initialised as torchvision does it in its convolutional networks (He et al. 2015, fan out).
    """
    size = like.kernel_size[0] if kernel is None else kernel
    conv = nn.Conv2d(
        channels,
        like.out_channels,
        kernel_size=size,
        stride=like.stride[0] if stride is None else stride,
        padding=size // 2,
        bias=like.bias is not None,
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv
