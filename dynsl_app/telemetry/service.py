"""What the server needs for a batch, and apart from it how long batches wait for the server.

Pure, like :mod:`dynsl_app.telemetry.estimate`.
"""

import math
from collections.abc import Sequence

from dynsl_app.telemetry.estimate import Gate

Key = tuple[int | None, int]
"""Which head (None: a client's private copy) and the cut where the batch enters it."""

_LONGEST_S = 3600.0
_PRIOR_SAMPLES = 0.5
"""How much the prior's shape weighs against measurements (choice)."""


class ServiceTime:
    """h0 + h1·B seconds for a batch of B samples: a line fitted with forgetting, near the prior's shape.

    While all batches have one size they cannot tell h0 from h1: the prior's proportion between them is kept, scaled to
    what is measured. Outliers and jumps are treated as in :class:`~dynsl_app.telemetry.estimate.Level`.

    Parameters
    ----------
    name
        What, for messages.
    call_s, sample_s
        Prior of h0 and h1, in seconds; not both 0.
    half_life
        Batches after which a measurement counts half.
    """

    def __init__(self, name: str, call_s: float, sample_s: float, *, half_life: float = 32.0) -> None:
        self.name = name
        self.samples = 0
        self.jumps = 0
        self.refused = 0
        self.complaint: str | None = None
        self._prior = call_s, sample_s
        self._fit = call_s, sample_s
        self._keep = 0.5 ** (1 / half_life)
        self._scale = 1.0
        self._gate = Gate()
        self._forget()

    @property
    def call_s(self) -> float:
        """h0, seconds."""
        return self._fit[0]

    @property
    def sample_s(self) -> float:
        """h1, seconds a sample."""
        return self._fit[1]

    @property
    def slowdown(self) -> float:
        """Measured over prior, at the batch sizes there were; 1 before there are any."""
        return self._seconds / self._expected if self._expected else self._scale

    def at(self, size: float) -> float:
        """Seconds for a batch of ``size`` samples."""
        return self.call_s + self.sample_s * size

    def add(self, size: float, seconds: float) -> bool:
        """Take the service time of one batch of ``size`` samples, queueing apart; not whole if its members differ.

        Returns
        -------
        bool
            Whether it was accepted; nonsense is counted in ``refused`` and named in ``complaint``.
        """
        if not (size >= 1 and 0 < seconds <= _LONGEST_S):
            self.refused += 1
            self.complaint = f"{self.name}: a measurement was ignored: {seconds!r} s for a batch of {size!r} samples"
            return False
        predicted = self.at(size)
        ratio, jumped = self._gate.admit(seconds / predicted, 1.0 / (2.0 + self._weight))
        if jumped:
            self._scale = ratio * predicted / self._prior_at(size)
            self._forget()
            self.jumps += 1
        self._count(size, ratio * predicted)
        self._fit = self._line()
        self.samples += 1
        return True

    def _prior_at(self, size: float) -> float:
        return self._prior[0] + self._prior[1] * size

    def _forget(self) -> None:
        self._weight = self._sizes = self._squares = self._seconds = self._products = self._expected = 0.0

    def _count(self, size: float, seconds: float) -> None:
        keep = self._keep
        self._weight = self._weight * keep + 1.0
        self._sizes = self._sizes * keep + size
        self._squares = self._squares * keep + size * size
        self._seconds = self._seconds * keep + seconds
        self._products = self._products * keep + size * seconds
        self._expected = self._expected * keep + self._prior_at(size)

    def _line(self) -> tuple[float, float]:
        """Least squares over the measurements and two points of the prior's line, scaled to them; none negative."""
        weight, sizes, squares = self._weight, self._sizes, self._squares
        seconds, products = self._seconds, self._products
        for size in (1.0, 2.0 * self._sizes / self._weight):
            value = self.slowdown * self._prior_at(size)
            weight += _PRIOR_SAMPLES
            sizes += _PRIOR_SAMPLES * size
            squares += _PRIOR_SAMPLES * size * size
            seconds += _PRIOR_SAMPLES * value
            products += _PRIOR_SAMPLES * size * value
        slope = (weight * products - sizes * seconds) / (weight * squares - sizes * sizes)
        if slope < 0:
            return seconds / weight, 0.0
        fixed = (seconds - slope * sizes) / weight
        return (fixed, slope) if fixed >= 0 else (0.0, products / squares)


