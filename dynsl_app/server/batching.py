"""Which waiting requests a free worker runs next, and which of them together (ALGORITHMS §3).

Pure: no threads, no clock, no tensors looked at; the caller says what time it is. A *lane* is what runs serially: one
client's private blocks (separate heads), or one shared head.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Payload = TypeVar("Payload")


@dataclass(frozen=True)
class Request(Generic[Payload]):
    """One batch that waits for the server.

    ``arrived`` in seconds, by the caller's clock; ``bytes`` is what the batch holds in memory.
    """

    client: int
    batch: int
    lane: int
    bytes: int
    arrived: float
    payload: Payload


Group = list[Request[Payload]]
"""Requests of one lane that run as one batch, in this order."""


class Policy(Protocol[Payload]):
    """Forms the groups of one lane."""

    def add(self, request: Request[Payload]) -> None:
        """A request has arrived."""
        ...

    def leave(self, client: int) -> None:
        """A client has finished or is lost: nobody waits for it, and what it has waiting is dropped."""
        ...

    def ready_at(self, now: float) -> float | None:
        """When the next group may run: ``now`` or before for at once, None while requests are missing."""
        ...

    def take(self) -> Group[Payload]:
        """Remove and return the group that is ready."""
        ...


class Continuous(Generic[Payload]):
    """Merge what is there, in order of arrival, up to ``most`` requests and ``most_bytes``.

    Never waits for more unless ``wait_s`` > 0; a request larger than ``most_bytes`` runs alone. With ``most=1`` this
    is SplitFed V2's rule: one step per request in order of arrival.
    """

    def __init__(self, most: int, most_bytes: int, wait_s: float = 0.0) -> None:
        self._most, self._most_bytes, self._wait_s = most, most_bytes, wait_s
        self._waiting: deque[Request[Payload]] = deque()

    def add(self, request: Request[Payload]) -> None:
        self._waiting.append(request)

    def leave(self, client: int) -> None:
        self._waiting = deque(request for request in self._waiting if request.client != client)

    def ready_at(self, now: float) -> float | None:
        if not self._waiting:
            return None
        full = len(self._waiting) >= self._most
        return now if full else self._waiting[0].arrived + self._wait_s

    def take(self) -> Group[Payload]:
        group = [self._waiting.popleft()]
        held = group[0].bytes
        while self._waiting and len(group) < self._most and held + self._waiting[0].bytes <= self._most_bytes:
            held += self._waiting[0].bytes
            group.append(self._waiting.popleft())
        return group


class Lockstep(Generic[Payload]):
    """Every client still in the epoch, in order of client id: reproducible, and PSL's joint step.

    The group is the algorithm's, so ``server.max_merge`` does not cut it.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._members = set(members)
        self._waiting: dict[int, Request[Payload]] = {}

    def add(self, request: Request[Payload]) -> None:
        self._waiting[request.client] = request

    def leave(self, client: int) -> None:
        self._members.discard(client)
        self._waiting.pop(client, None)

    def ready_at(self, now: float) -> float | None:
        return now if self._waiting and self._members <= self._waiting.keys() else None

    def take(self) -> Group[Payload]:
        group = [self._waiting[client] for client in sorted(self._waiting)]
        self._waiting.clear()
        return group


class Replay(Generic[Payload]):
    """The groups of a recorded run, in their order; members that have left are passed over."""

    def __init__(self, groups: Iterable[Sequence[tuple[int, int]]]) -> None:
        self._groups = deque(list(group) for group in groups)
        self._gone: set[int] = set()
        self._waiting: dict[int, Request[Payload]] = {}

    def add(self, request: Request[Payload]) -> None:
        self._waiting[request.client] = request

    def leave(self, client: int) -> None:
        self._gone.add(client)
        self._waiting.pop(client, None)

    def ready_at(self, now: float) -> float | None:
        while self._groups and all(client in self._gone for client, _ in self._groups[0]):
            self._groups.popleft()
        if not self._groups:
            return None
        here = (
            client in self._gone or (client in self._waiting and self._waiting[client].batch == batch)
            for client, batch in self._groups[0]
        )
        return now if all(here) else None

    def take(self) -> Group[Payload]:
        group = self._groups.popleft()
        return [self._waiting.pop(client) for client, _ in group if client not in self._gone]


class Scheduler(Generic[Payload]):
    """All lanes of one round: a lane runs one group at a time, lanes run side by side, first ready first served.

    Parameters
    ----------
    make_policy
        Makes the policy of a lane when its first request arrives.
    """

    def __init__(self, make_policy: Callable[[int], Policy[Payload]]) -> None:
        self._make_policy = make_policy
        self._policies: dict[int, Policy[Payload]] = {}
        self._busy: set[int] = set()
        # Lanes that may have a group, in the order in which they got one. A dict is an ordered set.
        self._candidates: dict[int, None] = {}

    def add(self, request: Request[Payload]) -> None:
        """Queue a request in its lane."""
        self.policy(request.lane).add(request)
        self._candidates.setdefault(request.lane)

    def policy(self, lane: int) -> Policy[Payload]:
        """The policy of a lane."""
        if lane not in self._policies:
            self._policies[lane] = self._make_policy(lane)
        return self._policies[lane]

    def leave(self, client: int, lane: int) -> None:
        """A client has finished or is lost."""
        self.policy(lane).leave(client)
        self._candidates.setdefault(lane)

    def next(self, now: float) -> Group[Payload] | None:
        """The next group to run, its lane now busy; None when nothing is ready."""
        for lane in list(self._candidates):
            if lane in self._busy:
                continue
            at = self._policies[lane].ready_at(now)
            if at is None:
                del self._candidates[lane]
            elif at <= now:
                del self._candidates[lane]
                group = self._policies[lane].take()
                if group:
                    self._busy.add(lane)
                    return group
        return None

    def wake_at(self, now: float) -> float | None:
        """When to ask again though nothing arrives (``server.merge_wait_ms``); None: only on news."""
        times = [self._policies[lane].ready_at(now) for lane in self._candidates if lane not in self._busy]
        return min((at for at in times if at is not None), default=None)

    def done(self, lane: int) -> None:
        """The lane's group has finished: it may run its next one."""
        self._busy.discard(lane)
        self._candidates.setdefault(lane)

    def idle(self, lane: int) -> bool:
        """Whether the lane runs nothing at the moment."""
        return lane not in self._busy
