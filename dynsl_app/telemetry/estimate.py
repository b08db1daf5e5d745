"""From noisy measurements to estimates that react in two batches and are not fooled by one.

Pure: whoever feeds an estimator says which batch a measurement belongs to (any count that grows with the batches of
that client, or of that head), so the same code runs on real and on virtual time.

The filter (ALGORITHMS §4): an exponentially weighted mean with a half-life in batches; a measurement that is over 35 %
off counts as if it were 35 % off, and the second one in a row on the same side is believed instead. Choices: 35 % is a
ratio, so that doubling and halving are treated alike; a level that is noisier than that (a bad radio link) needs more;
and the level jumps to the milder of the two measurements.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

JUMP = 0.35
"""A change above this, seen twice, is a new level."""

_LEAST_LIMIT = math.log(1 + JUMP)
_MOST_LIMIT = math.log(2.0)
"""However noisy the measurements: a factor of two, seen twice, is always a new level (choice)."""
_LIMIT_SPREADS = 2.5
"""Mean absolute deviations that are still noise: two standard deviations of a normal distribution (choice)."""
_FIRST_SPREAD = 0.1
"""Relative spread that is assumed before there are measurements (choice)."""

_HICCUP_S = 1.0
"""A batch that takes longer than this beyond what is expected, and not in one block alone, is seen twice in itself:
interpreters, schedulers and file systems do not halt a device that long (choice)."""

_SETTLED = 3
"""Measurements before a level is known so well: a device's first batch is a long one (choice)."""

_LEAST_SPREAD = 0.05
"""However steady the measurements: what a device does next is not known better than that from one (choice)."""


@dataclass(frozen=True)
class Reading:
    """What an estimator knows at some batch.

    Attributes
    ----------
    value
        In the estimator's unit.
    samples
        Measurements accepted so far; 0: the value is the prior.
    age
        Batches since the last of them; infinite if there was none.
    relative_width
        One standard deviation of the value, relative to it. Grows with age towards the prior's.
    """

    value: float
    samples: int
    age: float
    relative_width: float


class Gate:
    """Tells noise, an outlier and a change of level apart, from how far off each measurement is (as a ratio)."""

    def __init__(self) -> None:
        self._spread = _FIRST_SPREAD
        self._suspect: float | None = None
        self._moved = 1.0

    @property
    def spread(self) -> float:
        """Standard deviation of a single measurement, relative."""
        return 1.25 * self._spread

    @property
    def warned(self) -> bool:
        """Whether the measurement to come needs no second one, see :meth:`suspect`."""
        return self._suspect is not None and math.isinf(self._suspect)

    @property
    def in_doubt(self) -> bool:
        """Whether the last measurement was off, and the next will tell whether that was chance."""
        return self._suspect is not None and not self.warned

    def admit(self, ratio: float, weight: float) -> tuple[float, bool]:
        """What a measurement of ``ratio`` times the level counts as, and whether it is a new level.

        ``weight`` is the share that the newest measurement has in the mean, in 0..1.
        """
        limit = min(max(_LEAST_LIMIT, _LIMIT_SPREADS * self._spread), _MOST_LIMIT)
        suspect, self._suspect = self._suspect, None
        if suspect is not None:
            # Both are held against the level before it was moved by the first.
            off = math.log(ratio * self._moved)
            if abs(off) > limit and (suspect > 0) == (off > 0):
                believed = min(suspect, off, key=abs)
                ratio = math.exp(believed) / self._moved
                # The first may have been chance: what the second has beyond it is then the first of the true level.
                if abs(off - believed) > limit:
                    self._suspect, self._moved = off - believed, 1.0
                return ratio, True
            # The first was noise after all. It counts only now, so as not to raise the limit for this one.
            self._spread += weight * (limit - self._spread)
        off = math.log(ratio)
        if abs(off) > limit:
            clipped = math.exp(math.copysign(limit, off))
            self._suspect, self._moved = off, 1.0 + weight * (clipped - 1.0)
            return clipped, False
        self._spread += weight * (abs(off) - self._spread)
        return ratio, False

    def suspect(self, sign: float) -> None:
        """A measurement to come is known to be high (1) or low (-1): believe it at once, as the second one."""
        self._suspect, self._moved = math.copysign(math.inf, sign), 1.0


