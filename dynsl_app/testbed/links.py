"""Links of the testbed: throughput over virtual time, and when a transfer's last byte has passed.

All rates are bytes per second, all times seconds. A path is defined from 0 on without end, and is the same at a time
in whichever order times are asked for.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dynsl_app.seeds import derive_seed
from dynsl_app.testbed.world import RatePath

Scale = Sequence[tuple[float, float]]
"""From when a factor of a link's rate holds, in order of time; 1 before the first. 0: dead."""


def finish(path: RatePath, scale: Scale, start_s: float, size_bytes: float) -> float:
    """When the last of ``size_bytes`` that begin at ``start_s`` has passed; infinite if it never does.

    A constant path under a factor that does not change any more takes no longer than this call.
    """
    now, left = advance(path, scale, start_s, size_bytes, math.inf)
    return math.inf if left else now


def advance(path: RatePath, scale: Scale, start_s: float, size_bytes: float, end_s: float) -> tuple[float, float]:
    """When ``size_bytes`` have passed, but ``end_s`` at most, and how many are left then."""
    if size_bytes <= 0:
        return start_s, 0.0
    at = bisect_right(scale, start_s, key=lambda change: change[0]) if scale else 0
    factor = scale[at - 1][1] if at else 1.0
    now, left = start_s, size_bytes
    while True:
        until = min(scale[at][0], end_s) if at < len(scale) else end_s
        if factor > 0:
            now, left = _advance(path, now, left / factor, until)
            left *= factor
            if not left:
                return now, 0.0
        if until == end_s:
            return end_s, left
        now, factor = until, scale[at][1]
        at += 1


def passes(path: RatePath, scale: Scale, start_s: float, size_bytes: float, patience_s: float) -> float:
    """Like :func:`finish`, and infinite too if nothing passes on the way for longer than ``patience_s`` in one go."""
    end_s = finish(path, scale, start_s, size_bytes)
    if patience_s < end_s - start_s < math.inf and _falls_silent(path, scale, start_s, end_s, patience_s):
        return math.inf
    return end_s


def alive_from(scale: Scale, time_s: float) -> float:
    """From when on a link carries bytes again, ``time_s`` if it is not dead then; infinite if never."""
    at = bisect_right(scale, time_s, key=lambda change: change[0])
    if not at or scale[at - 1][1] > 0:
        return time_s
    return next((since for since, factor in scale[at:] if factor > 0), math.inf)


@dataclass(frozen=True)
class Constant:
    """One rate for ever; infinite: no limit."""

    Bps: float

    def segments(self, start_s: float) -> Iterator[tuple[float, float]]:
        yield math.inf, self.Bps

    def advance(self, start_s: float, size_bytes: float, until_s: float) -> tuple[float, float]:
        """When ``size_bytes`` have passed, but ``until_s`` at most, and how many are left then."""
        done = start_s + size_bytes / self.Bps
        return (done, 0.0) if done <= until_s else (until_s, max(0.0, size_bytes - (until_s - start_s) * self.Bps))


class Looped:
    """A piecewise constant rate that begins again at its end, without gap.

    Parameters
    ----------
    ends_s
        Where each piece ends, (P,), rising from above 0; the last is the period.
    rates_Bps
        Of each piece, (P,), not negative, not all 0.
    """

    def __init__(self, ends_s: Sequence[float], rates_Bps: Sequence[float]) -> None:
        lengths = np.diff([0.0, *ends_s])
        rates = np.asarray(rates_Bps, dtype=float)
        if len(rates) != len(lengths) or lengths.min() <= 0 or rates.min() < 0 or rates.max() <= 0:
            raise ValueError("a loop needs pieces of positive length, and rates of which none is negative, not all 0")
        self._ends = [float(end) for end in ends_s]
        self._rates: list[float] = rates.tolist()
        self._passed: list[float] = [0.0, *np.cumsum(lengths * rates).tolist()]
        """Bytes from the period's start to each piece's start, and to the period's end."""
        self._offset = 0.0
        self._silence = silent = 0.0
        for length, rate in zip([*lengths, *lengths], [*self._rates, *self._rates], strict=True):
            silent = 0.0 if rate else silent + float(length)
            self._silence = max(self._silence, silent)

    @property
    def period_s(self) -> float:
        """After which it begins again."""
        return self._ends[-1]

    @property
    def silence_s(self) -> float:
        """The longest time, across the period's end too, for which nothing passes."""
        return self._silence

    def shifted(self, offset_s: float) -> "Looped":
        """The same path from ``offset_s`` on; shares the pieces."""
        other = object.__new__(Looped)
        other._ends, other._rates, other._passed = self._ends, self._rates, self._passed
        other._silence = self._silence
        other._offset = (self._offset + offset_s) % self.period_s
        return other

    def segments(self, start_s: float) -> Iterator[tuple[float, float]]:
        lap, piece, _ = self._at(start_s)
        base = lap * self.period_s - self._offset
        while True:
            for number in range(piece, len(self._ends)):
                yield base + self._ends[number], self._rates[number]
            base, piece = base + self.period_s, 0

    def advance(self, start_s: float, size_bytes: float, until_s: float) -> tuple[float, float]:
        """Like :meth:`Constant.advance`, by bisection instead of a walk through the pieces."""
        before = self._total(start_s)
        done = max(start_s, self._when(before + size_bytes))
        if done <= until_s:
            return done, 0.0
        return until_s, max(0.0, size_bytes - (self._total(until_s) - before))

    def _at(self, time_s: float) -> tuple[float, int, float]:
        """Laps before a time, the piece that it is in, and where in the period it is."""
        lap, within = divmod(time_s + self._offset, self.period_s)
        return lap, min(bisect_right(self._ends, within), len(self._ends) - 1), within

    def _total(self, time_s: float) -> float:
        """Bytes from the start of lap 0 to a time."""
        lap, piece, within = self._at(time_s)
        begin = self._ends[piece - 1] if piece else 0.0
        return lap * self._passed[-1] + self._passed[piece] + (within - begin) * self._rates[piece]

    def _when(self, total_bytes: float) -> float:
        """When so many bytes from the start of lap 0 have passed, the earliest time."""
        whole = self._passed[-1]
        lap = max(0, math.ceil(total_bytes / whole) - 1)
        rest = min(max(total_bytes - lap * whole, math.ulp(0.0)), whole)
        piece = bisect_left(self._passed, rest) - 1  # its bytes rise, so its rate is not 0
        begin = self._ends[piece - 1] if piece else 0.0
        return lap * self.period_s + begin + (rest - self._passed[piece]) / self._rates[piece] - self._offset


