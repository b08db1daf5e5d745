"""torchvision's VGG-11, with a head for small images.

Source: Simonyan and Zisserman 2015. Its own head (7×7×512 to 4096 to 4096) has 120 of its 129 million parameters and
is made for 224 pixels. Choice for small images: the features' mean and two hidden layers of 512, under the same names.
"""

import torch
from torch import nn
from torchvision.models.vgg import VGG, cfgs, make_layers, vgg11

from dynsl_app.model.dropout import Dropout
from dynsl_app.model.fit import Size, input_conv, is_small, require_size

_MINIMUM = 32
"""Five max-pools of stride 2."""


def build(shape: tuple[int, int, int], classes: int, *, dropout: float = 0.5, head: Size = "auto") -> VGG:
    """``shape`` is (C, H, W), at least 32×32; ``head=auto`` is small up to 64 pixels."""
    require_size("vgg11", shape, _MINIMUM)
    if is_small(head, shape):
        # The replaced head is never allocated: it would take half a gigabyte for a moment.
        with torch.device("meta"):
            model = VGG(nn.Identity(), classes, init_weights=False)
        model.features = make_layers(cfgs["A"])
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Sequential(
            nn.Linear(512, 512),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(512, 512),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(512, classes),
        )
        for number, layer in enumerate(model.features):
            if isinstance(layer, nn.Conv2d):
                model.features[number] = input_conv(layer, shape[0] if number == 0 else layer.in_channels)
    else:
        model = vgg11(num_classes=classes, dropout=dropout)
        if shape[0] != 3:
            model.features[0] = input_conv(model.features[0], shape[0])
    return model


def blocks(model: VGG) -> list[list[tuple[str, nn.Module]]]:
    """Nine: each convolution with its ReLU and the pool behind it, then the head."""
    features: list[list[tuple[str, nn.Module]]] = []
    for name, layer in model.features.named_children():
        if isinstance(layer, nn.Conv2d):
            features.append([])
        features[-1].append((f"features.{name}", layer))
    head = [("avgpool", model.avgpool), ("flatten", nn.Flatten()), ("classifier", model.classifier)]
    return [*features, head]
