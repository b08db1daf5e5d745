"""Moves layers while an epoch runs: what is measured goes into the book, an allocator plans from it, commands go out.

Planning has a thread of its own, so that neither links nor heads wait for it; a command waits for its client's
next reply. In virtual time there is nobody to keep waiting, and it happens where it falls due.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynsl_app.algorithms import ALGORITHMS
from dynsl_app.allocation.base import Allocator, Report, Situation
from dynsl_app.allocation.choose import make_allocator
from dynsl_app.allocation.limits import Memory, cut_limits
from dynsl_app.cost.model import Costs
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.model.chain import Chain
from dynsl_app.model.probe import CutShape
from dynsl_app.plan import PROMPT, Plan
from dynsl_app.server.book import Book, batch_sizes
from dynsl_app.server.director import Measured
from dynsl_app.server.profiles import known_profiles
from dynsl_app.settings import Settings
from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.profiling import measure
from dynsl_app.wire.base import Scalar, Transfer


@dataclass
class _Course:
    """One client in its epoch.

    ``heard_s``: when it was last done with a batch; ``target``: the cut it has been told to take and has not yet.
    """

    batches: int
    cut: int
    started_s: float
    heard_s: float
    compute_s: float = 0.0
    measured: int = 0
    done: int = 0
    since_move: int = 0
    target: int | None = None
    command: int | None = None
    jumps: int = 0
    paces: int = 0


class Steering:
    """A :class:`~dynsl_app.server.director.Director` for a whole run.

    Parameters
    ----------
    allocator
        Decides, from costs alone.
    book
        What has been learnt; outlives rounds.
    limits
        Floor and ceiling of every client's cut, as the settings say; a client's memory may lower its ceiling.
    workers
        m.
    memory
        What clients need, and may use.
    mid_epoch
        Whether layers may move while an epoch runs; else only between rounds.
    expected
        R_i by client where it is known, and the book has all clients' profiles: the first round is planned too. None:
        it begins as it is told.
    clock
        Seconds, from any origin: virtual in the testbed.
    threaded
        Whether planning has a thread of its own; else it happens within the calls.
    """

    def __init__(
        self,
        allocator: Allocator,
        book: Book,
        limits: Mapping[int, tuple[int, int]],
        workers: int,
        events: EventStream,
        *,
        memory: Memory,
        mid_epoch: bool,
        expected: Mapping[int, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        threaded: bool = True,
    ) -> None:
        self._allocator, self._book, self._limits, self._workers = allocator, book, dict(limits), workers
        self._memory, self._expected = memory, expected
        self._events, self._mid_epoch, self._clock, self._threaded = events, mid_epoch, clock, threaded
        self._news = threading.Condition()
        self._courses: dict[int, _Course] = {}
        self._seen: dict[int, int] = {}
        """Batches of each client over the whole run: the estimators' time."""
        self._cuts: dict[int, int] = {}
        """With which each client opens its stream in this round."""
        self._rounds_batches: dict[int, int] = {}
        """Batches that each client had in its last round."""
        self._opened: set[int] = set()
        """Who has opened a stream in this round."""
        self._reports: dict[int, Report] = {}
        """Each client's last round."""
        self._plan: Plan | None = None
        self._first: dict[int, int] = {}
        """The cuts that were planned for the round that begins next; none where it begins as it was told."""
        self._round = self._total = self._service_jumps = 0
        self._joined = self._jumped = self._due = self._planning = False
        self._planner: threading.Thread | None = None

    def initial(self, plan: Plan) -> Plan:
        """The cuts to begin a round with: the plan's own, within the limits, until all clients are known."""
        self._first = {}
        with self._news:
            batches = self._batches_of(sorted(plan.cuts))
            if batches is None:
                within = {client: self._within(client, cut) for client, cut in plan.cuts.items()}
                return Plan(plan.blocks, plan.boundary, within, plan.heads)
            costs = self._costs(plan, batches, dict.fromkeys(batches, 0), moving=False)
        self._first = self._begun(batches, costs)
        return Plan(plan.blocks, plan.boundary, self._first, plan.heads)

    def join(self, plan: Plan, clients: Sequence[int]) -> dict[int, int]:
        """The cuts with which clients join a round under way: the plan's own until somebody has been measured.

        A newcomer is taken for a typical client until it has told of itself. Those who are there already keep theirs
        for now; that somebody has joined makes a new plan due.
        """
        with self._news:
            if not self._rounds_batches:
                within = {client: self._within(client, plan.cuts[client]) for client in clients}
                self._cuts |= within
                return within
            for client in clients:
                self._book.guess(client)
            usual = round(sum(self._rounds_batches.values()) / len(self._rounds_batches))
            rest = {client: course.batches - course.done for client, course in self._courses.items()}
            rest |= {client: self._rounds_batches.get(client, usual) for client in clients}
            batches = {client: rest[client] for client in sorted(rest)}
            cuts = {client: course.target or course.cut for client, course in self._courses.items()}
            present = {client: cuts.get(client, 0) for client in batches}
            costs = self._costs(plan, batches, present, moving=self._mid_epoch)
        chosen = self._begun(batches, costs)
        joined = {client: chosen[client] for client in clients}
        with self._news:
            self._cuts |= joined
        self._tell(joined)
        return joined

    def _costs(self, plan: Plan, batches: Mapping[int, int], cuts: Mapping[int, int], *, moving: bool) -> Costs:
        return self._book.costs(
            batches, cuts, plan.boundary, self._workers, self._limits, moving=moving, heads=plan.heads
        )

    def _begun(self, batches: Mapping[int, int], costs: Costs) -> dict[int, int]:
        """The allocator's cuts to begin with, by client; planned outside the lock."""
        with self._news:
            last = [self._reports.get(client) for client in batches]
        return dict(zip(batches, self._allocator.initial(costs, last).tolist(), strict=True))

    def _within(self, client: int, cut: int) -> int:
        floor, ceiling = self._limits[client]
        return min(max(cut, floor), ceiling)

    def wants_profile(self, client: int) -> bool:
        """Whether the client shall introduce itself: it has not opened a stream before."""
        with self._news:
            return client not in self._rounds_batches

    def begin(self, round_: int, plan: Plan) -> None:
        """A round begins."""
        with self._news:
            self._round, self._plan, self._total = round_, plan, 0
            self._courses, self._cuts = {}, dict(plan.cuts)
            self._opened = set()
            self._joined = self._jumped = self._due = False
        self._tell(self._first)
        if self._mid_epoch and self._threaded:
            self._planner = threading.Thread(target=self._plan_loop, name="planner", daemon=True)
            self._planner.start()

    def end(self) -> None:
        """The round has ended."""
        with self._news:
            self._plan = None
            self._news.notify_all()
        if self._planner is not None:
            self._planner.join()
            self._planner = None

    def opened(
        self, client: int, batches: int, profile_s: tuple[float, ...] | None, memory_bytes: Scalar = None
    ) -> None:
        """See :meth:`Director.opened`."""
        complaints = []
        with self._news:
            if profile_s is not None:
                try:
                    self._book.introduce(client, profile_s)
                except ValueError as error:
                    complaints.append(str(error))
            if memory_bytes is not None:
                try:
                    self._limits[client] = self._memory.limits(client, self._limits[client], memory_bytes)
                except SettingsError as error:
                    floor = self._limits[client][0]
                    self._limits[client] = floor, floor
                    complaints.append(f"{error}; until then it stays at its floor")
                except ValueError as error:
                    memory_bytes = None
                    complaints.append(str(error))
            known = self._book.client(client)
            now = self._clock()
            paces = known.slowdown.level.jumps
            self._courses[client] = _Course(batches, self._cuts[client], now, now, jumps=known.jumps, paces=paces)
            first = client not in self._rounds_batches
            if client not in self._opened:  # one that comes back has fewer left
                self._rounds_batches[client] = batches
            self._opened.add(client)
            self._joined = True
            round_, block_s, (floor, ceiling) = self._round, list(known.slowdown.block_s), self._limits[client]
        for complaint in complaints:
            self._events.emit("warning", message=complaint)
        if first:
            self._events.emit(
                "profile",
                round=round_,
                client=client,
                block_s=block_s,
                memory_bytes=memory_bytes,
                min_cut=floor,
                max_cut=ceiling,
            )

    def measured(self, client: int, measured: Measured) -> None:
        """See :meth:`Director.measured`."""
        with self._news:
            before = self._book.client(client).complaints
            self._book.measured(client, measured, self._seen.get(client, 0))
            self._notice(client)
            after, course = self._book.client(client).complaints, self._courses.get(client)
            if course is not None and measured.block_s:
                course.compute_s += sum(measured.block_s.values())
                course.measured += 1
        for complaint in after:
            if complaint not in before:
                self._events.emit("warning", message=complaint)

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        """See :meth:`Director.served`."""
        with self._news:
            self._book.service.add_group(head, entries, service_s, wait_s)
            self._jumped |= self._book.service.jumps != self._service_jumps

    def beat(self, client: int, seconds: float) -> None:
        """See :meth:`Director.beat`."""
        with self._news:
            self._book.beat(client, seconds)

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        """See :meth:`Director.coming`."""
        with self._news:
            self._book.coming(client, part, seconds)
            self._notice(client)
            # An upload that hangs keeps its client from being done with a batch, and so from being planned for.
            if self._jumped:
                self._consider()

    def arrived(self, client: int, up: Transfer) -> None:
        """See :meth:`Director.arrived`."""
        with self._news:
            self._book.arrived(client, up, self._seen.get(client, 0))
            self._notice(client)

    def done(self, client: int) -> None:
        """See :meth:`Director.done`."""
        with self._news:
            course = self._courses.get(client)
            if course is None:
                return
            course.done += 1
            course.heard_s = self._clock()
            course.since_move += 1
            self._seen[client] = self._seen.get(client, 0) + 1
            self._total += 1
            self._consider()

    def command(self, client: int, cut: int) -> int | None:
        """See :meth:`Director.command`."""
        with self._news:
            if self._planner is not None and self._plan is not None and cut == self._plan.blocks:
                # It is deaf while it computes: what its own news lead to had better go with this answer.
                patience_s = PROMPT / 2 * sum(self._book.client(client).slowdown.block_s)
                self._news.wait_for(lambda: not (self._due or self._planning), patience_s)
            course = self._courses.get(client)
            if course is None:
                return None
            command, course.command = course.command, None
            if command is None or command == cut:
                return None
            course.target = command
            return command

    def probe(self, client: int) -> int:
        """See :meth:`Director.probe`."""
        with self._news:
            return self._book.probe(client, self._seen.get(client, 0))

    def moved(self, client: int, cut: int) -> None:
        """See :meth:`Director.moved`."""
        with self._news:
            course = self._courses.get(client)
            if course is not None:
                course.cut, course.target, course.since_move = cut, None, 0

    def left(self, client: int) -> None:
        """See :meth:`Director.left`."""
        with self._news:
            course = self._courses.pop(client, None)
            if course is not None:
                self._joined = True
                self._cuts[client] = course.cut
                # The last batch is never told of.
                compute_s = course.compute_s * course.done / max(1, course.measured)
                seconds = self._clock() - course.started_s
                self._reports[client] = Report(course.cut, course.done, compute_s, seconds)

    def _batches_of(self, clients: Sequence[int]) -> dict[int, int] | None:
        """R_i of the round that begins, as far as is known; None if a plan cannot be made from that."""
        known = {client: self._rounds_batches[client] for client in clients if client in self._rounds_batches}
        if self._expected is None:
            return known if len(known) == len(clients) else None
        usual = round(sum(known.values()) / len(known)) if known else _USUAL_BATCHES
        return {client: known.get(client, self._expected.get(client, usual)) for client in clients}

    def _notice(self, client: int) -> None:
        """Note whether an estimate of the client has leapt since it was last planned for."""
        course = self._courses.get(client)
        self._jumped |= course is not None and self._book.client(client).jumps != course.jumps

    def _consider(self) -> None:
        """Wake the planner if it is time to plan."""
        if self._mid_epoch and self._allocator.due(self._total, jumped=self._jumped, joined=self._joined):
            self._due = True
            self._news.notify_all()
            if not self._threaded:
                self._plan_now()

    def _plan_loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._due or self._plan is None)
                if self._plan is None:
                    return
            self._plan_now()

    def _plan_now(self) -> None:
        with self._news:
            self._due, plan = False, self._plan
            self._planning = plan is not None
        if plan is None:
            return
        try:
            self._revise(plan)
        except Exception as error:  # training goes on at the present cuts, whatever is wrong with planning
            self._events.emit("warning", message=f"no plan this time: {type(error).__name__}: {error}")
        finally:
            with self._news:
                self._planning = False
                self._news.notify_all()

    def _revise(self, plan: Plan) -> None:
        with self._news:
            clients = sorted(self._courses)
            if not clients:
                return
            situation = self._situation(clients, plan)
        moves = self._allocator.revise(situation)
        self._apply({clients[row]: cut for row, cut in moves.items()})

    def _situation(self, clients: Sequence[int], plan: Plan) -> Situation:
        courses = [self._courses[client] for client in clients]
        cuts = {client: course.target or course.cut for client, course in zip(clients, courses, strict=True)}
        batches = {client: course.batches - course.done for client, course in zip(clients, courses, strict=True)}
        costs = self._costs(plan, batches, cuts, moving=True)
        service = self._book.service.jumps != self._service_jumps
        jumps = [self._book.client(client).jumps for client in clients]
        paces = [self._book.client(client).slowdown.level for client in clients]
        situation = Situation(
            costs=costs,
            batches_done=np.array([course.done for course in courses], dtype=np.int64),
            since_move=np.array([course.since_move for course in courses], dtype=np.int64),
            moving=np.array([course.target is not None or course.command is not None for course in courses]),
            jumped=np.array([service or n != c.jumps for n, c in zip(jumps, courses, strict=True)]),
            paced=np.array(
                [level.sightings * (level.jumps != c.paces) for level, c in zip(paces, courses, strict=True)],
                dtype=np.int64,
            ),
            in_doubt=np.array([self._in_doubt(client) for client in clients]) | self._silent(courses, costs),
            joined=self._joined,
        )
        for course, count, pace in zip(courses, jumps, paces, strict=True):
            course.jumps, course.paces = count, pace.jumps
        self._service_jumps = self._book.service.jumps
        self._joined = self._jumped = False
        return situation

    def _in_doubt(self, client: int) -> bool:
        """Whether its next batch will tell if something has changed. A doubt that the next left open counts no more."""
        known, seen = self._book.client(client), self._seen.get(client, 0)
        levels = (known.slowdown.level, known.link.up.level, known.link.down.level)
        return any(level.in_doubt and level.age(seen) <= 1 for level in levels)

    def _silent(self, courses: Sequence[_Course], costs: Costs) -> NDArray[np.bool_]:
        """Who takes so long over a batch that it may have been slowed: its report will tell, (N,)."""
        rows = np.arange(len(courses)), costs.current - 1
        expected_s = (costs.cycle_s + costs.server_s)[rows] + self._book.service.wait_s * (costs.server_s[rows[1]] > 0)
        return self._clock() - np.array([course.heard_s for course in courses]) > _LATE * expected_s

    def _apply(self, moves: Mapping[int, int]) -> None:
        given = {}
        with self._news:
            for client, cut in moves.items():
                course = self._courses.get(client)
                if course is not None and course.target is None and cut != course.cut:
                    course.command = given[client] = cut
        self._tell(given)

    def _tell(self, cuts: Mapping[int, int]) -> None:
        """The event of a plan, by client, if there is one."""
        with self._news:
            round_ = self._round
        if cuts:
            self._events.emit("plan", round=round_, cuts={str(client): cut for client, cut in cuts.items()})


