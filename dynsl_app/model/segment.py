"""Consecutive blocks of one owner, with one optimizer each: what a client and a server copy both are.

The same code trains a block on either side of the cut, which is what makes placement free.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dynsl_app.model.batchnorm import set_members
from dynsl_app.model.chain import Block
from dynsl_app.model.dropout import seed_dropout
from dynsl_app.model.optim import clip_gradients, make_optimizer
from dynsl_app.model.state import (
    block_weights,
    load_block_weights,
    load_optimizer_state,
    optimizer_state,
    split_by_block,
)
from dynsl_app.plan import BatchKey
from dynsl_app.settings import OptimizerSettings

Members = Sequence[tuple[BatchKey, int]]
"""Whose samples a batch holds, in order: (key, number of samples)."""


class Observer(Protocol):
    """Told where a batch is, block by block, by the thread that computes it.

    What happens between two calls is the work of the block that the second one names.
    """

    def begin(self) -> None:
        """Work on a batch begins, or goes on after a wait."""
        ...

    def forward(self, block: int) -> None:
        """Block l has done its forward."""
        ...

    def backward(self, block: int) -> None:
        """The gradient has passed through block l."""
        ...

    def step(self, block: int) -> None:
        """Block l is updated."""
        ...


class Segment:
    """Trainable blocks low+1..high.

    Parameters
    ----------
    blocks
        Owned by this segment from now on; an empty segment passes its input through.
    settings
        The optimizer that every block gets.
    per_member
        Normalise each member's samples by their own statistics (``heads.batchnorm=per_request``).
    observer
        Follows the work from block to block; None: nobody does.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        settings: OptimizerSettings,
        *,
        per_member: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.blocks = list(blocks)
        self._settings = settings
        self._per_member = per_member
        self._observer = observer
        self._parameters = [list(block.parameters()) for block in self.blocks]
        self._optimizers = [make_optimizer(p, settings) if p else None for p in self._parameters]
        for block in self.blocks:
            block.train()

    def forward(self, x: Tensor, members: Members) -> Tensor:
        """Training forward of one batch, (B, …) to (B, …)."""
        observer = self._observer
        if observer is not None:
            observer.begin()
        for position, block in enumerate(self.blocks):
            seed_dropout(block, members)
            if self._per_member:
                set_members(block, [size for _, size in members])
            if observer is not None and position:
                # The gradient at a block's input is there when its backward is done.
                x.register_hook(partial(_passed, observer, block.index))
            x = block(x)
            if observer is not None:
                observer.forward(block.index)
        return x

    def backward(self, top: Tensor, gradient: Tensor | None = None) -> None:
        """Backward from this segment's output (or a scalar made of it), with the gradient at it."""
        if self._observer is not None:
            self._observer.begin()
        top.backward(gradient)
        if self._observer is not None and self.blocks:
            self._observer.backward(self.blocks[0].index)

    def step(self, rate: float) -> None:
        """Update every block from its gradients, then drop them."""
        if self._observer is not None:
            self._observer.begin()
        for block, parameters, optimizer in zip(self.blocks, self._parameters, self._optimizers, strict=True):
            if optimizer is not None:
                clip_gradients(parameters, self._settings)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if self._observer is not None:
                self._observer.step(block.index)

    def statistics(self) -> list[Tensor]:
        """Copies of all buffers (BatchNorm's running statistics), for :meth:`forget`."""
        return [buffer.clone() for block in self.blocks for buffer in block.buffers()]

    def forget(self, statistics: Sequence[Tensor]) -> None:
        """Undo a forward and backward that must not count: drop gradients, and put buffers back."""
        with torch.no_grad():
            buffers = (buffer for block in self.blocks for buffer in block.buffers())
            for buffer, before in zip(buffers, statistics, strict=True):
                buffer.copy_(before)
        for optimizer in self._optimizers:
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers by the plain model's names; tensors are not copied."""
        return {name: value for block in self.blocks for name, value in block_weights(block).items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in. Raises ModelError where they do not fit."""
        for block in self.blocks:
            load_block_weights(block, weights)

    def optimizer_state(self) -> dict[str, Tensor]:
        """``<parameter name>/<key>`` to tensor, over all blocks; tensors are not copied."""
        state: dict[str, Tensor] = {}
        for block, optimizer in zip(self.blocks, self._optimizers, strict=True):
            if optimizer is not None:
                state.update(optimizer_state(block, optimizer))
        return state

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a state; entries of blocks that are not here are passed over."""
        groups = split_by_block(state, self.blocks)
        for block, optimizer in zip(self.blocks, self._optimizers, strict=True):
            if optimizer is not None:
                load_optimizer_state(block, optimizer, groups.get(block.index, {}))


class Entry:
    """An activation that enters a segment from elsewhere, and the gradient that comes out at it.

    The gradient keeps the strides that it has inside autograd. Accumulated into a leaf's ``grad`` it would take on
    the activation's, and the blocks below the cut would compute other bits than in the unsplit model.

    Attributes
    ----------
    tensor
        What to feed the segment with; same shape, dtype, strides and memory as the activation.
    gradient
        As the activation, once :meth:`Segment.backward` is done.
    """

    def __init__(self, activation: Tensor) -> None:
        self.gradient: Tensor | None = None
        self.tensor: Tensor = _Catch.apply(activation.detach().requires_grad_(), self)


class _Catch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, entry: Entry) -> Tensor:
        ctx.entry = entry
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        (ctx.entry.gradient,) = gradients
        return None, None


def _passed(observer: Observer, block: int, gradient: Tensor) -> None:
    observer.backward(block)


def mean_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, mean over the batch; (B, classes) and (B,) to a scalar."""
    return nn.functional.cross_entropy(logits, target)


def count_correct(logits: Tensor, target: Tensor) -> int:
    """Correct predictions in a batch."""
    return int((logits.detach().argmax(dim=1) == target).sum())


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor has neither NaN nor Inf, in one pass over it."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    low, high = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