_BLOCK = 128
"""Steps of a random walk that are made, and kept, at a time (choice)."""


@dataclass(frozen=True)
class WalkLaw:
    """AR(1) in the logarithm of the rate, stepped at fixed intervals.

    Attributes
    ----------
    median_Bps, low_Bps, high_Bps
        Middle, and what the rate is clipped to.
    sigma
        Standard deviation of ln(rate), over long times.
    phi
        Correlation of ln(rate) from a step to the next, 0 to below 1.
    step_s
        How long a rate holds.
    """

    median_Bps: float
    sigma: float
    phi: float
    low_Bps: float
    high_Bps: float
    step_s: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.low_Bps <= self.median_Bps <= self.high_Bps and 0 <= self.phi < 1):
            raise ValueError("a walk needs 0 < low ≤ median ≤ high and a phi from 0 to below 1")
        if not (0 <= self.sigma < math.inf and 0 < self.step_s < math.inf):
            raise ValueError("a walk needs a finite sigma of 0 or more, and a finite step above 0")


class Walk:
    """One link's random walk: all of it is fixed by law and seed, and only the present stretch is in memory.

    A step is a weighted sum of the last 128 normal draws, which is AR(1) to φ^128 (below 1e-5 of the deviation for φ
    up to 0.91); so that any time can be reached without walking there from 0.
    """

    def __init__(self, law: WalkLaw, seed: int) -> None:
        self._law, self._seed = law, seed
        self._number = -1
        self._block: list[float] = []

    def segments(self, start_s: float) -> Iterator[tuple[float, float]]:
        step_s = self._law.step_s
        step = int(start_s / step_s)
        while (step + 1) * step_s <= start_s:
            step += 1
        while True:
            number, within = divmod(step, _BLOCK)
            rates = self._rates(number)
            for place in range(within, _BLOCK):
                step += 1
                yield step * step_s, rates[place]

    def _rates(self, number: int) -> list[float]:
        if number != self._number:
            draws = np.concatenate([_draws(self._seed, number), _draws(self._seed, number + 1)])[1:]
            law = self._law
            logs = np.convolve(draws, _weights(law.phi, law.sigma), mode="valid")
            self._block = np.clip(law.median_Bps * np.exp(logs), law.low_Bps, law.high_Bps).tolist()
            self._number = number
        return self._block


def _draws(seed: int, number: int) -> NDArray[np.float64]:
    """Normal draws of a stretch of steps, (128,)."""
    return np.random.default_rng(derive_seed(seed, "walk", number)).standard_normal(_BLOCK)


@lru_cache(maxsize=8)
def _weights(phi: float, sigma: float) -> NDArray[np.float64]:
    """Of the last 128 draws, the newest first, (128,); their squares sum to sigma²."""
    powers = phi ** np.arange(_BLOCK, dtype=float)
    return sigma * powers / math.sqrt(float(powers @ powers))


def _falls_silent(path: RatePath, scale: Scale, start_s: float, end_s: float, patience_s: float) -> bool:
    if all(factor for _, factor in scale) and not (isinstance(path, Looped) and path.silence_s > patience_s):
        return False
    now, since = start_s, math.inf
    for until, Bps in path.segments(start_s):
        until = min(until, end_s)
        while now < until:
            at = bisect_right(scale, now, key=lambda change: change[0])
            stop = min(until, scale[at][0]) if at < len(scale) else until
            since = math.inf if Bps and (not at or scale[at - 1][1]) else min(since, now)
            if stop - since > patience_s:
                return True
            now = stop
        if now >= end_s:
            break
    return False


def _advance(path: RatePath, start_s: float, size_bytes: float, until_s: float) -> tuple[float, float]:
    if isinstance(path, Constant | Looped):
        return path.advance(start_s, size_bytes, until_s)
    now, left = start_s, size_bytes
    for end, Bps in path.segments(start_s):
        end = min(end, until_s)
        if Bps > 0:
            done = now + left / Bps
            if done <= end:
                return done, 0.0
            left = max(0.0, left - (end - now) * Bps)
        now = end
        if end == until_s or not left:
            break
    return now, left
