"""DynSL's allocator (ALGORITHMS §6): plan by the refined solver, move when it pays, and not too often.

When a plan is applied, and what of it:

* **Gain.** Only a plan that simulation ends ``min_gain`` sooner than today's cuts, moves included.
* **Settling.** A client is left alone until ``settle`` of its batches were measured at its present cut, and while its
  last measurement is in doubt: its next one tells.
* **Cool-down.** For ``cooldown`` batches after a move a client may go on in the same direction but not back. Going back
  within twice the cool-down in force, or 20 batches, doubles it; a client that stayed longer starts anew (choice). So a
  lasting change is met soon, and one that comes and goes every few batches costs ever fewer moves: a client that goes
  back as soon as it may does so after 1, 2, 4, … cool-downs, log2(R / cooldown + 1) times in R batches. It is short,
  because it is counted in batches, and those of a client at the wrong cut are long.
* **Guard** (ski rental). A move that takes its client longer than one batch waits until what was lost by not moving has
  reached ``guard`` of the move's time. Where the device itself has changed its pace, what was lost before that was seen
  counts; not where its link has fallen, for that makes the move dear as well, and may pass. The account is closed when
  the plan no longer wants such a move. Meanwhile its client stays where it is: a cheap move would leave it half-way,
  where it has to settle again.

What a cool-down forbids is barred before planning. A client that has to settle, or waits for a guard, will be free
within a few batches: it is planned for as if it were free, so that others need not make up for where it is now.
The part of a plan that is possible now is applied unless simulation ends it later than today's cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dynsl_app.allocation.base import Report, Situation
from dynsl_app.allocation.refine import Refined, refine
from dynsl_app.allocation.solver import solve
from dynsl_app.allocation.thrift import thrifty
from dynsl_app.cost.model import Costs, Floats, Ints
from dynsl_app.cost.queueing import simulate
from dynsl_app.settings import AllocatorSettings

Bools = NDArray[np.bool_]

_EVENTS = 30_000
"""Simulated requests that a search in mid-epoch may cost: half of what planning at leisure takes (choice)."""

_LASTING = 20
"""Batches in one place after which a client's earlier moves are not held against it (choice)."""

_CALM = 64
"""Clients above which somebody's estimate always jumps: more of them wait for one another's news (choice)."""

_SEARCHED_BATCHES, _SEARCHED_CLIENTS = 15_000, 500
"""Left in the fleet; with more, plans are compared but not searched: that would take seconds (choice)."""


@dataclass
class _Memory:
    """What is remembered of one client during an epoch.

    Attributes
    ----------
    cut, done
        When last seen.
    heading
        Sign of its last move; 0 before it has moved.
    moved_at, jumped_at
        ``done`` when its last move and its last jump were seen; when it was first seen before these.
    cooldown
        In force after its last move, batches.
    rate_s
        Seconds an epoch loses with each batch that the client does without the costly move it needs.
    lost_s
        Those seconds so far.
    paced_at
        ``done`` when its device took its present pace, if it has changed it since its last move.
    """

    cut: int
    done: int
    cooldown: int
    moved_at: int
    jumped_at: int
    heading: int = 0
    rate_s: float = 0.0
    lost_s: float = 0.0
    paced_at: int | None = None


