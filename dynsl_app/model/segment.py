"""Consecutive blocks of one owner, with one optimizer each: what a client and a server copy both are.

The same code trains a block on either side of the cut, which is what makes placement free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        self._settings = settings
        self._per_member = per_member
        self._observer = observer
        self._parts: list[_Part] = []
        self._unseen: list[int] = []
        """Blocks of the last forward whose input has no gradient, so that only the end of the backward ends theirs."""
        for block in blocks:
            self._add(block)

    @property
    def blocks(self) -> list[Block]:
        """The blocks held, in order."""
        return [part.block for part in self._parts]

    def forward(self, x: Tensor, members: Members) -> Tensor:
        """Training forward of one batch, (B, …) to (B, …)."""
        observer = self._observer
        if observer is not None:
            observer.begin()
        self._unseen = []
        for position, block in enumerate(self.blocks):
            seed_dropout(block, members)
            if self._per_member:
                set_members(block, [size for _, size in members])
            if observer is not None and position and x.requires_grad:
                # The gradient at a block's input is there when its backward is done.
                x.register_hook(partial(_passed, observer, block.index))
            else:
                self._unseen.append(block.index)
            x = block(x)
            if observer is not None:
                observer.forward(block.index)
        return x

    def backward(self, top: Tensor, gradient: Tensor | None = None) -> None:
        """Backward from this segment's output (or a scalar made of it), with the gradient at it.

        Does nothing where no block below has anything to train (one that only flattens).
        """
        if self._observer is not None:
            self._observer.begin()
        if top.requires_grad:
            top.backward(gradient)
        if self._observer is not None:
            for block in reversed(self._unseen):
                self._observer.backward(block)

    def step(self, rate: float) -> None:
        """Update every block from its gradients, then drop them."""
        if self._observer is not None:
            self._observer.begin()
        for part in self._parts:
            if part.optimizer is not None:
                clip_gradients(part.parameters, self._settings)
                for group in part.optimizer.param_groups:
                    group["lr"] = rate
                part.optimizer.step()
                part.optimizer.zero_grad(set_to_none=True)
            if self._observer is not None:
                self._observer.step(part.block.index)

    def statistics(self) -> list[Tensor]:
        """Copies of all buffers (BatchNorm's running statistics), for :meth:`forget`."""
        return [buffer.clone() for buffer in self.buffers()]

    def buffers(self) -> list[Tensor]:
        """All buffers, in order; not copied."""
        return [buffer for block in self.blocks for buffer in block.buffers()]

    def gradients(self) -> list[Tensor]:
        """What the last backward left, in order; not copied."""
        parameters = (parameter for part in self._parts for parameter in part.parameters)
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def forget(self, statistics: Sequence[Tensor]) -> None:
        """Undo a forward and backward that must not count: drop gradients, and put buffers back."""
        with torch.no_grad():
            for buffer, before in zip(self.buffers(), statistics, strict=True):
                buffer.copy_(before)
        for part in self._parts:
            if part.optimizer is not None:
                part.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers by the plain model's names; tensors are not copied."""
        return {name: value for block in self.blocks for name, value in block_weights(block).items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in. Raises ModelError where they do not fit."""
        for block in self.blocks:
            load_block_weights(block, weights)

    def optimizer_state(self) -> dict[str, Tensor]:
        """``<parameter name>/<key>`` to tensor, over all blocks; tensors are not copied."""
        return {path: value for part in self._parts for path, value in part.optimizer_state().items()}

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a state; entries of blocks that are not here are passed over."""
        groups = split_by_block(state, self.blocks)
        for part in self._parts:
            part.load_optimizer_state(groups.get(part.block.index, {}))

    def export(self, low: int, high: int) -> dict[str, Tensor]:
        """Everything that blocks low+1..high are: weights, buffers, optimizer state, to be installed elsewhere.

        Tensors are not copied: the blocks must be released before the next step.
        """
        state: dict[str, Tensor] = {}
        for part in self._parts:
            if low < part.block.index <= high:
                state.update({_WEIGHT + name: value for name, value in block_weights(part.block).items()})
                state.update({_OPTIMIZER + path: value for path, value in part.optimizer_state().items()})
        return state

    def install(self, blocks: Sequence[Block], state: Mapping[str, Tensor]) -> None:
        """Take over blocks with the state that :meth:`export` gave where they were.

        Raises
        ------
        ModelError
            The state does not fit; then nothing is taken over.
        """
        weights = {name.removeprefix(_WEIGHT): value for name, value in state.items() if name.startswith(_WEIGHT)}
        moments = {name.removeprefix(_OPTIMIZER): value for name, value in state.items() if name.startswith(_OPTIMIZER)}
        arrived = Segment(blocks, self._settings)
        arrived.load_weights(weights)
        arrived.load_optimizer_state(moments)
        self._parts = sorted([*self._parts, *arrived._parts], key=lambda part: part.block.index)

    def release(self, low: int, high: int) -> list[Block]:
        """Let go of blocks low+1..high."""
        gone = [part.block for part in self._parts if low < part.block.index <= high]
        self._parts = [part for part in self._parts if not low < part.block.index <= high]
        return gone

    def _add(self, block: Block) -> None:
        parameters = list(block.parameters())
        block.train()
        self._parts.append(_Part(block, parameters, make_optimizer(parameters, self._settings) if parameters else None))


_WEIGHT, _OPTIMIZER = "weight/", "optimizer/"
"""Prefixes of what :meth:`Segment.export` names."""


def is_state(name: str) -> bool:
    """Whether a tensor's name is one that :meth:`Segment.export` gives."""
    return name.startswith((_WEIGHT, _OPTIMIZER))


@dataclass(frozen=True)
class _Part:
    """A block and its optimizer; None for a block without parameters."""

    block: Block
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer | None

    def optimizer_state(self) -> dict[str, Tensor]:
        return {} if self.optimizer is None else optimizer_state(self.block, self.optimizer)

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        if self.optimizer is not None:
            load_optimizer_state(self.block, self.optimizer, state)


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
        # The entry holds the tensor that holds this node: let go, or every batch's activation would stay for ever.
        entry, ctx.entry = ctx.entry, None
        (entry.gradient,) = gradients
        return None, None


def _passed(observer: Observer, block: int, gradient: Tensor) -> None:
    observer.backward(block)


def mean_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, mean over the batch; (B, classes) and (B,) to a scalar."""
    return nn.functional.cross_entropy(logits, target)


def count_correct(logits: Tensor, target: Tensor) -> int:
    """Correct predictions in a batch."""
    return int((logits.detach().argmax(dim=1) == target).sum())


CALM_DOWN = "lower optimizer.lr, or clip gradients (optimizer.clip=value)"
"""What to do about NaN and Inf, for messages to people."""


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor has neither NaN nor Inf, in one pass over it."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    low, high = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
