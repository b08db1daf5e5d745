"""torchvision's ResNet-18, with a stem for small images.

Source: He et al. 2016. The small stem, a 3×3 convolution of stride 1 without max-pooling, is the one their
CIFAR networks and the usual CIFAR ResNet-18 have; with it the network takes images of any size.
"""

from torch import nn
from torchvision.models.resnet import ResNet, resnet18

from dynsl_app.model.fit import Size, input_conv, is_small


def build(shape: tuple[int, int, int], classes: int, *, stem: Size = "auto") -> ResNet:
    """``shape`` is (C, H, W); ``stem=auto`` is small up to 64 pixels."""
    model = resnet18(num_classes=classes)
    if is_small(stem, shape):
        model.conv1 = input_conv(model.conv1, shape[0], kernel=3, stride=1)
        model.maxpool = nn.Identity()
    elif shape[0] != model.conv1.in_channels:
        model.conv1 = input_conv(model.conv1, shape[0])
    return model


def blocks(model: ResNet) -> list[list[tuple[str, nn.Module]]]:
    """Ten: the stem, eight residual blocks, the head. What a shortcut spans stays together."""
    stem = [(name, getattr(model, name)) for name in ("conv1", "bn1", "relu", "maxpool")]
    residual = [
        [(f"{layer}.{name}", block)]
        for layer in ("layer1", "layer2", "layer3", "layer4")
        for name, block in getattr(model, layer).named_children()
    ]
    head = [("avgpool", model.avgpool), ("flatten", nn.Flatten()), ("fc", model.fc)]
    return [stem, *residual, head]
