"""DTFL: tiers by the slowest client's best time, once a round (Mohammadabadi et al., arXiv 2312.05642)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynsl_app.allocation.base import BetweenRounds, Report
from dynsl_app.allocation.rules import dtfl, dtfl_times
from dynsl_app.cost.model import Costs, Ints

_NEWEST = 2 / 3
"""Share of the newest round in the weighted mean: a span of 2."""


class DtflAllocator(BetweenRounds):
    """The most client blocks within T_max, the slowest client's best time in the round before.

    A client's time at its present cut is an exponentially weighted mean over rounds (span 2); other cuts follow from
    its profile. The server is taken as uncontended. Source: ALGORITHMS §9. Choice: in the first planned round there
    is no round before, and T_max is that round's own.
    """

    def __init__(self) -> None:
        self._batch_s: dict[str, tuple[int, float]] = {}
        """By client: the cut at which it was measured, and its mean compute seconds a batch there."""
        self._limit_s: float | None = None

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        """Cuts for the round, int64 (N,)."""
        scale = np.ones(len(costs.names))
        for row, (name, report) in enumerate(zip(costs.names, last, strict=True)):
            if report is None or not report.batches or not report.compute_s:
                continue
            newest = report.compute_s / report.batches
            cut, mean = self._batch_s.get(name, (report.cut, newest))
            # Its mean was taken at another cut: the profile's ratio carries it over.
            mean *= costs.compute_s[row, report.cut - 1] / costs.compute_s[row, cut - 1]
            mean += _NEWEST * (newest - mean)
            self._batch_s[name] = report.cut, mean
            scale[row] = mean / costs.compute_s[row, report.cut - 1]
        scaled = replace(costs, compute_s=costs.compute_s * scale[:, None])
        limit_s, self._limit_s = self._limit_s, float(dtfl_times(scaled).min(axis=1).max())
        return dtfl(scaled, limit_s)
