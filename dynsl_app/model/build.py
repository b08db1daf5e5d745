"""Building a model, whole and as a chain of blocks, from its settings and the data's shape."""

import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError, SettingsError
from dynsl_app.model.batchnorm import adopt_batchnorm
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.dropout import place_dropouts, replace_dropout
from dynsl_app.model.verify import check_owned_once, check_same_function
from dynsl_app.seeds import derive_seed
from dynsl_app.settings import ModelSettings
from dynsl_app.targets import resolve_target

ZOO = ("cnn", "mlp", "resnet18", "mobilenet_v2", "vgg11", "vit_tiny")
"""Architectures in :mod:`dynsl_app.model.zoo`, each a module with ``build`` and, unless a Sequential, ``blocks``."""

Stages = Sequence[tuple[str, nn.Module]]

# torch initialises from one generator per process: two builds at the same time would mix their draws.
_INITIALISING = threading.Lock()


def build_chain(settings: ModelSettings, spec: DataSpec, seed: int, allow: frozenset[str] = frozenset()) -> Chain:
    """The model as blocks 1..L, made of the plain model's own submodules.

    Parameters
    ----------
    settings
        Which architecture and its options; see docs/models.md.
    spec
        Shape of a sample and number of classes.
    seed
        Of the initial weights: equal seeds give equal bits, from any thread.
    allow
        Packages that ``_target_`` may name besides ``dynsl_app``.

    Raises
    ------
    SettingsError
        An unknown model or option, or a ``_target_`` that is not allowed.
    ModelError
        The model does not fit the data, or its blocks are not the whole model, or cannot be cut safely.
    """
    return _build(settings, spec, seed, allow)[1]


def build_plain(settings: ModelSettings, spec: DataSpec, seed: int, allow: frozenset[str] = frozenset()) -> nn.Module:
    """The same model unsplit, with the same initial weights; arguments and errors as :func:`build_chain`."""
    return _build(settings, spec, seed, allow)[0]


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Within, torch's own initialisation draws from a generator with this seed, whatever other threads do."""
    with _INITIALISING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _build(settings: ModelSettings, spec: DataSpec, seed: int, allow: frozenset[str]) -> tuple[nn.Module, Chain]:
    label = settings.label
    builder, split = _architecture(settings, allow)
    arguments = _arguments(builder, settings, spec, label)
    with initialising(derive_seed(seed, "weights")):
        try:
            plain = builder(**arguments)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ModelError(f"model {label} cannot be built with {arguments}: {error}; see model.params") from error
    if not isinstance(plain, nn.Module):
        raise ModelError(f"model {label} returned {type(plain).__name__}; it must return a torch.nn.Module")
    replace_dropout(plain)
    adopt_batchnorm(plain)
    chain = Chain(Block(index, stages) for index, stages in enumerate(split(plain), start=1))
    replace_dropout(chain)  # a user's blocks() may hold dropout that is no submodule of the model
    for block in chain.span(0, len(chain)):
        _start_out_of_place(block)
        place_dropouts(block, block.index)
    check_owned_once(plain, chain, label)
    if settings.target is not None:
        check_same_function(plain, chain, spec, label)
    return plain, chain


def _architecture(
    settings: ModelSettings, allow: frozenset[str]
) -> tuple[Callable[..., Any], Callable[[nn.Module], Sequence[Stages]]]:
    if settings.target is not None:
        return resolve_target(settings.target, allow), _declared_blocks
    if settings.name == "custom":
        raise SettingsError(
            "model=custom needs model._target_=package.module.builder, which returns your own model; see docs/models.md"
        )
    if settings.name not in ZOO:
        raise SettingsError(
            f"model.name={settings.name!r} is not one of {', '.join(ZOO)}; for your own model set model._target_"
        )
    module = importlib.import_module(f"dynsl_app.model.zoo.{settings.name}")
    return module.build, getattr(module, "blocks", _declared_blocks)


def _arguments(builder: Callable[..., Any], settings: ModelSettings, spec: DataSpec, label: str) -> dict[str, Any]:
    """What the builder is called with: the data's shape and classes if it takes them, and the options set."""
    parameters = inspect.signature(builder).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments: dict[str, Any] = {
        name: value for name, value in (("shape", spec.shape), ("classes", spec.classes)) if name in parameters
    }
    options: dict[str, Any] = {} if settings.stem == "auto" else {"stem": settings.stem}
    if settings.dropout is not None:
        options["dropout"] = settings.dropout
    for name in options:
        if name not in parameters and not takes_any:
            raise SettingsError(f"model {label} has no {name}: leave model.{name} at its default")
    reserved = {"shape", "classes", "stem", "dropout"}
    known = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for name in settings.params:
        if name in reserved:
            where = f"model.{name}" if name in ("stem", "dropout") else "the data"
            raise SettingsError(f"model.params.{name} is set by {where}; leave it out of model.params")
        if name not in parameters and not takes_any:
            free = [other for other in known if other not in reserved]
            raise SettingsError(f"model {label} has no option {name!r} in model.params; it has {free}")
    return {**arguments, **options, **settings.params}


def _declared_blocks(model: nn.Module) -> Sequence[Stages]:
    """The hook for users' models: what ``blocks`` says, else the children of a Sequential."""
    declared: object = getattr(model, "blocks", None)
    if declared is None and isinstance(model, nn.Sequential):
        declared = [[child] for child in model.named_children()]
    elif callable(declared) and not isinstance(declared, nn.Module):
        declared = declared()
    if not _are_blocks(declared):
        raise ModelError(
            f"{type(model).__name__} does not say where it can be cut: make it an nn.Sequential (a block per child) or "
            f"give it blocks(), a list of blocks, each a list of (path in the model, module) in the order they run"
        )
    return declared


def _are_blocks(value: object) -> TypeGuard[Sequence[Stages]]:
    def is_stage(item: object) -> bool:
        match item:
            case (str(), nn.Module()):
                return True
        return False

    def is_block(item: object) -> bool:
        return isinstance(item, Sequence) and len(item) > 0 and all(map(is_stage, item))

    return isinstance(value, Sequence) and len(value) > 0 and all(map(is_block, value))


def _start_out_of_place(block: Block) -> None:
    """Turn off ``inplace`` in whatever runs before a block's first parameters.

    The block's input is the activation that another place holds and needs unchanged for its backward.
    """
    for module in block.stages.modules():
        if next(module.parameters(recurse=False), None) is not None:
            return
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
