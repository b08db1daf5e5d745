"""torchvision's MobileNet-V2, with a stem for small images.

Source: Sandler et al. 2018. Choice for small images, as in the widely used CIFAR-10 variant (kuangliu/pytorch-cifar):
the first convolution and the first 24-channel stage have stride 1, so that the whole network reduces the side by 8
instead of 32.
"""

from torch import nn
from torchvision.models.mobilenetv2 import MobileNetV2

from dynsl_app.model.fit import Size, input_conv, is_small

# expansion, channels, repeats, stride of the first; the second row has stride 1 where the paper has 2
_SMALL = [
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]


def build(
    shape: tuple[int, int, int], classes: int, *, stem: Size = "auto", dropout: float = 0.2, width: float = 1.0
) -> MobileNetV2:
    """``shape`` is (C, H, W); ``stem=auto`` is small up to 64 pixels; ``width`` multiplies the channels."""
    small = is_small(stem, shape)
    model = MobileNetV2(classes, width, _SMALL if small else None, dropout=dropout)
    first = model.features[0]
    if small:
        first[0] = input_conv(first[0], shape[0], stride=1)
    elif shape[0] != first[0].in_channels:
        first[0] = input_conv(first[0], shape[0])
    return model


def blocks(model: MobileNetV2) -> list[list[tuple[str, nn.Module]]]:
    """Twenty: the stem, seventeen inverted residuals, the last convolution, the classifier."""
    features: list[list[tuple[str, nn.Module]]] = [
        [(f"features.{name}", part)] for name, part in model.features.named_children()
    ]
    head = [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("classifier", model.classifier)]
    return [*features, head]
