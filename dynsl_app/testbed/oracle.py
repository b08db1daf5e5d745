"""Plans from the truth: references that nobody without foresight can be expected to beat by much.

``oracle_static`` plans once, at the round's start. ``oracle_paid`` plans again at every change, and its moves take
what moves take; ``oracle`` is the same in a world where state weighs nothing. None of them is a strict bound:
:mod:`dynsl_app.testbed.bound` is.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynsl_app.allocation.refine import EVENTS, refine
from dynsl_app.cost.model import Costs, allowed_cuts, move_costs, server_times, transfer_times
from dynsl_app.cost.queueing import simulate
from dynsl_app.plan import Plan
from dynsl_app.server.director import Measured
from dynsl_app.testbed.links import Constant
from dynsl_app.testbed.simulate import Clock
from dynsl_app.testbed.world import Happening, RatePath, World
from dynsl_app.wire.base import Scalar, Transfer

Limits = Mapping[int, tuple[int, int]]

_GAIN = 0.01
"""Share of the remaining time that a change of plan must save: below it, moves are not worth their own time."""

_LOOKS = 20
"""Plans an epoch, evenly spread, where links vary by themselves (choice)."""


def true_costs(
    world: World,
    time_s: float,
    round_start_s: float,
    batches: Mapping[int, int],
    cuts: Mapping[int, int],
    limits: Limits,
    *,
    boundary: int,
    moving: bool,
) -> Costs:
    """What every cut of every client costs at a time, without jitter; like ``Book.costs``, from the truth.

    Parameters
    ----------
    time_s, round_start_s
        Virtual seconds since the run began.
    batches
        R_i, by client; rows are in this order.
    cuts
        Present cuts; 0 for none.
    """
    state = state_at(world.happenings, time_s - round_start_s)
    clients = [world.clients[client] for client in batches]
    compute = np.array([state.compute.get(client, 1.0) for client in batches])
    link = np.array([state.link.get(client, 1.0) for client in batches])
    rates = [[_rate(path, time_s) for path in (one.up, one.down)] for one in clients]
    up_Bps, down_Bps = (np.array(rates).T * link)[:, :, None]
    rtt_s = np.array([one.rtt_s for one in clients])[:, None]
    current = np.array([cuts[client] for client in batches], dtype=np.int64)
    floor, ceiling = np.array([limits[client] for client in batches], dtype=np.int64).T
    profile = np.cumsum([one.block_s for one in clients], axis=1) + np.array([[one.call_s] for one in clients])
    blocks = world.blocks
    server_s = state.server * server_times(np.array(world.server.block_s), world.server.call_s)
    rest = np.array(list(batches.values()), dtype=np.int64)
    shared_s = float(server_s[boundary - 1]) if boundary < blocks else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):  # a link that carries nothing now, and nothing to carry
        transfer_s = transfer_times(np.array(world.up_bytes), np.array(world.down_bytes), up_Bps, down_Bps, rtt_s)
    move_s = move_bytes = None
    if moving:
        move_s, move_bytes = move_costs(np.array(world.state_bytes), current, up_Bps, down_Bps)
    return Costs(
        names=tuple(str(client) for client in batches),
        batches=rest,
        compute_s=profile * compute[:, None],
        transfer_s=transfer_s,
        server_s=server_s,
        allowed=allowed_cuts(floor, np.minimum(ceiling, boundary), blocks),
        current=current,
        workers=world.server.workers,
        shared_s=shared_s,
        shared_floor_s=shared_s * float(rest.sum()),
        move_s=move_s,
        move_bytes=move_bytes,
    )


@dataclass
class _State:
    """Factors in force."""

    compute: dict[int, float]
    link: dict[int, float]
    server: float = 1.0


def state_at(happenings: Sequence[Happening], since_start_s: float) -> _State:
    """What is in force so many seconds after the round's start, at that very time included."""
    state = _State({}, {})
    for happening in happenings:
        if happening.at_s > since_start_s:
            break
        if happening.client is None:
            state.server = happening.factor
        elif happening.kind == "compute":
            state.compute[happening.client] = happening.factor
        elif happening.kind == "link":
            state.link[happening.client] = happening.factor
    return state


def _rate(path: RatePath, time_s: float) -> float:
    return next(iter(path.segments(time_s)))[1]


@dataclass
class _Present:
    batches: int
    cut: int
    done: int = 0
    command: int | None = None
    target: int | None = None