_LATE = 1.5
"""Expected times of a batch after which a client that is still at it is in doubt (choice)."""

_USUAL_BATCHES = 50
"""R_i of a client of which nobody knows how much data it has (choice); plans depend on the clients' proportions."""


def make_steering(
    settings: Settings,
    chain: Chain,
    spec: DataSpec,
    cut_shapes: Sequence[CutShape],
    batches: Mapping[int, int],
    events: EventStream,
) -> Steering:
    """Steering for a run; measures the server's own block times first.

    Parameters
    ----------
    batches
        R_i by client, where it is known before the clients are asked.

    Raises
    ------
    SettingsError
        Limits contradict each other, or a client's profile is not one of this run; naming the client.
    """
    limits = cut_limits(settings.allocator, settings.clients, len(chain))
    profiles = known_profiles(settings, chain, spec)
    batch = settings.data.batch
    model = settings.model.label
    profile = measure(chain, spec, batch, settings.optimizer, model=model, device=settings.server.device)
    activations = [shape.bytes_per_sample * batch for shape in cut_shapes]
    sizes = batch_sizes(activations, [block.state_bytes for block in profile.blocks], batch)
    if ALGORITHMS[settings.algorithm.name].local_loss:
        sizes = sizes.without_gradients()
    fleet = settings.fleet
    powers = {client: fleet.power(client) for client in range(settings.clients)} if fleet.devices else {}
    book = Book(profile.block_s, batch, sizes, settings.wire.chunk_bytes, powers)
    for client, known in profiles.items():
        book.introduce(client, known.block_s)
    return Steering(
        make_allocator(settings),
        book,
        limits,
        settings.server.workers,
        events,
        memory=Memory(profile.peak_bytes(), settings.allocator.memory_share),
        mid_epoch=settings.allocator.mid_epoch,
        expected=batches if ALGORITHMS[settings.algorithm.name].profiled else None,
    )
