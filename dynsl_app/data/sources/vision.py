"""Data sets in torchvision's own file layouts, from a local folder; downloaded only when asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynsl_app.data.source import DataSpec, Source, TensorSamples
from dynsl_app.data.transforms import standardised
from dynsl_app.errors import DataError


@dataclass(frozen=True)
class VisionSet:
    """One of torchvision's classes of data sets and the customary mean and deviation of its training pixels."""

    dataset: str
    spec: DataSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]


VISION_SETS = {
    "mnist": VisionSet("MNIST", DataSpec((1, 28, 28), 10), (0.1307,), (0.3081,)),
    "fashion_mnist": VisionSet("FashionMNIST", DataSpec((1, 28, 28), 10), (0.2860,), (0.3530,)),
    "cifar10": VisionSet("CIFAR10", DataSpec((3, 32, 32), 10), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": VisionSet("CIFAR100", DataSpec((3, 32, 32), 100), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def vision(name: str, root: Path, *, download: bool) -> Source:
    """One of :data:`VISION_SETS`, standardised; pixels stay in memory as bytes.

    Raises
    ------
    DataError
        If the files are not under ``root``, are damaged, or cannot be downloaded.
    """
    chosen = VISION_SETS[name]
    train, test = (_part(name, chosen, root, train=train, download=download) for train in (True, False))
    return standardised(Source(chosen.spec, train, test), chosen.mean, chosen.std)


def _part(name: str, chosen: VisionSet, root: Path, *, train: bool, download: bool) -> TensorSamples:
    from torchvision import datasets

    try:
        dataset = getattr(datasets, chosen.dataset)(str(root), train=train, download=download)
        images = torch.from_numpy(np.asarray(dataset.data))
        targets = torch.as_tensor(dataset.targets)
    # What torchvision raises depends on where a file is damaged; all of it means the same to the user.
    except (RuntimeError, OSError, ValueError, AssertionError, EOFError) as error:
        remedy = "Check the network, or put the files there yourself" if download else _REMEDY
        raise DataError(f"data={name}: cannot read it from data.root={root}: {_first_line(error)}. {remedy}") from error
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    if images.shape[1:] != chosen.spec.shape or len(images) != len(targets):
        raise DataError(
            f"data={name}: the files in data.root={root} hold images of shape {tuple(images.shape)} and "
            f"{len(targets)} labels; expected N of shape {chosen.spec.shape} and N. Are they another set's?"
        )
    return TensorSamples(images, targets)


_REMEDY = (
    "Set data.root (on a node: data_root in its --node-config) to the folder that torchvision downloads into, "
    "or data.download=true to download it there"
)


def _first_line(error: Any) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
