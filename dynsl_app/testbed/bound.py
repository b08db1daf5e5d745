"""``oracle_bound``: how short an epoch can be at best, by a linear program (ALGORITHMS §9; its form is a choice).

Time is cut into intervals wherever something happens. Within one, a client's batches may be spread over cuts in any
fractions, moves are free, requests never wait for one another as long as the server's work fits into the interval, and
everything that will happen is known from the start. A batch that is under way when something happens is counted at
its most favourable: computed at the speed that it began with, sent at the best rate that is still to come.

So no plan beats it where nothing is random. **Jitter** does not enter: times are those without it. Factors of jitter
have a mean above 1 (their median is 1), so that it makes epochs longer in expectation, and an epoch can be shorter than
this only by luck: 5 % of a batch's compute is 0.7 % of 50 batches'. Where links vary by themselves (``lte``, traces)
rates are means over a twentieth of T0 (choice), and a plan that has its uploads in the better moments of such a stretch
may gain on the bound. Clients that crash, or leave and do not return, count for nothing: a run that loses others has
done less, and is no comparison.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dynsl_app.cost.model import Floats, allowed_cuts, transfer_times
from dynsl_app.errors import RoundFailed
from dynsl_app.testbed.links import Constant
from dynsl_app.testbed.oracle import Limits, state_at
from dynsl_app.testbed.world import RatePath, World

_STRETCHES = 20
"""Intervals that T0 has where links vary by themselves (choice)."""

_START = math.nextafter(0.0, -math.inf)
"""The round's start, just before anything that happens at 0: first batches are under way then."""

_MOST = 4096
"""Intervals at most: an epoch that is not done by then is given up (choice)."""


def bound_s(world: World, present: Collection[int], limits: Limits, t0_s: float, start_s: float = 0.0) -> float:
    """No plan ends the round's epoch sooner than this many seconds after its start, but by luck.

    Parameters
    ----------
    present
        Clients that are there from the start.
    limits
        Floor and ceiling by client.
    t0_s
        T0, seconds.
    start_s
        Virtual time of the round's start.

    Raises
    ------
    RoundFailed
        No client can finish.
    """
    spans = _Presence(world, present)
    if not spans.counted:
        raise RoundFailed("no client can finish: all crash, or leave and do not return; change the dynamics")
    make = _intervals(world, spans, limits, t0_s, start_s)
    steady = _is_steady(world)
    intervals: list[_Interval] = []

    def length(number: int) -> float | None:
        """Of the epoch, if it ends in the interval of this number, from 1."""
        intervals.extend(islice(make, max(0, number - len(intervals))))
        return _Program(world, spans.counted, intervals[:number]).solve()

    # The first interval in which it can end: as time goes on, only more can be done.
    low, high, best = 0, 1, None
    last = len({one.at_s for one in world.happenings}) + 1 if steady else _MOST
    while (best := length(high)) is None:
        if high == last:
            raise RoundFailed(
                f"client {', '.join(map(str, spans.counted[:8]))}: the batches cannot all be done, at any cut; links "
                f"may be dead and blocks barred (allocator.max_cut, dynamics)"
            )
        low, high = high, min(2 * high, last)
    while high - low > 1:
        middle = (low + high) // 2
        shorter = length(middle)
        if shorter is None:
            low = middle
        else:
            high, best = middle, shorter
    return best - spans.first_s


class _Presence:
    """Who is there when.

    Attributes
    ----------
    counted
        Clients whose batches are all to be done: they neither crash nor stay away in the end.
    first_s
        Since when somebody is there, seconds after the round's start.
    """

    def __init__(self, world: World, present: Collection[int]) -> None:
        self._spans: dict[int, list[tuple[float, bool]]] = {
            client: [(_START, client in present)] for client in range(len(world.clients))
        }
        crashed = set()
        for one in world.happenings:
            if one.client is not None and one.kind in ("join", "leave", "crash"):
                self._spans[one.client].append((one.at_s, one.kind == "join"))
                if one.kind == "crash":
                    crashed.add(one.client)
        self.counted = [client for client, spans in self._spans.items() if spans[-1][1] and client not in crashed]
        came = [at for spans in self._spans.values() for at, there in spans if there]
        self.first_s = max(0.0, min(came, default=0.0))

    def at(self, client: int, since_start_s: float) -> bool:
        """Whether a client is there from this time on."""
        return [there for at, there in self._spans[client] if at <= since_start_s][-1]


