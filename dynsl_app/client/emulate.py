"""A slower device behind a slower link, played by this machine: what it is comes from the fleet or the node.

Nothing that measures is told. Work takes longer because the thread sleeps after each block, and bytes come later
because the link holds them back, so meters and estimators see the device that is played.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence

from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Change
from dynsl_app.model.segment import Observer
from dynsl_app.settings import NodeSettings, Settings
from dynsl_app.wire.base import Pacer

_SHORTEST_SLEEP_S = 2e-4
"""Sleeps below this overshoot by as much as they last, so shorter debts wait for the next block (choice)."""


class Emulator:
    """One client's device.

    Parameters
    ----------
    compute
        How many times slower it computes, at least 1.
    up_Bps, down_Bps
        Bytes per second to and from the server; ``inf``: no limit.
    rtt_s
        Round-trip time that the link adds, seconds.
    changes
        What happens to it in a round.
    clock
        Seconds, monotonic, the clock of ``sleep``.
    cpu
        CPU seconds of the calling thread.
    """

    def __init__(
        self,
        compute: float = 1.0,
        up_Bps: float = math.inf,
        down_Bps: float = math.inf,
        rtt_s: float = 0.0,
        changes: Sequence[Change] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._compute, self._changes = compute, changes
        self._clock, self._cpu, self._sleep = clock, cpu, sleep
        self._began: float | None = None
        self._batch = 0
        self._paid_s = 0.0
        self._debt_s = 0.0
        limited = rtt_s > 0 or min(up_Bps, down_Bps) < math.inf
        self._link = _Link(up_Bps, down_Bps, rtt_s, lambda: self._factors()[1]) if limited else None

    @property
    def pacer(self) -> Pacer | None:
        """The link, for ``Transport.connect``; None if it has no limits. The same one when connecting again."""
        return self._link

    def begin_epoch(self) -> None:
        """The client's round begins: changes count from here."""
        self._batch, self._began = 0, self._clock()

    def batch(self, number: int) -> None:
        """Batch ``number`` of the round begins, counted from 0."""
        self._batch = number

    def around(self, observer: Observer | None) -> Observer:
        """What to give a segment as its observer: slows the work down, then tells ``observer``.

        Begins with the first batch: what the thread has computed before is not slowed.
        """
        return _Slowed(self, observer)

    def rebase(self) -> None:
        """Forget the CPU time used so far."""
        self._paid_s, self._debt_s = self._cpu(), 0.0

    def catch_up(self) -> None:
        """Sleep for as long as the device would still compute what the thread has computed since the last call.

        CPU time counts, not time, so that threads that share this machine's cores do not slow each other's device.
        What a sleep overshoots is taken off the next ones.
        """
        compute, _ = self._factors()
        self._debt_s += (compute - 1) * (self._cpu() - self._paid_s)
        if self._debt_s >= _SHORTEST_SLEEP_S:
            before = self._clock()
            self._sleep(self._debt_s)
            self._debt_s -= self._clock() - before
        self._paid_s = self._cpu()

    def _factors(self) -> tuple[float, float]:
        """How many times slower it computes now, and by what its link's rates are multiplied."""
        if self._began is None or not self._changes:
            return self._compute, 1.0
        compute, link = in_force(self._changes, self._batch, self._clock() - self._began)
        return self._compute * compute, link


def in_force(changes: Sequence[Change], batch: int, seconds: float) -> tuple[float, float]:
    """Factors of compute time and of link rates, ``batch`` batches and ``seconds`` after the round's start."""
    compute = link = 1.0
    for change in changes:
        happened = change.at_s <= seconds if change.at_s is not None else (change.at_batch or 0) <= batch
        if happened:
            compute = change.compute or compute
            link = change.link or link
    return compute, link


def emulator_for(settings: Settings, node: NodeSettings, client: int) -> Emulator | None:
    """The device that a client plays; None if it is this machine as it is.

    What the node says of itself replaces what the fleet says of the client.

    Raises
    ------
    SettingsError
        The fleet has no such client, or a link that cannot be played, or the node's device is not a CPU, whose time is
        all that can be stretched.
    """
    fleet = settings.fleet
    changes: Sequence[Change] = ()
    if {node.emulate_compute, node.emulate_up, node.emulate_down, node.emulate_rtt} != {None}:
        compute, rtt_s = node.emulate_compute or 1.0, node.emulate_rtt or 0.0
        up_Bps, down_Bps = node.emulate_up, node.emulate_down
    elif fleet.size:
        device, changes = fleet.device(client), fleet.changes_of(client)
        line = fleet.line(device)
        compute, rtt_s = fleet.compute(device), line.rtt_s
        up_Bps, down_Bps = line.up_Bps, line.down_Bps
    else:
        return None
    slowed = compute != 1 or any(change.compute is not None for change in changes)
    if slowed and node.device.partition(":")[0] != "cpu":
        raise SettingsError(
            f"client {client}: only the CPU time of a thread can be slowed down, and its device is {node.device}; set "
            f"device=cpu for this node, or leave emulate-compute and fleet out"
        )
    return Emulator(compute, up_Bps or math.inf, down_Bps or math.inf, rtt_s, changes)


class _Slowed:
    """An observer that lets the device catch up before it passes a call on."""

    def __init__(self, emulator: Emulator, observer: Observer | None) -> None:
        self._emulator, self._observer = emulator, observer
        self._begun = False

    def begin(self) -> None:
        if self._begun:
            self._emulator.catch_up()
        else:
            self._emulator.rebase()
            self._begun = True
        if self._observer is not None:
            self._observer.begin()

    def forward(self, block: int) -> None:
        self._emulator.catch_up()
        if self._observer is not None:
            self._observer.forward(block)

    def backward(self, block: int) -> None:
        self._emulator.catch_up()
        if self._observer is not None:
            self._observer.backward(block)

    def step(self, block: int) -> None:
        self._emulator.catch_up()
        if self._observer is not None:
            self._observer.step(block)


class _Link:
    """A :class:`~dynsl_app.wire.base.Pacer`: a full-duplex line that sends one chunk after the other, each way.

    Half the round trip is on top, and keeps no chunk behind from being sent meanwhile.

    Parameters
    ----------
    factor
        What both rates are multiplied by now.
    """

    def __init__(self, up_Bps: float, down_Bps: float, rtt_s: float, factor: Callable[[], float]) -> None:
        self.rtt_s = rtt_s
        self._up, self._down = _Way(up_Bps), _Way(down_Bps)
        self._factor = factor

    def up(self, size: int, ready: float) -> float:
        return self._up.sent(size, ready, self._factor()) + self.rtt_s / 2

    def down(self, size: int, ready: float) -> float:
        return self._down.sent(size, ready, self._factor()) + self.rtt_s / 2


class _Way:
    """One direction of a line."""

    def __init__(self, Bps: float) -> None:
        self._Bps = Bps
        self._free = -math.inf
        self._lock = threading.Lock()

    def sent(self, size: int, ready: float, factor: float) -> float:
        """When a chunk's last byte leaves."""
        with self._lock:
            self._free = max(ready, self._free) + size / (self._Bps * factor)
            return self._free
