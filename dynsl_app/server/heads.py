"""All blocks that the server holds in one round: private copies per client, and shared heads.

Knows tensors and groups, nothing of links or threads. Groups of different lanes may run at the same time; a lane is
used by one thread at a time (:mod:`dynsl_app.server.batching` sees to it).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dynsl_app.algorithms import ALGORITHMS
from dynsl_app.errors import ModelError
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.segment import CALM_DOWN, Entry, Members, Segment, all_finite, count_correct, mean_loss
from dynsl_app.plan import BatchKey, Plan
from dynsl_app.settings import Settings


@dataclass(frozen=True)
class Work:
    """One client's batch at its cut: activation (B, …), target (B,), and the learning rate of that batch.

    ``cut`` may be a new one that holds from this batch on; ``state`` is what the client then sent of the blocks that it
    gave up.
    """

    key: BatchKey
    activation: Tensor
    target: Tensor
    rate: float
    cut: int
    state: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What goes back to the client: gradient at the cut (as the activation), mean loss, correct predictions.

    Without gradient where clients train on losses of their own.
    """

    gradient: Tensor | None
    loss: float
    correct: int


@dataclass(frozen=True)
class Refused:
    """Why a client's batch was not trained on."""

    reason: str


class _NotFinite(Exception):
    """Some members of a group have NaN or Inf, by position."""

    def __init__(self, members: list[int], what: str) -> None:
        super().__init__(what)
        self.members, self.what = members, what


def _require(tensors: Sequence[Tensor], what: str) -> None:
    bad = [position for position, tensor in enumerate(tensors) if not all_finite(tensor)]
    if bad:
        raise _NotFinite(bad, what)