class Oracle:
    """A director that sees the truth as it is, not as it will be.

    Parameters
    ----------
    static
        Whether it plans at the round's start only.

    Attributes
    ----------
    world
        The truth; may be another one between two rounds.
    """

    def __init__(self, world: World, clock: Clock, limits: Limits, *, static: bool) -> None:
        self.world, self._clock, self._limits, self._static = world, clock, limits, static
        self._courses: dict[int, _Present] = {}
        self._start = 0.0
        self._boundary = world.blocks
        self._cuts: dict[int, int] = {}
        self._times: list[float] = []
        self._planned_s = 0.0
        self._news = False
        self._varies = any(not isinstance(path, Constant) for one in world.clients for path in (one.up, one.down))

    def initial(self, plan: Plan) -> Plan:
        """The best cuts for the round as things are at its start."""
        self._start, self._boundary = self._clock.now, plan.boundary
        batches = {client: self.world.clients[client].batches for client in sorted(plan.cuts)}
        costs = self._costs(batches, dict.fromkeys(batches, 0), moving=False)
        best = refine(costs, events=4 * EVENTS)
        self._times = sorted({self._start + happening.at_s for happening in self.world.happenings})
        if self._varies:
            every = best.epoch_s / _LOOKS
            self._times = sorted({*self._times, *(self._start + every * k for k in range(1, 4 * _LOOKS))})
        chosen = dict(zip(batches, best.cuts.tolist(), strict=True))
        return Plan(plan.blocks, plan.boundary, chosen, plan.heads)

    def wants_profile(self, client: int) -> bool:
        """It knows."""
        return False

    def begin(self, round_: int, plan: Plan) -> None:
        """A round begins."""
        self._courses, self._cuts, self._planned_s, self._news = {}, dict(plan.cuts), self._clock.now, False

    def end(self) -> None:
        """The round has ended."""

    def join(self, plan: Plan, clients: Sequence[int]) -> dict[int, int]:
        """The best cuts for those who come, others as they are."""
        batches = {client: course.batches - course.done for client, course in self._courses.items()}
        batches |= {client: self.world.clients[client].batches for client in clients}
        batches = dict(sorted(batches.items()))
        cuts = {client: self._courses[client].cut if client in self._courses else 0 for client in batches}
        best = refine(self._costs(batches, cuts, moving=not self._static))
        chosen = dict(zip(batches, best.cuts.tolist(), strict=True))
        self._cuts |= {client: chosen[client] for client in clients}
        return {client: chosen[client] for client in clients}

    def opened(
        self, client: int, batches: int, profile_s: tuple[float, ...] | None, memory_bytes: Scalar = None
    ) -> None:
        """See :meth:`Director.opened`."""
        self._courses[client] = _Present(batches, self._cuts[client])
        self._news = self._clock.now > self._start

    def measured(self, client: int, measured: Measured) -> None:
        """It knows."""

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        """It knows."""

    def beat(self, client: int, seconds: float) -> None:
        """It knows."""

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        """It knows."""

    def arrived(self, client: int, up: Transfer) -> None:
        """It knows."""

    def probe(self, client: int) -> int:
        """It needs none."""
        return 0

    def done(self, client: int) -> None:
        """See :meth:`Director.done`."""
        self._courses[client].done += 1
        now = self._clock.now
        if self._static:
            return
        changed = bisect_right(self._times, now) > bisect_right(self._times, self._planned_s)
        if changed or self._news:
            self._planned_s, self._news = now, False
            self._revise()

    def _revise(self) -> None:
        batches = {client: course.batches - course.done for client, course in sorted(self._courses.items())}
        cuts = {client: self._courses[client].target or self._courses[client].cut for client in batches}
        costs = self._costs(batches, cuts, moving=True)
        best = refine(costs, events=4 * EVENTS)
        at_present = np.arange(len(costs.names)), costs.current - 1
        endless = np.isinf(costs.c[at_present]).any()
        if not endless and best.epoch_s > simulate(costs, costs.current).epoch_s * (1 - _GAIN):
            return
        for client, cut in zip(batches, best.cuts.tolist(), strict=True):
            course = self._courses[client]
            course.command = cut if cut != course.cut and batches[client] else None

    def command(self, client: int, cut: int) -> int | None:
        """See :meth:`Director.command`."""
        course = self._courses.get(client)
        if course is None or course.command is None:
            return None
        course.target, course.command = course.command, None
        return course.target

    def moved(self, client: int, cut: int) -> None:
        """See :meth:`Director.moved`."""
        if client in self._courses:
            self._courses[client].cut, self._courses[client].target = cut, None

    def left(self, client: int) -> None:
        """See :meth:`Director.left`."""
        course = self._courses.pop(client, None)
        if course is not None:
            self._cuts[client] = course.cut
            self._news = True

    def _costs(self, batches: Mapping[int, int], cuts: Mapping[int, int], *, moving: bool) -> Costs:
        return true_costs(
            self.world,
            self._clock.now,
            self._start,
            batches,
            cuts,
            self._limits,
            boundary=self._boundary,
            moving=moving,
        )
