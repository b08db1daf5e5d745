"""How long each block takes, batch by batch, wherever it runs.

The meter only notes a time when the work passes a block, and adds up when it is asked: on a CPU the times are a
clock's, on a GPU events in its stream, so that nobody waits for the device until the batch is done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

_BEGIN, _FORWARD, _BACKWARD, _STEP = range(4)


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that one block took for one batch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    step_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Forward, backward and step together."""
        return self.forward_s + self.backward_s + self.step_s


def _difference(start: float, end: float) -> float:
    return end - start


class BlockMeter:
    """Follows a segment's work (an ``Observer`` of :mod:`dynsl_app.model.segment`); one thread at a time.

    Blocks may change between batches: whatever passed since the last :meth:`take` is in it. Whoever trains takes once
    a batch, since marks are kept until then.

    Parameters
    ----------
    stamp
        The time now: seconds of a monotonic clock, or any value that ``between`` understands.
    between
        Seconds from one stamp to a later one.
    """

    def __init__(
        self, stamp: Callable[[], Any] = time.perf_counter, between: Callable[[Any, Any], float] = _difference
    ) -> None:
        self._stamp = stamp
        self._between = between
        self._marks: list[tuple[int, int, Any]] = []

    def begin(self) -> None:
        self._marks.append((_BEGIN, 0, self._stamp()))

    def forward(self, block: int) -> None:
        self._marks.append((_FORWARD, block, self._stamp()))

    def backward(self, block: int) -> None:
        self._marks.append((_BACKWARD, block, self._stamp()))

    def step(self, block: int) -> None:
        self._marks.append((_STEP, block, self._stamp()))

    def take(self) -> dict[int, float]:
        """Seconds by block l, forward, backward and step together, since the last call."""
        seconds: dict[int, float] = {}
        for _, block, elapsed in self._laps():
            seconds[block] = seconds.get(block, 0.0) + elapsed
        return seconds

    def take_phases(self) -> dict[int, Phases]:
        """Like :meth:`take`, with the three phases apart."""
        seconds: dict[int, list[float]] = {}
        for phase, block, elapsed in self._laps():
            seconds.setdefault(block, [0.0, 0.0, 0.0])[phase - _FORWARD] += elapsed
        return {block: Phases(*phases) for block, phases in seconds.items()}

    def _laps(self) -> list[tuple[int, int, float]]:
        """(phase, block, seconds) of every mark but ``begin``, oldest first; the last mark stays as a base."""
        marks = self._marks
        between = self._between
        laps = [
            (phase, block, between(before[2], now))
            for before, (phase, block, now) in pairwise(marks)
            if phase != _BEGIN
        ]
        if marks:
            self._marks = [(_BEGIN, 0, marks[-1][2])]
        return laps


def meter_for(device: str) -> BlockMeter:
    """A meter for blocks on ``device``: with a clock, or on a CUDA device with events in its stream."""
    place = torch.device(device)
    if place.type != "cuda":
        return BlockMeter()
    return BlockMeter(partial(_record, place), _elapsed)


def _record(device: torch.device) -> torch.cuda.Event:
    # Backward runs in a thread of its own, so the stream is named and not the thread's current one.
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _elapsed(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