class DynslAllocator:
    """Decides on cuts by what the epoch's rest would take; see the module for the rules.

    Deterministic. What it keeps between calls: a few numbers on each client of the present epoch, by name, and when it
    was last asked. An epoch begins anew for a client whose count of batches has fallen.
    """

    def __init__(self, settings: AllocatorSettings) -> None:
        self._settings = settings
        self._memories: dict[str, _Memory] = {}
        self._clients = 1
        self._asked_at = 0
        self._alert = False

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        """Cuts to begin an epoch with, int64 (N,); the last round is in the costs already."""
        return _best(costs).cuts

    def due(self, batches_total: int, *, jumped: bool, joined: bool) -> bool:
        """Whether to revise: every ``period`` batches of an average client, sooner when something has happened.

        At once on a jump, a join or a leave (large fleets: not within an average client's batch); and with every batch
        of an average client for some time after a jump, and while a guard is counting.
        """
        if batches_total < self._asked_at:  # a new epoch
            self._asked_at = 0
        waited = batches_total - self._asked_at
        if jumped or joined:
            pause = max(0, self._clients - _CALM)
        else:
            pause = self._clients * (1 if self._alert else self._settings.period)
        if waited < pause:
            return False
        self._asked_at = batches_total
        return True

    def revise(self, situation: Situation) -> dict[int, int]:
        """Moves to command now: row to new cut. Empty: all stay.

        A client whose present cut is not allowed, or never ends, moves without regard to gain, settling and guard.
        """
        costs = situation.costs
        self._clients = len(costs.names)
        memories = self._observe(situation)
        at_present = np.arange(self._clients), costs.current - 1
        endless = ~situation.moving & (costs.batches > 0) & np.isinf(costs.c[at_present])
        stuck = endless | (costs.current == 0)
        choices = self._choices(situation, memories, stuck)
        now = _within(costs, choices)
        plan = self._gainful(now)
        batch_s = (costs.cycle_s + costs.server_s)[at_present]
        waiting = self._account(now, memories, plan, np.where(stuck, np.inf, batch_s))
        settled = ~situation.in_doubt & (situation.since_move >= self._settings.settle)
        free = ~situation.moving & (costs.batches > 0) & (stuck | settled) & ~waiting

        recent = self._settings.cooldown
        self._alert = bool(waiting.any()) or any(memory.done - memory.jumped_at < recent for memory in memories)
        if plan is None:
            return {}
        part = np.where(free, plan.cuts, costs.current)
        moves = np.flatnonzero((part != costs.current) & (costs.batches > 0))
        partial = len(moves) and (part != plan.cuts).any() and not stuck.any()
        if partial and simulate(now, part).epoch_s > simulate(now, costs.current).epoch_s:
            return {}
        return {int(row): int(part[row]) for row in moves}

    def _observe(self, situation: Situation) -> list[_Memory]:
        """Bring the memories up to date, in the order of rows; those who left are forgotten."""
        base = self._settings.cooldown
        memories: list[_Memory] = []
        rows = zip(
            situation.costs.names,
            situation.costs.current.tolist(),
            situation.batches_done.tolist(),
            situation.jumped.tolist(),
            situation.paced.tolist(),
            strict=True,
        )
        for name, cut, done, jumped, paced in rows:
            memory = self._memories.get(name)
            if memory is None or done < memory.done:
                memory = _Memory(cut, done, base, moved_at=done, jumped_at=done)
            memory.lost_s += memory.rate_s * (done - memory.done)
            if cut != memory.cut:
                heading = 1 if cut > memory.cut else -1
                if done - memory.moved_at >= max(2 * memory.cooldown, _LASTING):
                    memory.cooldown = base
                elif heading == -memory.heading:
                    memory.cooldown *= 2
                memory.heading, memory.moved_at = heading, done
                memory.rate_s = memory.lost_s = 0.0
                memory.paced_at = None
            if jumped:
                memory.jumped_at = done
            if paced:
                memory.paced_at = max(memory.moved_at, done - paced)
            memory.cut, memory.done = cut, done
            memories.append(memory)
        self._memories = dict(zip(situation.costs.names, memories, strict=True))
        return memories

    def _choices(self, situation: Situation, memories: list[_Memory], stuck: Bools) -> Bools:
        """Cuts that each client may have as soon as it has settled, its present one among them, (N, L)."""
        costs = situation.costs
        heading = np.array([memory.heading for memory in memories])
        cooldown = np.array([memory.cooldown for memory in memories])
        cooling = (heading != 0) & (situation.since_move < cooldown)
        step = np.sign(np.arange(1, costs.c.shape[1] + 1) - costs.current[:, None])
        onward = ~cooling[:, None] | (step == heading[:, None])
        choices: Bools = costs.allowed & (stuck[:, None] | ((costs.batches > 0)[:, None] & onward))
        choices |= (step == 0) & ~stuck[:, None]
        return choices

    def _gainful(self, costs: Costs) -> Refined | None:
        """The best plan within the costs' allowed cuts, if it gains enough on today's."""
        if (costs.allowed.sum(axis=1) <= 1).all() and _ends(costs):
            return None
        today_s = simulate(costs, costs.current).epoch_s if _ends(costs) else np.inf
        limit_s = today_s * (1 - self._settings.min_gain)
        # No plan ends before the bound, and most calls need no more than that to know that all stay.
        if solve(costs).bound_s >= limit_s:
            return None
        plan = _best(costs, events=_EVENTS)
        return plan if plan.epoch_s < limit_s else None

    def _account(self, costs: Costs, memories: list[_Memory], plan: Refined | None, cheap_s: Floats) -> Bools:
        """Whose costly move in the plan has to wait, (N,); what waiting loses is charged with their next batches.

        ``cheap_s``: how long a move of each client may take without waiting, seconds, (N,).
        """
        rows = np.arange(self._clients)
        costly = np.zeros(self._clients, dtype=bool)
        price_s: Floats = np.zeros(self._clients)
        lost_s = 0.0
        if plan is not None and costs.move_s is not None:
            price_s = costs.move_s[rows, plan.cuts - 1]
            costly = (plan.cuts != costs.current) & (price_s > cheap_s)
            if costly.any():
                # What the costly moves together bring, their own time apart.
                paid = replace(costs, move_s=np.where(costly[:, None], 0.0, costs.move_s))
                without = np.where(costly, costs.current, plan.cuts)
                lost_s = max(0.0, simulate(paid, without).epoch_s - simulate(paid, plan.cuts).epoch_s)
        waiting = costly.copy()
        for row, memory in enumerate(memories):
            if not costly[row]:
                memory.rate_s = memory.lost_s = 0.0
                continue
            opened, memory.rate_s = memory.rate_s == 0, lost_s / float(costs.batches[row])
            if opened and memory.paced_at is not None:
                memory.lost_s = memory.rate_s * (memory.done - memory.paced_at)
            # To the nearest batch: those that a costly move is for are long.
            waiting[row] = memory.lost_s + memory.rate_s / 2 < self._settings.guard * price_s[row]
        return waiting


