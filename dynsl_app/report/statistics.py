"""Means over seeds, and how sure they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats


@dataclass(frozen=True)
class Mean:
    """A mean and half of its 95 % interval (Student's t over the seeds); NaN where one seed tells no interval."""

    value: float
    half: float

    def text(self, digits: int = 1) -> str:
        """``38.0 ± 0.4``."""
        return f"{self.value:.{digits}f}" + ("" if math.isnan(self.half) else f" ± {self.half:.{digits}f}")


def mean(values: Sequence[float]) -> Mean:
    """Of one value a seed; at least one."""
    if len(values) < 2:
        return Mean(values[0], math.nan)
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return Mean(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))


def shorter(seconds: Sequence[float], than: Sequence[float]) -> Mean:
    """By how many per cent epochs are shorter than others, seed by seed; negative: longer."""
    return mean([100 * (1 - one / other) for one, other in zip(seconds, than, strict=True)])


def over(seconds: Sequence[float], other: Sequence[float]) -> Mean:
    """By how many per cent epochs are longer than others, seed by seed; negative: shorter."""
    return mean([100 * (one / each - 1) for one, each in zip(seconds, other, strict=True)])