@dataclass(frozen=True, eq=False)
class _Interval:
    """A stretch in which nothing changes; one row a counted client, one column a cut.

    Attributes
    ----------
    length_s
        Infinite for the last.
    changes
        Whether something happens at its end; else it is only where rates are taken anew.
    compute_s, transfer_s
        Seconds a batch, (N, L); infinite where the client is away, a cut barred or a link dead.
    server_s
        Seconds a batch, (L,).
    """

    length_s: float
    changes: bool
    compute_s: Floats
    transfer_s: Floats
    server_s: Floats


def _is_steady(world: World) -> bool:
    return all(isinstance(path, Constant) for one in world.clients for path in (one.up, one.down))


def _intervals(world: World, spans: _Presence, limits: Limits, t0_s: float, start_s: float) -> Iterator[_Interval]:
    """From the round's start on; without end where links vary by themselves."""
    for begin_s, end_s, changes in _edges(world, t0_s):
        state = state_at(world.happenings, begin_s)
        clients = spans.counted
        factors = np.array([state.compute.get(client, 1.0) for client in clients])[:, None]
        links = np.array([state.link.get(client, 1.0) for client in clients])[:, None]
        ways = [(world.clients[client].up, world.clients[client].down) for client in clients]
        rates = np.array([[_mean(path, start_s + begin_s, start_s + end_s) for path in both] for both in ways])
        floor, ceiling = np.array([limits[client] for client in clients], dtype=np.int64).T
        there = np.array([spans.at(client, begin_s) for client in clients])[:, None]
        compute_s = factors * np.cumsum([world.clients[client].block_s for client in clients], axis=1)
        compute_s[~(allowed_cuts(floor, ceiling, world.blocks) & there)] = np.inf
        # A dead link has no rate, even one without a limit.
        up_Bps, down_Bps = np.multiply(rates, links, where=links > 0, out=np.zeros_like(rates)).T[:, :, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rtt_s = np.array([world.clients[client].rtt_s for client in clients])[:, None]
            transfer_s = transfer_times(np.array(world.up_bytes), np.array(world.down_bytes), up_Bps, down_Bps, rtt_s)
        transfer_s[np.isnan(transfer_s)] = np.inf  # nothing does not pass a dead link either
        work = np.array([sum(world.server.block_s[cut:]) for cut in range(1, world.blocks)])
        server_s = np.append(state.server * (world.server.call_s + work), 0.0)
        yield _Interval(end_s - begin_s, changes, compute_s, transfer_s, server_s)


def _edges(world: World, t0_s: float) -> Iterator[tuple[float, float, bool]]:
    """Begin and end of each interval, and whether something happens at its end."""
    times = sorted({one.at_s for one in world.happenings})
    if _is_steady(world):
        yield from zip([_START, *times], [*times, math.inf], [True] * len(times) + [False], strict=True)
        return
    every, now, step = t0_s / _STRETCHES, _START, 1
    while True:
        happens = bool(times) and times[0] <= step * every
        end = times.pop(0) if happens else step * every
        step += end >= step * every
        if end > now:
            yield now, end, happens
        now = end


def _mean(path: RatePath, begin_s: float, end_s: float) -> float:
    """Mean rate, bytes per second."""
    if isinstance(path, Constant):
        return path.Bps
    passed, now = 0.0, max(0.0, begin_s)
    for until, Bps in path.segments(now):
        passed += Bps * (min(until, end_s) - now)
        now = min(until, end_s)
        if now >= end_s:
            break
    return passed / (end_s - begin_s)


class _Program:
    """The linear program of an epoch that ends in the last of some intervals.

    Variables: batches x[i,k,n] of client i, begun and done in interval k at cut n; batches z[i,k,n] (at most one for
    all n) that begin in k and are under way when something happens at its end; of these, what reaches beyond the ends
    of the intervals, in seconds of the client, y[i,k], and of the server, u[k]; the last interval's length, which is
    minimised.
    """

    def __init__(self, world: World, clients: Sequence[int], intervals: Sequence[_Interval]) -> None:
        self._intervals, self._workers = intervals, world.server.workers
        self._batches = [world.clients[client].batches for client in clients]
        self._columns = 1  # the last interval's length
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[float] = []
        self._equal: list[tuple[int, int, float]] = []

    def solve(self) -> float | None:
        """The epoch's length in seconds; None if it cannot end in the last interval."""
        intervals, count = self._intervals, len(self._batches)
        last = len(intervals) - 1
        before = sum(one.length_s for one in intervals[:-1])
        over = [-1] * count
        server_over = -1
        for k, one in enumerate(intervals):
            server = self._row(0.0 if k == last else self._workers * one.length_s)
            server_span = self._row(0.0)
            if k == last:
                self._put(server, 0, -self._workers)
            for i in range(count):
                time = self._row(0.0 if k == last else one.length_s)
                if k == last:
                    self._put(time, 0, -1.0)
                for t, w in _useful(one.compute_s[i] + one.transfer_s[i] + one.server_s, one.server_s):
                    self._batch(i, time, t, server, w)
                over[i] = self._carry(time, over[i], k == last, self._spanning(i, k, time, server, server_span))
            server_over = self._carry(server, server_over, k == last, server_span)
        result = linprog(
            np.eye(1, self._columns)[0],
            A_ub=_matrix(self._entries, len(self._limits), self._columns),
            b_ub=self._limits,
            A_eq=_matrix(self._equal, count, self._columns),
            b_eq=self._batches,
            bounds=[(0, intervals[last].length_s), *[(0, None)] * (self._columns - 1)],
            method="highs",
        )
        if result.status == 2:
            return None
        if not result.success:
            raise RoundFailed(f"oracle_bound: its linear program was not solved: {result.message}")
        return before + float(result.fun)

    def _spanning(self, i: int, k: int, time: int, server: int, server_span: int) -> int:
        """Batches under way at the end of interval k, in the rows of its time and work; the row of what may span."""
        span = self._row(0.0)
        if self._intervals[k].changes and k < len(self._intervals) - 1:
            rest = self._intervals[k:]
            transfer_s = np.min([one.transfer_s[i] for one in rest], axis=0)
            server_s = np.min([one.server_s for one in rest], axis=0)
            one_at_most = self._row(1.0)
            for t, w in _useful(self._intervals[k].compute_s[i] + transfer_s + server_s, server_s):
                column = self._batch(i, time, t, server, w)
                self._put(one_at_most, column, 1.0)
                self._put(span, column, -t)
                self._put(server_span, column, -w)
        return span

    def _carry(self, row: int, before: int, last: bool, span: int) -> int:
        """Let what is under way reach from the interval before into this one, and from this one into the next.

        Returns
        -------
        int
            The variable of the latter; -1 for none.
        """
        if before >= 0:
            self._put(row, before, 1.0)
            self._put(span, before, -1.0)
        if last:
            return -1
        column = self._columns
        self._columns += 1
        self._put(row, column, -1.0)
        self._put(span, column, 1.0)
        return column

    def _batch(self, i: int, time: int, t: float, server: int, w: float) -> int:
        column = self._columns
        self._columns += 1
        self._put(time, column, t)
        self._put(server, column, w)
        self._equal.append((i, column, 1.0))
        return column

    def _row(self, limit: float) -> int:
        self._limits.append(limit)
        return len(self._limits) - 1

    def _put(self, row: int, column: int, value: float) -> None:
        self._entries.append((row, column, value))


def _useful(times: Floats, work: Floats) -> list[tuple[float, float]]:
    """Of all cuts, time and work of those that none is better than in both; without infinite ones."""
    found: list[tuple[float, float]] = []
    for at in np.lexsort((work, times)):
        if times[at] < math.inf and (not found or work[at] < found[-1][1]):
            found.append((float(times[at]), float(work[at])))
    return found


def _matrix(entries: Sequence[tuple[int, int, float]], rows: int, columns: int) -> coo_array:
    row, column, value = np.array(entries, dtype=float).reshape(-1, 3).T
    return coo_array((value, (row.astype(int), column.astype(int))), shape=(rows, columns))