def _ends(costs: Costs) -> bool:
    """Whether every client has a present cut that is allowed and takes a finite time."""
    at_present = np.arange(len(costs.names)), costs.current - 1
    return bool((costs.current > 0).all() and np.isfinite(costs.c[at_present]).all())


def _within(costs: Costs, choices: Bools) -> Costs:
    """The same with these cuts only; who is done, or can take none of them in a finite time, takes no part."""
    with np.errstate(over="ignore", invalid="ignore"):
        seconds = costs.batches[:, None] * (costs.cycle_s + costs.server_s)
        if costs.move_s is not None:
            seconds = seconds + costs.move_s
    planned: Bools = (choices & np.isfinite(seconds)).any(axis=1) & (costs.batches > 0)
    return replace(
        costs,
        allowed=choices,
        batches=np.where(planned, costs.batches, 0),
        compute_s=np.where(planned[:, None], costs.compute_s, 0.0),
        transfer_s=np.where(planned[:, None], costs.transfer_s, 0.0),
    )


def _best(costs: Costs, *, events: int = 2 * _EVENTS) -> Refined:
    """The best plan that can be found in bounded time."""
    if len(costs.names) <= _SEARCHED_CLIENTS and costs.batches.sum() <= _SEARCHED_BATCHES:
        return refine(costs, events=events)
    return thrifty(costs, refine(costs, events=0))
