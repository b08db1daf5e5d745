"""Replacing submodules of a model in place."""

from collections.abc import Callable

from torch import nn


def replace_modules(root: nn.Module, substitute: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Put ``substitute(path, module)`` in the place of every submodule for which it is not None.

    A module that is registered in several places is offered once for each, so that each place can get its own
    substitute. ``root`` itself is not offered.
    """
    visited: set[nn.Module] = set()

    def walk(parent: nn.Module, prefix: str) -> None:
        if parent in visited:
            return
        visited.add(parent)
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            new = substitute(prefix + name, child)
            if new is not None:
                parent._modules[name] = new
            walk(child if new is None else new, f"{prefix}{name}.")

    walk(root, "")
