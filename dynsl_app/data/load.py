"""From data settings to a source, and from a source to one client's data."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Generator, Tensor

from dynsl_app.data.loader import ClientData
from dynsl_app.data.partition import partition
from dynsl_app.data.source import Samples, Source, Subset
from dynsl_app.data.sources.digits import digits
from dynsl_app.data.sources.folder import image_folder
from dynsl_app.data.sources.synthetic import synthetic
from dynsl_app.data.sources.vision import VISION_SETS, vision
from dynsl_app.data.transforms import resized
from dynsl_app.errors import DataError, SettingsError
from dynsl_app.seeds import derive_seed
from dynsl_app.settings import DataSettings
from dynsl_app.targets import resolve_target

_SETTINGS = TypeAdapter(DataSettings)
_ONE_AT_A_TIME = RLock()  # a user's own source may load a built-in one

SAME_EVERYWHERE = ("digits", "synthetic", "cifar10", "cifar100")
"""Sets of which no node can have a part of its own: embedded, made up, or checked file by file."""


def load_source(settings: DataSettings, *, root: str | None = None, allow: frozenset[str] = frozenset()) -> Source:
    """The source that ``settings`` name.

    A process keeps the last few: its clients share them, and a round does not read the files again.

    Parameters
    ----------
    root
        The node's own data folder; overrides ``settings.root``.
    allow
        Packages that ``_target_`` may name besides the app's own, see :func:`dynsl_app.targets.resolve_target`.

    Raises
    ------
    DataError
        If the data are missing, damaged, or do not fit together.
    SettingsError
        If the settings name no source, or contradict each other.
    """
    with _ONE_AT_A_TIME:
        return _load(_SETTINGS.dump_json(settings, by_alias=True), root or settings.root, allow)


@lru_cache(maxsize=2)
def _load(raw: bytes, root: str | None, allow: frozenset[str]) -> Source:
    settings = _SETTINGS.validate_json(raw)
    folder = None if root is None else Path(root).expanduser()
    if settings.target is not None:
        source = _users_own(settings.target, settings.params, root, allow)
    else:
        source = _built_in(settings, folder)
    return source if settings.resize is None else resized(source, settings.resize)


def _built_in(settings: DataSettings, root: Path | None) -> Source:
    own = settings.partition == "local"
    if own and settings.name in SAME_EVERYWHERE:
        raise SettingsError(
            f"data.partition=local needs a folder that differs from node to node; data={settings.name} is the same "
            "everywhere. Use data=image_folder, mnist, fashion_mnist or your own, or another partition"
        )
    if settings.params and settings.name != "image_folder":
        raise SettingsError(f"data={settings.name} takes no data.params; given: {', '.join(settings.params)}")
    if settings.name == "digits":
        return digits()
    if settings.name == "synthetic":
        return synthetic(settings.shape, settings.classes, settings.samples)
    if settings.name in VISION_SETS:
        return vision(settings.name, _need(root, settings.name), download=settings.download)
    if settings.name == "image_folder":
        return image_folder(_need(root, settings.name), settings.params, resize=settings.resize, own=own)
    if settings.name == "custom":
        raise SettingsError("data=custom needs data._target_: the path of a callable that returns a Source")
    known = ["digits", "synthetic", *VISION_SETS, "image_folder", "custom"]
    raise SettingsError(f"data.name={settings.name} is unknown; choose one of {', '.join(known)}, or set data._target_")


def _need(root: Path | None, name: str) -> Path:
    if root is None:
        raise DataError(
            f"data={name} reads a local folder, but data.root is not set. Set data.root=<folder>, or on a node "
            "data_root in its --node-config" + (" (data.download=true fills it)" if name in VISION_SETS else "")
        )
    return root


def _users_own(target: str, params: Mapping[str, Any], root: str | None, allow: frozenset[str]) -> Source:
    make: Callable[..., object] = resolve_target(target, allow)
    arguments = dict(params) if root is None else {"root": root, **params}
    try:
        signature(make).bind(**arguments)
    except TypeError as error:
        raise SettingsError(
            f"data._target_={target!r} cannot be called with {sorted(arguments)}: {error}. It gets data.params by "
            "name, and root if data.root (or the node's data_root) is set"
        ) from error
    source = make(**arguments)
    if not isinstance(source, Source):
        raise SettingsError(
            f"data._target_={target!r} returned {type(source).__name__}, not dynsl_app.data.source.Source"
        )
    for part, samples in (("train", source.train), ("test", source.test)):
        _check(f"data._target_={target!r}, {part}", samples, source)
    return source


def _check(what: str, samples: Samples, source: Source) -> None:
    targets, classes = samples.targets, source.spec.classes
    if targets.dtype != torch.int64 or targets.shape != (len(samples),):
        raise DataError(
            f"{what}: targets are {targets.dtype} of shape {tuple(targets.shape)}; expected int64 of ({len(samples)},)"
        )
    if not len(samples):
        return
    if targets.min() < 0 or targets.max() >= classes:
        raise DataError(
            f"{what}: targets are {int(targets.min())} to {int(targets.max())}; with {classes} classes they must be "
            f"0 to {classes - 1}"
        )
    first = samples.fetch(torch.tensor([0]))
    if first.dtype != torch.float32 or first.shape != (1, *source.spec.shape):
        raise DataError(
            f"{what}: fetch of one sample gave {first.dtype} of shape {tuple(first.shape)}; expected float32 of "
            f"{(1, *source.spec.shape)}"
        )


def client_data(source: Source, settings: DataSettings, *, client: int, clients: int, seed: int) -> ClientData:
    """What client ``client`` of ``clients`` (ids from 0) trains and tests on, a function of the arguments alone.

    Training samples are the client's part of the partition, after ``data.limit`` (samples over all clients) has
    taken a random subset. Held-out samples, never limited, are an iid part of the source's. With
    ``data.partition=local`` both are all that ``source`` holds, the limit shared out evenly.

    Raises
    ------
    DataError
        If a client has no sample or no batch; the message names it.
    SettingsError
        If there is no such client.
    """
    if not 0 <= client < clients:
        raise SettingsError(f"client {client}: with {clients} clients, ids are 0 to {clients - 1}")
    train, test = source.train, source.test
    if settings.partition == "local":
        if settings.limit is not None:
            share = settings.limit // clients + (client < settings.limit % clients)
            train = Subset(train, _some(len(train), share, derive_seed(seed, "limit", client)))
    else:
        if settings.limit is not None:
            train = Subset(train, _some(len(train), settings.limit, derive_seed(seed, "limit")))
        train = Subset(train, partition(train.targets, settings, clients=clients, seed=seed)[client])
        order = torch.randperm(len(test), generator=Generator().manual_seed(derive_seed(seed, "held-out")))
        test = Subset(test, order.tensor_split(clients)[client].sort().values)
    return ClientData(
        train, test, client=client, seed=seed, batch=settings.batch, tail=settings.tail, augment=settings.augment
    )


def _some(samples: int, limit: int, seed: int) -> Tensor:
    """Indices, ascending, of ``limit`` samples drawn without replacement; of all if there are not as many."""
    return torch.randperm(samples, generator=Generator().manual_seed(seed))[:limit].sort().values