class Service:
    """The server's service times by head and entry block, and its queue wait.

    Parameters
    ----------
    call_s
        h0, seconds: the prior.
    block_s
        s[l]: seconds by block on one batch, L values: the prior.
    batch
        Samples of the batch that ``block_s`` is for.
    """

    def __init__(self, call_s: float, block_s: Sequence[float], batch: int, *, half_life: float = 32.0) -> None:
        self._call, self._blocks, self._batch, self._half_life = call_s, tuple(block_s), batch, half_life
        self._fits: dict[Key, ServiceTime] = {}
        self._wait = self._waits = 0.0

    @property
    def slowdown(self) -> float:
        """γ: mean of measured over prior, weighted by the measurements of each head and entry."""
        known = [(fit.samples, fit.slowdown) for fit in self._fits.values() if fit.samples]
        return sum(n * ratio for n, ratio in known) / sum(n for n, _ in known) if known else 1.0

    @property
    def wait_s(self) -> float:
        """Mean seconds that a batch waits for a worker, lately; never part of a service time."""
        return self._wait / self._waits if self._waits else 0.0

    @property
    def jumps(self) -> int:
        """Times that a service time has changed by leaps."""
        return sum(fit.jumps for fit in self._fits.values())

    @property
    def complaints(self) -> list[str]:
        """The last nonsense of each head and entry that was ignored, in words."""
        return [fit.complaint for fit in self._fits.values() if fit.complaint]

    def add(self, head: int | None, cut: int, size: float, service_s: float, wait_s: float) -> bool:
        """Take one batch: ``size`` samples that entered ``head`` above block ``cut``; whether it was accepted."""
        if not self._fit(head, cut).add(size, service_s):
            return False
        if 0 <= wait_s < math.inf:
            keep = 0.5 ** (1 / self._half_life)
            self._wait, self._waits = self._wait * keep + wait_s, self._waits * keep + 1.0
        return True

    def add_group(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> bool:
        """Take batches that ran as one, each as its cut and its samples; whether they were accepted.

        Where cuts differ, the group counts as entering at the lowest, with as many samples as would be as much work
        from there by the prior (choice: what a member spends below the others' entry cannot be timed apart).
        """
        lowest = min(cut for cut, _ in entries)
        work_s = sum(samples * self._sample_s(cut) for cut, samples in entries)
        return self.add(head, lowest, work_s / self._sample_s(lowest), service_s, wait_s)

    def at(self, head: int | None, cut: int, size: float) -> float:
        """Seconds for a batch of ``size`` samples; where none was measured, the prior times γ."""
        fit = self._fits.get((head, cut))
        if fit is not None and fit.samples:
            return fit.at(size)
        return self.slowdown * (self._call + size * self._sample_s(cut))

    def call_s(self, head: int | None, cut: int) -> float:
        """h0 of such a batch, seconds; where none was measured, the prior times γ."""
        fit = self._fits.get((head, cut))
        return fit.call_s if fit is not None and fit.samples else self.slowdown * self._call

    def _fit(self, head: int | None, cut: int) -> ServiceTime:
        key = (head, cut)
        if key not in self._fits:
            place = "private copies" if head is None else f"shared head {head}"
            name = f"server, {place} from cut {cut}"
            self._fits[key] = ServiceTime(name, self._call, self._sample_s(cut), half_life=self._half_life)
        return self._fits[key]

    def _sample_s(self, cut: int) -> float:
        return sum(self._blocks[cut:]) / self._batch
