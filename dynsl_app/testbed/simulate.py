"""One round in virtual time: clients, links and the server's workers as events on a heap.

What decides is the real thing: the batching policies (:mod:`dynsl_app.server.batching`), and whatever
:class:`~dynsl_app.server.director.Director` the run has, told exactly what the controller would tell it: times by the
receivers' clocks, one batch late, never the truth. A heap instead of SimPy, whose processes cost several times more,
because 10 000 clients are to fit (choice).

The model (choices where ALGORITHMS §10 leaves them open): a batch is forward (a third of its compute), upload,
queue, service, download, backward and step; half a round trip goes with each direction; a client's link is its own,
the server's access link is passed one transfer after another where it has a limit; what changes a device counts from
its next batch on, what changes a link counts at once. Planning takes no virtual time.
"""

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate
from typing import Protocol

from dynsl_app.plan import PROMPT, Plan
from dynsl_app.seeds import derive_seed
from dynsl_app.server.batching import Group, Policy, Request, Scheduler
from dynsl_app.server.director import Director, Measured
from dynsl_app.telemetry.events import EventStream
from dynsl_app.testbed.links import Scale, advance, alive_from, finish, passes
from dynsl_app.testbed.world import Client, Happening, RatePath, World
from dynsl_app.wire.base import Transfer

FORWARD = 1 / 3
"""Share of forward in a batch's compute: backward costs twice as much."""

_LOOK_S, _LOOKS_APART = 0.5, 0.25
"""Between two looks at an upload that is still coming: seconds, or this share of what it has taken by then if that is
more. The controller looks every 0.1 s; but nothing is overdue before it has taken the time of two, so that looks that
spread tell as much, and a transfer of any length costs few (choices)."""


class Clock:
    """Virtual time, in seconds since the run began; calling it reads it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Joiner(Protocol):
    """Says with which cuts clients join a round under way."""

    def join(self, plan: Plan, clients: Sequence[int]) -> Mapping[int, int]:
        """Cuts of the clients that join now."""
        ...


Done = tuple[int, float, int]
"""Of a batch: samples, mean loss, correct predictions."""


class Compute(Protocol):
    """What is computed, and when: nothing in phantom runs, else :class:`~dynsl_app.testbed.compute.RealCompute`.

    Where a reason is returned instead of numbers, the client is lost.
    """

    def open(self, client: int, cut: int) -> None:
        """A client begins its round."""
        ...

    def forward(self, client: int, batch: int) -> None:
        """A client's forward to its cut."""
        ...

    def serve(self, members: Sequence[tuple[int, int]]) -> Sequence[Done | str]:
        """The server's part of a group of (client, batch)."""
        ...

    def backward(self, client: int, batch: int) -> None:
        """A client's backward and step, with the gradient that the server gave."""
        ...

    def local(self, client: int, batch: int) -> Done | str:
        """A batch of a fully local client."""
        ...

    def move(self, client: int, cut: int) -> None:
        """A client takes a new cut, between two batches."""
        ...