class Level:
    """One positive quantity that stays where it is, drifts or jumps.

    Parameters
    ----------
    name
        Who and what, for messages: ``client 3: upload in B/s``.
    prior
        The value before anything is measured; weighs as much as one measurement.
    half_life
        Batches after which a measurement counts half.
    low, high
        What a measurement can be; anything else is refused as nonsense.
    prior_width
        Relative standard deviation of the prior; an estimate never gets less certain than that.

    Attributes
    ----------
    jumps, sightings
        Leaps so far, and how many measurements saw the last of them.
    """

    def __init__(
        self,
        name: str,
        prior: float,
        *,
        half_life: float = 8.0,
        low: float = 1e-9,
        high: float = 1e12,
        prior_width: float = 1.0,
    ) -> None:
        self.name = name
        self.value = prior
        self.samples = 0
        self.jumps = self.sightings = 0
        self.refused = 0
        self.complaint: str | None = None
        self._half_life, self._low, self._high, self._prior_width = half_life, low, high, prior_width
        self._gate = Gate()
        self._weight = 1.0
        self._evidence = 0.0
        self._batch: float | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the next measurement will tell if the level has changed."""
        return self._gate.in_doubt

    def add(self, value: float, batch: float) -> bool:
        """Take a measurement of batch ``batch``.

        Returns
        -------
        bool
            Whether it was accepted. Nonsense is not: it is counted in ``refused`` and named in ``complaint``, for
            the caller to report, and nothing else changes.
        """
        if not self._low <= value <= self._high:  # also refuses NaN
            self.refuse(f"{value!r} is not in {self._low:g}..{self._high:g}")
            return False
        decay = self._decay(batch)
        self._weight = self._weight * decay + 1.0
        self._evidence = self._evidence * decay + 1.0
        sightings = 1 if self._gate.warned else 2
        ratio, jumped = self._gate.admit(value / self.value, 1.0 / self._weight)
        if jumped:
            self.value *= ratio
            self._weight = self._evidence = 1.0
            self.jumps += 1
            self.sightings = sightings
        else:
            self.value += (self.value * ratio - self.value) / self._weight
        self._batch = batch if self._batch is None else max(batch, self._batch)
        self.samples += 1
        return True

    def age(self, batch: float) -> float:
        """Batches since the last accepted measurement, as of batch ``batch``; infinite if there was none."""
        return math.inf if self._batch is None else max(0.0, batch - self._batch)

    def refuse(self, why: str) -> None:
        """Note a measurement that is nonsense."""
        self.refused += 1
        self.complaint = f"{self.name}: a measurement was ignored: {why}"

    def suspect(self, sign: float) -> None:
        """The measurement to come is known to be high (1) or low (-1): if it is off, it needs no second one."""
        self._gate.suspect(sign)

    def reading(self, batch: float) -> Reading:
        """The estimate as of batch ``batch``."""
        age = self.age(batch)
        evidence = self._evidence * self._decay(batch)
        precision = self._prior_width**-2 + evidence * max(self._gate.spread, _LEAST_SPREAD) ** -2
        return Reading(self.value, self.samples, age, precision**-0.5)

    def _decay(self, batch: float) -> float:
        """What is left at ``batch`` of the weight that measurements had when the last one came."""
        return 1.0 if self._batch is None else 0.5 ** (max(0.0, batch - self._batch) / self._half_life)


class Slowdown:
    """α: how much slower than its profile a device is now (1 = as profiled), one number for all blocks.

    Measured at the blocks that the device has, it rescales the curve over all of them.

    Parameters
    ----------
    name
        Who, for messages: ``client 3``.
    profile_s
        p[l]: seconds by block on one batch, L values, all positive.
    """

    def __init__(self, name: str, profile_s: Sequence[float], *, half_life: float = 8.0) -> None:
        self._profile = tuple(profile_s)
        # A profile made from FLOPs at a guessed speed may be off by orders of magnitude.
        self.level = Level(f"{name}: slowdown against its profile", 1.0, half_life=half_life, low=1e-6, high=1e6)

    @property
    def alpha(self) -> float:
        """α."""
        return self.level.value

    @property
    def block_s(self) -> tuple[float, ...]:
        """α·p[l] for all blocks, in seconds."""
        return tuple(self.alpha * seconds for seconds in self._profile)

    def add(self, block_s: Mapping[int, float], batch: float) -> bool:
        """Take the seconds by block of one full batch (a smaller last one says little: its overheads do not shrink).

        Returns
        -------
        bool
            Whether they were accepted, see :meth:`Level.add`.
        """
        measured = predicted = 0.0
        slower = 0
        for block, seconds in block_s.items():
            if not (1 <= block <= len(self._profile) and 0 <= seconds < math.inf):
                self.level.refuse(f"{seconds!r} s for block {block} of {len(self._profile)}")
                return False
            measured += seconds
            predicted += self._profile[block - 1]
            slower += seconds > (1 + JUMP) * self.alpha * self._profile[block - 1]
        if not block_s:
            self.level.refuse("it has no block")
            return False
        longer_s = measured - self.alpha * predicted
        if longer_s > _HICCUP_S and slower > 1 and self.level.samples >= _SETTLED and not self.level.in_doubt:
            self.level.suspect(1)
        return self.level.add(measured / predicted, batch)
