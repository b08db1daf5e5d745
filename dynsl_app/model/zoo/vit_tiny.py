"""torchvision's Vision Transformer at the width of ViT-Tiny.

Source: Dosovitskiy et al. 2021; width 192 with 3 heads from Touvron et al. 2021 (DeiT-Ti). Choice: half its depth (6
layers), and patches that fit the image, because images are small here.
"""

import math

import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

from dynsl_app.errors import ModelError

_PATCHES = 7
"""Fewest patches along a side that ``patch=None`` makes, if the image has that many pixels."""


def build(
    shape: tuple[int, int, int],
    classes: int,
    *,
    dropout: float = 0.0,
    patch: int | None = None,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
) -> VisionTransformer:
    """A ViT for square images (C, H, H).

    Parameters
    ----------
    dropout
        After the embedding, the attention and the linear layers, as torchvision has it; none on attention weights.
    patch
        Pixels along a patch. None: the largest divisor of the side, up to 16, that leaves 7 patches a side.
    width, depth, heads
        Size of a token, number of layers, attention heads in each; the hidden layers are 4 × ``width``.
    """
    channels, side, other = shape
    if side != other:
        raise ModelError(
            f"vit_tiny takes square images and got {channels}×{side}×{other}; set data.resize={min(side, other)}"
        )
    pixels = patch or _patch(side)
    if side % pixels:
        raise ModelError(f"vit_tiny: patches of {pixels} do not divide images of {side}×{side}; set model.params.patch")
    model = VisionTransformer(side, pixels, depth, heads, width, 4 * width, dropout=dropout, num_classes=classes)
    if channels != model.conv_proj.in_channels:
        model.conv_proj = nn.Conv2d(channels, width, kernel_size=pixels, stride=pixels)
        nn.init.trunc_normal_(model.conv_proj.weight, std=math.sqrt(1 / (channels * pixels * pixels)))
        nn.init.zeros_(model.conv_proj.bias)
    return model


def blocks(model: VisionTransformer) -> list[list[tuple[str, nn.Module]]]:
    """The embedding, each encoder layer, the head."""
    encoder = model.encoder
    embedding = [
        ("conv_proj", model.conv_proj),
        ("tokens", Tokens()),
        ("", ClassToken(model.class_token)),
        ("encoder", PositionEmbedding(encoder.pos_embedding)),
        ("encoder.dropout", encoder.dropout),
    ]
    layers = [[(f"encoder.layers.{name}", layer)] for name, layer in encoder.layers.named_children()]
    head = [("encoder.ln", encoder.ln), ("select", SelectClassToken()), ("heads", model.heads)]
    return [embedding, *layers, head]


class Tokens(nn.Module):
    """Patches to a sequence: (B, D, h, w) to (B, h·w, D)."""

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x.flatten(2).permute(0, 2, 1)


class ClassToken(nn.Module):
    """Prepend the class token: (B, N, D) to (B, 1+N, D)."""

    def __init__(self, token: nn.Parameter) -> None:
        super().__init__()
        self.class_token = token

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)


class PositionEmbedding(nn.Module):
    """Add the position embedding; (B, N, D) to the same."""

    def __init__(self, embedding: nn.Parameter) -> None:
        super().__init__()
        self.pos_embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x + self.pos_embedding


class SelectClassToken(nn.Module):
    """(B, N, D) to the first token's (B, D)."""

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x[:, 0]


def _patch(side: int) -> int:
    divisors = [size for size in range(1, 17) if side % size == 0 and side // size >= _PATCHES]
    return max(divisors, default=1)
