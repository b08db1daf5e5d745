"""What a ``_target_`` setting names, found without running anything that this node does not allow.

Settings reach a client from the server, so ``_target_`` could otherwise name any function of any installed
package. Only the app's own package and those the node lists in its ``allow`` are imported, and only what is
*defined* there is returned: a module's imports (``dynsl_app.data.load.torch``) are not a way out.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings

OWN_PACKAGE = "dynsl_app"


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def resolve_target(path: str, allow: frozenset[str] = frozenset()) -> Callable[..., Any]:
    """Import the function or class at ``path``.

    Parameters
    ----------
    path
        ``package.module.name``.
    allow
        Packages or modules (dotted names) that ``path`` may lie in, besides ``dynsl_app``.

    Raises
    ------
    SettingsError
        If the path is malformed, its package is not allowed, it cannot be imported, or it is not a function or
        class defined in an allowed package.
    """
    packages = allow | {OWN_PACKAGE}
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise SettingsError(f"_target_={path!r} is not of the form package.module.name")
    package = path.split(".")[0]
    if not _within(module_name, packages):
        raise SettingsError(
            f"_target_={path!r} is in {package!r}, which this node does not allow. If you trust that package, add it "
            f"to the node's setting `allow` (under Flower: --node-config 'allow=\"{package}\"'; "
            f"allowed now: {', '.join(sorted(packages))})"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SettingsError(f"_target_={path!r}: cannot import {module_name!r}: {error}. Is it installed?") from error
    target: Callable[..., Any] | None = getattr(module, name, None)
    if target is None:
        raise SettingsError(f"_target_={path!r}: module {module_name!r} has no {name!r}")
    origin = getattr(target, "__module__", None)
    if not callable(target) or not isinstance(origin, str):
        raise SettingsError(f"_target_={path!r} is not a function or class")
    if not _within(origin, packages):
        raise SettingsError(
            f"_target_={path!r} is only imported there; it is defined in {origin!r}. Name it there and, if you trust "
            f"that package, add {origin.split('.')[0]!r} to the node's setting `allow`"
        )
    return target


def named_packages(settings: Settings) -> frozenset[str]:
    """Packages that the settings' own ``_target_`` s are in.

    For where whoever wrote the settings may run code of theirs anyway: the server's side, whose app they chose, and
    runs in one process. A device decides for itself (its node setting ``allow``).
    """
    targets = (settings.model.target, settings.data.target)
    return frozenset(target.split(".")[0] for target in targets if target)