@dataclass
class Course:
    """One client's round; only :class:`Simulation` changes it.

    Attributes
    ----------
    batch, batches
        The batch under way, from 0, and R_i.
    started_s, ended_s
        Virtual seconds; None while it has not.
    lost
        Why it is lost, if it is.
    samples, loss_sum, correct
        Over the batches done, where something is computed.
    """

    client: int
    truth: Client
    cut: int
    lane: int
    batches: int
    draws: random.Random
    scale: Scale
    batch: int = 0
    present: bool = False
    started_s: float | None = None
    ended_s: float | None = None
    lost: str | None = None
    generation: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    # How things are now.
    compute: float = 1.0
    leaving: bool = False
    # Of its last move: the cut before it while the server has not seen the new one, and the state to go up.
    before: int | None = None
    given: float = 0.0
    # Commanded, and not taken yet; readable by a fully local client from told_s on.
    told: int | None = None
    told_s: float = 0.0
    # Measured of the batch before, for the next frame.
    news: Measured | None = None
    # Of the batch under way.
    jitter: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    slowness: float = 1.0
    compute_s: float = 0.0
    # Of the batch that was sent last: its number, the server's luck with it, what its frame tells of the one before,
    # its samples once they are computed.
    sent: int = 0
    luck: float = 1.0
    told_news: Measured | None = None
    size: int = 0
    sent_s: float = 0.0
    up: Transfer | None = None
    down: Transfer | None = None
    held_s: float = 0.0
    # Until when no heartbeat is due.
    beat_s: float = 0.0
    # Bytes of a probe, to go with a fully local client's next frame.
    asked: int = 0

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes up (from the client) and down, in whole ones."""
        return int(self.bytes_up), int(self.bytes_down)

    @property
    def finished(self) -> bool:
        """Whether nothing more is to come of it, unless it joins again."""
        return not self.present or self.ended_s is not None or self.lost is not None


class Simulation:
    """One round.

    Parameters
    ----------
    world
        The truth.
    plan
        Cuts of the clients that are there from the start, and for others the ones to join with until they are known.
    present
        Clients that are there from the start.
    director
        Decides on moves.
    joiner
        Gives cuts to clients that come later.
    make_policy
        The batching policy of a lane.
    clock
        Stands at the round's start, and is moved on.
    wants_profile
        Whether a client is to measure all its blocks before its first batch; that takes no virtual time.
    heartbeat_s
        Seconds between two measurements of the round trip (``wire.heartbeat_s``).
    noise
        Relative standard deviation of what is measured, beside what varies itself (``testbed.noise``).
    patience_s
        For how many seconds a link may be dead while something is to pass (``faults.batch_s``). A client whose link is
        dead for longer is given up, so long after that began to leave.
    compute
        What is computed; None: nothing.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        present: Collection[int],
        director: Director,
        joiner: Joiner,
        make_policy: Callable[[int], Policy[int]],
        clock: Clock,
        events: EventStream,
        *,
        seed: int,
        round_: int,
        chunk_bytes: int,
        batch_samples: int,
        wants_profile: Callable[[int], bool] = lambda client: False,
        heartbeat_s: float = 10.0,
        noise: float = 0.0,
        patience_s: float = 300.0,
        compute: Compute | None = None,
    ) -> None:
        self._world, self._plan, self._director, self._joiner = world, plan, director, joiner
        self._clock, self._events, self._compute = clock, events, compute
        self._round, self._chunk, self._batch = round_, chunk_bytes, batch_samples
        self._heartbeat_s = heartbeat_s
        self._wants_profile, self._noise, self._patience = wants_profile, noise, patience_s
        self._scheduler: Scheduler[int] = Scheduler(make_policy)
        self._workers_free = world.server.workers
        self._server_slowdown = 1.0
        self._server_draws = random.Random(derive_seed("server", seed, round_))
        self._noise_draws = random.Random(derive_seed("noise", seed, round_))
        self._access_up = self._access_down = clock.now
        self._queue: list[tuple[float, int, Callable[[], None], Course | None]] = []
        self._scripted: list[tuple[float, list[Happening]]] = []
        self._number = 0
        self._training = 0
        self._wake: float | None = None
        self._start = clock.now
        self._state = [0.0, *accumulate(world.state_bytes)]
        # Blocks above a cut, without the call; the cut's index.
        self._work = [sum(world.server.block_s[cut:]) for cut in range(world.blocks + 1)]
        scales = _scales(world.happenings, self._start)
        self.courses: dict[int, Course] = {}
        for client in sorted(plan.cuts):
            truth = world.clients[client]
            draws = random.Random(derive_seed("device", seed, client, round_))
            self.courses[client] = Course(
                client, truth, plan.cuts[client], plan.lane_of(client), truth.batches, draws, scales.get(client, [])
            )
            self.courses[client].size = batch_samples
        self._present = frozenset(present)
        by_time: dict[float, list[Happening]] = {}
        for happening in world.happenings:
            if happening.client is None or happening.client in self.courses:
                by_time.setdefault(self._start + happening.at_s, []).append(happening)
        self._scripted = sorted(by_time.items(), reverse=True)
        self._joins = sum(happening.kind == "join" for happening in world.happenings)

    def run(self) -> None:
        """Play the round to its end; the clock then stands at it."""
        for client, course in self.courses.items():
            if client not in self._present:  # nobody waits for those who have not come
                self._scheduler.leave(client, course.lane)
        self._open([course for client, course in self.courses.items() if client in self._present])
        queue = self._queue
        while self._training or self._joins:
            if self._scripted and (not queue or self._scripted[-1][0] <= queue[0][0]):
                time_s, happenings = self._scripted.pop()
                self._clock.now = max(self._clock.now, time_s)
                self._happen(happenings)
                continue
            if not queue:
                break
            self._clock.now, _, act, of = heappop(queue)
            if of is None or of.lost is None:
                act()
        for course in self.courses.values():
            if course.ended_s is None and course.lost is None and course.started_s is not None:
                course.lost = f"it left after batch {course.batch - 1} and did not return"

    @property
    def epoch_s(self) -> float:
        """From the first batch's start to the last batch's end, virtual seconds; 0 if no client finished."""
        started = [course.started_s for course in self.courses.values() if course.started_s is not None]
        ended = [course.ended_s for course in self.courses.values() if course.ended_s is not None]
        return max(ended) - min(started) if ended else 0.0

    # -- what happens to devices -----------------------------------------------------------------------------------

    def _happen(self, happenings: Sequence[Happening]) -> None:
        joining: list[Course] = []
        for happening in happenings:
            if happening.client is None:
                self._server_slowdown = happening.factor
                continue
            course = self.courses[happening.client]
            match happening.kind:
                case "compute":
                    course.compute = happening.factor
                case "join":
                    self._joins -= 1
                    course.leaving = False  # one that was about to leave stays
                    if course.finished and course.ended_s is None and course.lost is None:
                        joining.append(course)
                case "leave":
                    course.leaving = course.present
                case "crash":
                    if not course.finished:
                        self._lose(course, "it crashed")
        self._events.emit(
            "happening",
            round=self._round,
            what=[[one.kind, one.client, one.factor] for one in happenings],
        )
        if joining:
            new = [course for course in joining if course.started_s is None]
            cuts = self._joiner.join(self._plan, [course.client for course in new]) if new else {}
            for course in new:
                course.cut = cuts[course.client]
            self._open(joining)

    def _open(self, courses: Sequence[Course]) -> None:
        for course in courses:
            course.present, course.leaving = True, False
            self._training += 1
            profile_s = memory_bytes = None
            if self._wants_profile(course.client):
                factor = course.compute * self._lognormal(self._noise_draws, self._world.compute_jitter)
                profile_s = tuple(factor * seconds for seconds in course.truth.block_s)
                own = course.truth.memory_bytes
                memory_bytes = None if own is None else int(own)
            self._director.opened(course.client, course.batches - course.batch, profile_s, memory_bytes)
            if self._compute is not None:
                self._compute.open(course.client, course.cut)
            if course.started_s is None:
                course.started_s = self._clock.now
            left = course.batches - course.batch
            self._events.emit("stream_open", round=self._round, client=course.client, batches=left, cut=course.cut)
        for course in courses:
            self._begin(course)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _begin(self, course: Course) -> None:
        """A client's next batch, from its forward on."""
        gauss, devices, links = course.draws.gauss, self._world.compute_jitter, self._world.link_jitter
        # As many draws whatever the placement, so that it changes nobody's luck.
        course.jitter = (
            math.exp(devices * gauss(0.0, 1.0)),
            math.exp(links * gauss(0.0, 1.0)),
            math.exp(links * gauss(0.0, 1.0)),
            math.exp(devices * gauss(0.0, 1.0)),
        )
        course.slowness = factor = course.compute * course.jitter[0]
        course.compute_s = factor * sum(course.truth.block_s[: course.cut])
        call_s = factor * course.truth.call_s
        if course.cut == self._world.blocks:
            self._later(call_s + course.compute_s, self._local_done, course)
        else:
            self._later(call_s + course.compute_s * FORWARD, self._send, course)

    def _send(self, course: Course) -> None:
        """Forward is done: activation and state go up."""
        if self._compute is not None:
            self._compute.forward(course.client, course.batch)
        course.sent_s, course.sent, course.luck = self._clock.now, course.batch, course.jitter[3]
        course.told_news, course.news = course.news, None
        size = self._world.up_bytes[course.cut - 1] + course.given
        course.given = 0.0
        course.bytes_up += size
        access = self._world.server.access_Bps
        if access is not None:
            self._access_up = max(self._access_up, self._clock.now) + size / access
        self._upload(course, size, self._access_up, self._arrive)

    def _upload(self, course: Course, size: float, not_before_s: float, act: Callable[[Course], None]) -> None:
        course.up = up = self._transfer(course, course.truth.up, size, course.jitter[1], not_before_s)
        self._when_there(course, up, act)
        self._look_later(course, up, course.sent_s, size * course.jitter[1], up.first + _LOOK_S)

    def _look_later(self, course: Course, up: Transfer, since_s: float, left: float, at_s: float) -> None:
        """Look at an upload at ``at_s`` if it is still coming then; at ``since_s`` these bytes of it were left.

        In bytes as the path counts them: one that jitter slows has more.
        """
        if at_s < up.last:
            self._push(at_s, partial(self._look, course, up, since_s, left), course)

    def _look(self, course: Course, up: Transfer, since_s: float, left: float) -> None:
        """What the controller sees of an upload that is still coming: whole chunks."""
        now, half = self._clock.now, course.truth.rtt_s / 2
        sent_s, left = advance(course.truth.up, course.scale, since_s, left, now - half)
        chunks = int((up.bytes - left / course.jitter[1]) / self._chunk)
        taken_s = now - up.first
        part = Transfer(up.first, now, min(up.bytes, max(1, chunks) * self._chunk), max(1, chunks))
        self._director.coming(course.client, part, taken_s)
        self._look_later(course, up, sent_s, left, now + max(_LOOK_S, _LOOKS_APART * taken_s))

    def _reply_read(self, course: Course) -> None:
        """The gradient is there: backward and step."""
        assert course.up is not None
        assert course.down is not None
        away_s = self._clock.now - course.sent_s - course.held_s
        course.news = Measured(self._measured_s(course), course.up, course.down, away_s)
        self._later(course.compute_s * (1 - FORWARD), self._split_done, course)

    def _split_done(self, course: Course) -> None:
        if self._compute is not None:
            self._compute.backward(course.client, course.batch)
        self._next(course, course.told)

    def _local_done(self, course: Course) -> None:
        """A batch of a fully local client: its progress is told, an answer that has come, or is soon there, is read."""
        loss = correct = None
        if self._compute is not None:
            result = self._compute.local(course.client, course.batch)
            if isinstance(result, str):
                self._lose(course, result)
                return
            self._count(course, *result)
            _, loss, correct = result
        # Its own blocks, and what the frame before it met on the link.
        news, course.news = replace(course.news or Measured({}), block_s=self._measured_s(course)), None
        if course.asked:
            self._probe(course, news, loss, correct)
            return
        cut = course.told if course.told_s <= self._clock.now else None
        self._progress(course, news, loss, correct)
        if cut is None and course.truth.rtt_s <= PROMPT * (course.slowness * course.truth.call_s + course.compute_s):
            self._later(course.truth.rtt_s, self._answer_read, course)
        else:
            self._next(course, cut)

    def _answer_read(self, course: Course) -> None:
        self._next(course, course.told)

    def _probe(self, course: Course, news: Measured, loss: float | None, correct: int | None) -> None:
        """The bytes of a probe go with the progress; the client waits for them to come back."""
        size, course.asked = course.asked, 0
        course.sent_s = self._clock.now
        course.bytes_up += size
        course.bytes_down += size

        def returned(course: Course) -> None:
            assert course.up is not None
            away_s = self._clock.now - course.sent_s
            course.news = Measured({}, course.up, course.down, away_s)
            self._next(course, course.told)

        def arrived(course: Course) -> None:
            assert course.up is not None
            self._progress(course, news, loss, correct)
            self._director.arrived(course.client, course.up)
            course.down = self._transfer(course, course.truth.down, size, course.jitter[2], self._clock.now)
            self._when_there(course, course.down, returned)

        self._upload(course, size, self._clock.now, arrived)

    def _next(self, course: Course, cut: int | None) -> None:
        """A batch is done: move if that was commanded, then the next one, or the end."""
        if cut is not None:
            self._move(course, cut)
        course.batch += 1
        if course.batch == course.batches:
            alive_s = alive_from(course.scale, self._clock.now)
            if alive_s - self._clock.now <= self._patience:  # that it has ended goes up its link
                self._push(alive_s + course.truth.rtt_s / 2, partial(self._end, course), course)
            else:
                self._later(self._patience, self._give_up, course)
        elif course.leaving:
            course.present = course.leaving = False
            self._gone(course)
        else:
            self._begin(course)

    def _move(self, course: Course, cut: int) -> None:
        if self._compute is not None:
            self._compute.move(course.client, cut)
        course.before, course.told = course.cut, None
        course.given = max(0.0, self._state[course.cut] - self._state[cut])
        course.cut = cut
        course.generation += 1

    def _end(self, course: Course) -> None:
        course.ended_s = self._clock.now
        self._gone(course)
        self._events.emit("client_done", round=self._round, client=course.client, batches=course.batches)

    def _lose(self, course: Course, reason: str) -> None:
        course.lost = reason
        self._events.emit("client_lost", round=self._round, client=course.client, reason=reason)
        self._gone(course)

    def _gone(self, course: Course) -> None:
        """Nobody waits for it any more."""
        self._training -= 1
        self._scheduler.leave(course.client, course.lane)
        self._director.left(course.client)
        self._dispatch()

    # -- the server ------------------------------------------------------------------------------------------------

    def _arrive(self, course: Course) -> None:
        """An activation has come."""
        self._heard(course, course.told_news)
        assert course.up is not None
        self._director.arrived(course.client, course.up)
        now, client = self._clock.now, course.client
        self._scheduler.add(Request(client, course.sent, course.lane, course.up.bytes, now, client))
        self._dispatch()

    def _progress(self, course: Course, news: Measured, loss: float | None, correct: int | None) -> None:
        """The progress of a fully local client's batch."""
        self._heard(course, news)
        self._director.done(course.client)
        cut = self._command(course, ahead=1)
        if cut is not None:
            course.told, course.told_s = cut, self._clock.now + course.truth.rtt_s
        elif course.told is None and course.before is None and course.batch + 2 < course.batches:
            course.asked = self._director.probe(course.client)
        fields = {"client": course.client, "batch": course.batch, "samples": course.size}
        self._events.emit("progress", round=self._round, **fields, loss=loss, correct=correct)

    def _heard(self, course: Course, news: Measured | None) -> None:
        """What a frame tells: that a move is complete, what was measured of the batch before."""
        if self._clock.now >= course.beat_s:
            course.beat_s = self._clock.now + self._heartbeat_s
            self._director.beat(course.client, course.truth.rtt_s * course.jitter[1])
        if course.before is not None:
            self._director.moved(course.client, course.cut)
            self._events.emit(
                "move",
                round=self._round,
                client=course.client,
                batch=course.batch,
                cut_before=course.before,
                cut=course.cut,
                generation=course.generation,
                bytes_up=max(0.0, self._state[course.before] - self._state[course.cut]),
            )
            course.before = None
        if news is not None:
            self._director.measured(course.client, news)

    def _command(self, course: Course, *, ahead: int = 0) -> int | None:
        if course.before is not None or course.told is not None or course.batch + 1 + ahead >= course.batches:
            return None
        cut = self._director.command(course.client, course.cut)
        return None if cut == course.cut else cut

    def _dispatch(self) -> None:
        """Free workers take what is ready."""
        now = self._clock.now
        while self._workers_free:
            group = self._scheduler.next(now)
            if group is None:
                break
            self._workers_free -= 1
            self._serve(group)
        wake = self._scheduler.wake_at(now) if self._workers_free else None
        if wake is not None and wake > now and (self._wake is None or self._wake <= now or wake < self._wake):
            self._wake = wake
            self._push(wake, self._dispatch, None)

    def _serve(self, group: Group[int]) -> None:
        started = self._clock.now
        members = [self.courses[request.client] for request in group]
        work_s = sum(self._work[course.cut] * course.luck for course in members)
        service_s = self._server_slowdown * (self._world.server.call_s + work_s)
        arrived = min(request.arrived for request in group)
        served = partial(self._served, members, started - arrived, service_s)
        self._push(started + service_s, served, None)

    def _served(self, members: Sequence[Course], wait_s: float, service_s: float) -> None:
        """A group is done: replies go out, commands on them."""
        self._workers_free += 1
        lane = members[0].lane
        self._scheduler.done(lane)
        trained, fields = self._train([course for course in members if course.lost is None])
        if trained:
            entries = [(course.cut, self._batch) for course in trained]
            for course in trained:
                self._director.done(course.client)
                course.told = self._command(course)
                self._reply(course)
            head = self._plan.head_of(trained[0].client)
            self._director.served(head, entries, self._noisy(service_s), wait_s)
            batches = [[course.client, course.sent, course.size] for course in trained]
            fields |= {"wait_s": wait_s, "service_s": service_s}
            self._events.emit("step", round=self._round, head=head, members=batches, **fields)
        self._dispatch()

    def _train(self, members: Sequence[Course]) -> tuple[Sequence[Course], dict[str, float | None]]:
        """Compute a group, if anything is computed: who was trained; the step's loss and correct predictions."""
        if self._compute is None or not members:
            return members, {"loss": None, "correct": None}
        trained: list[Course] = []
        loss_sum, samples, correct = 0.0, 0, 0
        results = self._compute.serve([(course.client, course.sent) for course in members])
        for course, result in zip(members, results, strict=True):
            if isinstance(result, str):
                self._lose(course, result)
                continue
            self._count(course, *result)
            trained.append(course)
            loss_sum, samples, correct = loss_sum + result[0] * result[1], samples + result[0], correct + result[2]
        return trained, {"loss": loss_sum / samples if samples else None, "correct": correct}

    def _reply(self, course: Course) -> None:
        assert course.up is not None
        course.held_s = self._clock.now - course.up.last
        size = self._world.down_bytes[course.cut - 1]
        if course.told is not None:
            size += max(0.0, self._state[course.told] - self._state[course.cut])
        course.bytes_down += size
        access = self._world.server.access_Bps
        if access is not None:
            self._access_down = max(self._access_down, self._clock.now) + size / access
        course.down = self._transfer(course, course.truth.down, size, course.jitter[2], self._access_down)
        self._when_there(course, course.down, self._reply_read)

    # -- small things ----------------------------------------------------------------------------------------------

    def _transfer(self, course: Course, path: RatePath, size: float, jitter: float, not_before_s: float) -> Transfer:
        """When bytes that leave now are there, by the receiver's clock; never if the link is dead for too long."""
        now, half = self._clock.now, course.truth.rtt_s / 2
        last = max(passes(path, course.scale, now, size * jitter, self._patience), not_before_s)
        chunks = max(1, math.ceil(size / self._chunk))
        first = last if chunks == 1 else finish(path, course.scale, now, self._chunk * jitter)
        return Transfer(first + half, last + half, int(size), chunks)

    def _when_there(self, course: Course, transfer: Transfer, act: Callable[[Course], None]) -> None:
        if transfer.last < math.inf:
            self._push(transfer.last, partial(act, course), course)
        else:
            self._later(self._patience, self._give_up, course)

    def _give_up(self, course: Course) -> None:
        self._lose(course, f"its link is dead, for longer than faults.batch_s={self._patience:g} s")

    def _measured_s(self, course: Course) -> dict[int, float]:
        factor = self._noisy(course.slowness)
        return {block: factor * course.truth.block_s[block - 1] for block in range(1, course.cut + 1)}

    def _noisy(self, value: float) -> float:
        return value * self._lognormal(self._noise_draws, self._noise) if self._noise else value

    @staticmethod
    def _lognormal(draws: random.Random, spread: float) -> float:
        return math.exp(spread * draws.gauss(0.0, 1.0))

    def _count(self, course: Course, samples: int, loss: float, correct: int) -> None:
        course.size = samples
        course.samples += samples
        course.loss_sum += loss * samples
        course.correct += correct

    def _later(self, seconds: float, act: Callable[[Course], None], course: Course) -> None:
        self._push(self._clock.now + seconds, partial(act, course), course)

    def _push(self, time_s: float, act: Callable[[], None], course: Course | None) -> None:
        self._number += 1
        heappush(self._queue, (time_s, self._number, act, course))


def _scales(happenings: Sequence[Happening], start_s: float) -> dict[int, list[tuple[float, float]]]:
    """Factors of each client's link over the round, as :func:`~dynsl_app.testbed.links.finish` takes them."""
    scales: dict[int, list[tuple[float, float]]] = {}
    for happening in happenings:
        if happening.kind == "link" and happening.client is not None:
            scales.setdefault(happening.client, []).append((start_s + happening.at_s, happening.factor))
    return scales