class Heads:
    """Private copies and shared heads of one round.

    Parameters
    ----------
    chain
        The merged model at the start of the round; blocks are copied from it, never changed.
    plan, settings
        Cuts, boundary and heads of the round.
    head_states
        Optimizer state of the shared heads that outlives the round, by head; may be empty.
    """

    def __init__(
        self, chain: Chain, plan: Plan, settings: Settings, head_states: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        self._chain, self._plan, self._settings = chain, plan, settings
        self._device = settings.server.device
        self._returns = not ALGORITHMS[settings.algorithm.name].local_loss
        self._private: dict[int, Segment] = {}
        self._cuts = dict(plan.cuts)
        self._shared: list[Segment] = []
        for head in range(plan.heads):
            segment = self._copy(plan.boundary, plan.blocks, per_member=settings.heads.batchnorm == "per_request")
            segment.load_optimizer_state(head_states.get(head, {}))
            self._shared.append(segment)

    def open(self, client: int, local: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Make the client's private copies of blocks n_i+1..b.

        Parameters
        ----------
        local
            Weights that are this client's own instead of the merged model's (``server.batchnorm=local``).
        optimizer
            Its optimizer state that outlives the round; may be empty.
        """
        segment = self._copy(self._plan.cuts[client], self._plan.boundary)
        if local:
            segment.load_weights({**segment.weights(), **local})
        segment.load_optimizer_state(optimizer)
        self._private[client] = segment

    def export(self, client: int, cut: int) -> dict[str, Tensor]:
        """State of the private blocks up to a higher cut, after the last step. They stay until :meth:`move`."""
        return self._private[client].export(self._cuts[client], cut)

    def move(self, client: int, cut: int, state: Mapping[str, Tensor]) -> None:
        """Place the client's cut anew, between two of its batches.

        Parameters
        ----------
        state
            Of the blocks that come to the server, for a lower cut. For a higher one they are let go: the client has
            got them.

        Raises
        ------
        ModelError
            The state does not fit those blocks.
        """
        before = self._cuts[client]
        if cut < before:
            self._private[client].install(self._blocks(cut, before), state)
        else:
            self._private[client].release(before, cut)
        self._cuts[client] = cut

    def private(self, client: int) -> Segment:
        """The client's private blocks on the server."""
        return self._private[client]

    def shared(self, head: int) -> Segment:
        """A shared head."""
        return self._shared[head]

    def backward(self, works: Sequence[Work]) -> list[Result | Refused]:
        """Forward and backward of one group as one batch; :meth:`step` must follow if any result is a Result.

        Members are refused one by one, for non-finite activations, losses or gradients, and the rest runs without
        them, as if they had never been in the group. Results are in the order of ``works``.
        """
        refused: dict[int, Refused] = {}
        for position, work in enumerate(works):
            if not all_finite(work.activation):
                refused[position] = Refused(f"batch {work.key.batch}: its activation has NaN or Inf; {CALM_DOWN}")
            else:
                try:
                    self.move(work.key.client, work.cut, work.state)
                except ModelError as error:
                    refused[position] = Refused(f"batch {work.key.batch}: its blocks cannot be moved: {error}")
        while kept := [position for position in range(len(works)) if position not in refused]:
            members = [works[position] for position in kept]
            undo = self._undo(members)
            try:
                done = dict(zip(kept, self._run(members), strict=True))
            except _NotFinite as error:
                undo()
                for i in self._culprits(members, error.members):
                    reason = f"batch {members[i].key.batch}: its {error.what} has NaN or Inf; {CALM_DOWN}"
                    refused[kept[i]] = Refused(reason)
            except Exception as error:  # whatever a model raises harms only the members of this group
                undo()
                for i, work in zip(kept, members, strict=True):
                    refused[i] = Refused(f"batch {work.key.batch}: the server cannot train on it: {error}")
            else:
                return [refused.get(i) or done[i] for i in range(len(works))]
        return [refused[i] for i in range(len(works))]

    def step(self, works: Sequence[Work]) -> None:
        """Update what the group trained: each member's private blocks, and the shared head once."""
        # A joint step has one rate; members of one group are at the same place of their schedules, or nearly so.
        rates = [work.rate for work in works] + [works[0].rate]
        for segment, rate in zip(self._segments([work.key.client for work in works]), rates, strict=False):
            segment.step(rate)

    def finite(self, client: int) -> bool:
        """Whether what the server trained for a client, its shared head included, has neither NaN nor Inf."""
        return all(all_finite(value) for segment in self._segments([client]) for value in segment.weights().values())

    def _undo(self, works: Sequence[Work]) -> Callable[[], None]:
        """What undoes the forward and backward that come next."""
        # With separate heads a refused client is alone: there is nobody for whom to undo anything.
        segments = self._segments([work.key.client for work in works]) if self._shared else []
        before = [segment.statistics() for segment in segments]

        def undo() -> None:
            for segment, statistics in zip(segments, before, strict=True):
                segment.forget(statistics)

        return undo

    def _culprits(self, works: Sequence[Work], suspects: list[int]) -> list[int]:
        """Those whose batch is not finite alone either: BatchNorm and the joint gradient spread it to all members."""
        if len(suspects) == 1:
            return suspects
        alone: list[int] = []
        for i in suspects:
            undo = self._undo([works[i]])
            try:
                self._run([works[i]])
            except _NotFinite:
                alone.append(i)
            finally:
                undo()
        return alone or suspects

    def _run(self, works: Sequence[Work]) -> list[Result]:
        inputs = [work.activation.to(self._device) for work in works]
        entries = [Entry(activation) for activation in inputs] if self._returns else []
        targets = [work.target.to(self._device) for work in works]
        members = [(work.key, len(work.target)) for work in works]
        tops = [
            self._private[work.key.client].forward(x, [member])
            for work, x, member in zip(works, [entry.tensor for entry in entries] or inputs, members, strict=True)
        ]
        head = self._plan.head_of(works[0].key.client)
        if head is None:
            logits = tops
            losses = [mean_loss(tops[0], targets[0])]
            _require(losses, "loss")
            self._private[works[0].key.client].backward(losses[0])
        else:
            logits, losses = self._joint(self._shared[head], tops, targets, members)
        gradients = [entry.gradient for entry in entries if entry.gradient is not None]
        _require(gradients, "gradient at the cut")
        returned = [gradient.to("cpu") for gradient in gradients] if self._returns else [None] * len(works)
        return [
            Result(gradient, float(loss.detach()), count_correct(part, target))
            for gradient, loss, part, target in zip(returned, losses, logits, targets, strict=True)
        ]

    def _joint(
        self, head: Segment, tops: Sequence[Tensor], targets: Sequence[Tensor], members: Members
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One step's backward through a shared head and its members' private blocks: logits and losses by member.

        The graph is cut at the boundary so that every member's share of the joint gradient can be rescaled to
        the gradient of its own mean loss before it enters its private blocks (ALGORITHMS §2).
        """
        sizes = [size for _, size in members]
        joint = Entry(torch.cat([top.detach() for top in tops]) if len(tops) > 1 else tops[0])
        logits = head.forward(joint.tensor, members)
        parts = list(logits.split(sizes))
        with torch.no_grad():
            losses = [mean_loss(part, target) for part, target in zip(parts, targets, strict=True)]
        _require(losses, "loss")
        head.backward(mean_loss(logits, torch.cat(list(targets))))
        for what, tensors in (("gradient", head.gradients()), ("running statistics", head.buffers())):
            if not all(map(all_finite, tensors)):
                raise _NotFinite(list(range(len(tops))), f"{what} in the shared head")
        assert joint.gradient is not None
        total = sum(sizes)
        for (key, size), top, share in zip(members, tops, joint.gradient.split(sizes), strict=True):
            self._private[key.client].backward(top, share * (total / size) if size != total else share)
        return parts, losses

    def _segments(self, clients: Sequence[int]) -> list[Segment]:
        """What a group runs through: each member's private blocks, then their shared head if there is one."""
        own = [self._private[client] for client in clients]
        head = self._plan.head_of(clients[0])
        return own if head is None else [*own, self._shared[head]]

    def _copy(self, low: int, high: int, *, per_member: bool = False) -> Segment:
        return Segment(self._blocks(low, high), self._settings.optimizer, per_member=per_member)

    def _blocks(self, low: int, high: int) -> list[Block]:
        return [copy.deepcopy(block).to(self._device) for block in self._chain.span(low, high)]
