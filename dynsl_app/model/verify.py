"""Whether blocks are the whole model: its parameters, its buffers, and what it computes."""

from collections import Counter

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError
from dynsl_app.model.chain import Chain
from dynsl_app.model.probe import evaluating, run_block


def check_owned_once(plain: nn.Module, chain: Chain, label: str) -> None:
    """Every parameter and buffer of the plain model is in exactly one block, under its own name.

    Raises
    ------
    ModelError
        Naming what is missing, found twice, wrongly named, tied or lazy.
    """
    expected = _tensors(plain)
    if any(is_lazy(value) for value in expected.values()):
        raise ModelError(
            f"model {label} has lazy layers; give their sizes (shape and classes are passed to the builder)"
        )
    names: dict[int, str] = {}
    for name, value in expected.items():
        other = names.setdefault(id(value), name)
        if other != name:
            raise ModelError(
                f"model {label} has one tensor under two names ({other}, {name}): tied weights cannot be cut apart or "
                f"moved; give each its own"
            )
    found: Counter[str] = Counter()
    for block in chain.span(0, len(chain)):
        for local, value in _tensors(block).items():
            path = block.path(local)
            if expected.get(path) is not value:
                raise ModelError(f"model {label}, block {block.index}: {path!r} is not that tensor's name in the model")
            found[path] += 1
    missing = [path for path in expected if found[path] == 0]
    twice = [path for path, times in found.items() if times > 1]
    if missing or twice:
        what = f"leave out {', '.join(missing)}" if missing else f"hold {', '.join(twice)} more than once"
        raise ModelError(f"model {label}: its blocks {what}; every parameter and buffer belongs to exactly one block")


def check_same_function(plain: nn.Module, chain: Chain, spec: DataSpec, label: str) -> None:
    """Run both once: a user's blocks may leave out a functional step, or write into their input.

    Raises
    ------
    ModelError
        The outputs differ in a bit, a block changes its input, or the model does not take the data's shape.
    """
    x = torch.randn(2, *spec.shape, generator=torch.Generator().manual_seed(0))
    with evaluating(plain), evaluating(chain):
        whole = run_block(plain, x.clone(), f"model {label}", spec)
        for block in chain.span(0, len(chain)):
            version = x._version
            y = run_block(block, x, f"model {label}, block {block.index}", spec)
            if x._version != version:
                raise ModelError(
                    f"model {label}, block {block.index} writes into its input, which is held by the other side of the "
                    f"cut: use an operation that is not in-place there"
                )
            x = y
    if whole.shape != x.shape or not torch.equal(whole, x):
        raise ModelError(
            f"model {label}: its blocks in a row do not compute what the whole model does; blocks() must list every "
            f"step of forward(), functional ones (flatten, pooling, activations) as small modules"
        )


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
