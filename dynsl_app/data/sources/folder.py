"""Image files in folders named by their class: ``root/train/<class>/…`` and ``root/test/<class>/…``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from dynsl_app.data.source import DataSpec, Source
from dynsl_app.data.transforms import square, standardised
from dynsl_app.errors import DataError, SettingsError


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FolderParams:
    """``data.params`` of an image folder.

    Attributes
    ----------
    classes
        Names of the class folders, in the order of their numbers; None: those found, sorted. Must be given where
        every node has a folder of its own, as one of them may lack a class.
    channels
        3 (RGB) or 1 (grey); every image is converted to it.
    mean, std
        Per channel, of pixels scaled to 0..1, to standardise with; by default they are not.
    """

    classes: list[str] | None = None
    channels: Literal[1, 3] = 3
    mean: list[float] | None = None
    std: list[float] | None = None


class FolderSamples:
    """Image files, opened when they are fetched.

    Parameters
    ----------
    files
        Pairs of a file's path and its class.
    shape
        (C, H, W) that every image must have after resizing.
    resize
        Side in pixels to bring images to, see :func:`dynsl_app.data.transforms.square`; None: as they are.
    """

    def __init__(self, files: Sequence[tuple[str, int]], shape: tuple[int, int, int], resize: int | None) -> None:
        self._paths = [path for path, _ in files]
        self._shape = shape
        self._resize = resize
        self.targets = torch.tensor([target for _, target in files], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._paths)

    def fetch(self, indices: Tensor) -> Tensor:
        """See :meth:`Samples.fetch`. Raises DataError, with its path, on a file that cannot be read."""
        images = torch.empty((len(indices), *self._shape))
        for row, index in zip(images, indices.tolist(), strict=True):
            image = _decode(self._paths[index], self._shape[0]).to(torch.float32).unsqueeze(0) / 255
            if self._resize is not None:
                image = square(image, self._resize)
            row.copy_(image[0])
        return images


def image_folder(root: Path, params: Mapping[str, Any], *, resize: int | None, own: bool) -> Source:
    """Images of any format Pillow reads and any mode, converted to the same channels.

    Parameters
    ----------
    params
        See :class:`FolderParams`.
    resize
        ``data.resize``. Without it all images must have the same size, which is checked here (it opens every file).
    own
        The folder is this node's own (``data.partition=local``): it may lack ``train/`` or ``test/`` and classes.

    Raises
    ------
    DataError
        If folders or images are missing, or sizes differ and ``resize`` is None; the message names the file.
    SettingsError
        If ``params`` are not those of :class:`FolderParams`.
    """
    chosen = _params(params)
    names = chosen.classes
    if names is None:
        if own:
            raise SettingsError(
                "data=image_folder with data.partition=local needs the names of all classes in order, as a node may "
                "lack one and would number the others differently: set data.params.classes=[…]"
            )
        names = _class_names(root / "train")
    numbers = {name: number for number, name in enumerate(names)}
    train = _files(root / "train", numbers, optional=own)
    test = _files(root / "test", numbers, optional=own)
    if not train and not test:
        raise DataError(f"data=image_folder: no image in {root / 'train'} or {root / 'test'}. Check data.root")
    height, width = (resize, resize) if resize is not None else _common_size([path for path, _ in train + test])
    shape = (chosen.channels, height, width)
    source = Source(
        DataSpec(shape, len(names)), FolderSamples(train, shape, resize), FolderSamples(test, shape, resize)
    )
    if chosen.mean is not None and chosen.std is not None:
        return standardised(source, tuple(chosen.mean), tuple(chosen.std))
    return source


def _params(params: Mapping[str, Any]) -> FolderParams:
    try:
        chosen = TypeAdapter(FolderParams).validate_python(dict(params))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise SettingsError(f"data.params of data=image_folder: {problems}") from error
    if chosen.classes is not None and (len(chosen.classes) < 2 or len(set(chosen.classes)) < len(chosen.classes)):
        raise SettingsError(f"data.params.classes={chosen.classes}: give at least two names, each once")
    given = [chosen.mean, chosen.std]
    if given != [None, None] and any(each is None or len(each) != chosen.channels for each in given):
        raise SettingsError(
            f"data.params.mean={chosen.mean} and std={chosen.std}: give both, with one number for each of the "
            f"{chosen.channels} channels"
        )
    if chosen.std is not None and min(chosen.std) <= 0:
        raise SettingsError(f"data.params.std={chosen.std}: must be above zero")
    return chosen


def _class_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(
            f"data=image_folder: there is no folder {folder}. Set data.root (on a node: data_root in its "
            "--node-config) to a folder that holds train/<class>/ and test/<class>/"
        )
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_names(folder: Path) -> list[str]:
    names = _class_folders(folder)
    if len(names) < 2:
        raise DataError(f"data=image_folder: {folder} must hold a folder for each class, at least two; found {names}")
    return names


def _files(folder: Path, numbers: Mapping[str, int], *, optional: bool) -> list[tuple[str, int]]:
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    if optional and not folder.is_dir():
        return []
    unknown = [name for name in _class_folders(folder) if name not in numbers]
    if unknown:
        raise DataError(
            f"data=image_folder: {folder} holds folders that are no class: {', '.join(unknown)}. "
            f"The classes are {', '.join(numbers)}; data.params.classes sets them"
        )
    files: list[tuple[str, int]] = make_dataset(folder, dict(numbers), IMG_EXTENSIONS, allow_empty=True)
    if not files and not optional:
        raise DataError(f"data=image_folder: no image ({', '.join(IMG_EXTENSIONS)}) in the class folders of {folder}")
    return files


def _common_size(paths: Sequence[str]) -> tuple[int, int]:
    """Height and width of every image; opening one reads its header only."""
    first: tuple[int, int] | None = None
    for path in paths:
        with _open(path) as image:
            width, height = image.size
        first = first or (height, width)
        if (height, width) != first:
            raise DataError(
                f"data=image_folder: images differ in size: {paths[0]} is {first[1]}×{first[0]} pixels, {path} is "
                f"{width}×{height}. Set data.resize to the side in pixels to bring all to"
            )
    assert first is not None
    return first


def _open(path: str) -> Image.Image:
    try:
        return Image.open(path)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"data=image_folder: cannot read {path}: {error}. Repair or remove it") from error


def _decode(path: str, channels: int) -> Tensor:
    """Bytes of one image, shape (C, H, W)."""
    with _open(path) as image:
        try:
            if image.mode.startswith("I;16"):
                # Pillow would clip 16 bits at 255 instead of scaling them.
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            pixels = np.array(image.convert("RGB" if channels == 3 else "L"))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"data=image_folder: cannot read {path}: {error}. Repair or remove it") from error
    return torch.from_numpy(pixels).view(*pixels.shape[:2], channels).permute(2, 0, 1)
