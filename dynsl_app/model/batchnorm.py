"""BatchNorm that can normalise each member of a merged batch by that member's own statistics.

``heads.batchnorm=merged`` is torch's BatchNorm over all samples of the batch. With ``per_request``, members are
normalised one after the other, which also updates the running buffers in member order: exactly what separate requests
would do (ALGORITHMS §2). Parameters, buffers and their names are torch's in both.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dynsl_app.errors import ModelError

_CACHE = "_dynsl_batchnorms"


class _PerMember(_BatchNorm):
    # A class attribute, because modules become this class without passing through __init__.
    _sizes: tuple[int, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        if len(self._sizes) < 2:
            return self._normalise(input)
        if sum(self._sizes) != len(input):
            raise ModelError(
                f"BatchNorm was told of {sum(self._sizes)} samples and got {len(input)}; call "
                f"set_members(block, sizes) for every batch"
            )
        ends = list(accumulate(self._sizes))
        return torch.cat([self._normalise(input[end - n : end]) for n, end in zip(self._sizes, ends, strict=True)])

    def _normalise(self, x: Tensor) -> Tensor:
        if x.numel() == x.shape[1]:
            raise ModelError(
                f"BatchNorm over {x.shape[1]} channels got one value for each (a batch of one sample at 1×1), which "
                f"has no variance: use data.tail=merge or drop, data.batch of 2 or more, or a larger data.resize"
            )
        return super().forward(x)


class BatchNorm1d(_PerMember, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that knows members."""


class BatchNorm2d(_PerMember, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that knows members."""


class BatchNorm3d(_PerMember, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` that knows members."""


_OURS: dict[type[nn.Module], type[_PerMember]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def adopt_batchnorm(model: nn.Module) -> None:
    """Make torch's BatchNorm modules in ``model`` ours, in place; they stay the same objects."""
    for module in model.modules():
        ours = _OURS.get(type(module))
        if ours is not None:
            # As torch's own lazy modules do: whoever holds the module keeps holding the right one.
            module.__class__ = ours


def set_members(block: nn.Module, sizes: Sequence[int]) -> None:
    """Normalise the next batches in training per member (``heads.batchnorm=per_request``).

    Parameters
    ----------
    block
        A block, a chain or a whole model.
    sizes
        Samples of each member, in batch order. Empty: one set of statistics for the whole batch again.

    Raises
    ------
    ModelError
        If the block has a BatchNorm of another class, which would silently keep merging.
    """
    for batchnorm in _batchnorms(block):
        batchnorm._sizes = tuple(sizes)


def _batchnorms(module: nn.Module) -> list[_PerMember]:
    # Asked once per block and batch, so the walk is done once; the list is copied along when a block is.
    found = module.__dict__.get(_CACHE)
    if found is None:
        found = []
        for path, part in module.named_modules():
            if isinstance(part, _PerMember):
                found.append(part)
            elif isinstance(part, _BatchNorm):
                raise ModelError(
                    f"{path} ({type(part).__name__}) cannot normalise per request; use nn.BatchNorm1d/2d/3d, or "
                    f"heads.batchnorm=merged"
                )
        module.__dict__[_CACHE] = found
    return list(found)
