"""SFSL: an *interpretation* of sliding split, after S²FL (arXiv 2311.13163).

The acronym was found in no paper on adaptive split learning; wherever results of it are shown, this is to be said.
"""

from collections.abc import Sequence

import numpy as np

from dynsl_app.allocation.base import BetweenRounds, Report
from dynsl_app.cost.model import Costs, Ints


class SfslAllocator(BetweenRounds):
    """Warm-up rounds try each cut once and fill a table of times by client and cut; then everybody keeps pace.

    After the warm-up each client gets the cut whose time is closest to the median of last round's times, the smallest
    cut on ties. Choices: times are seconds a batch, so that unequal data do not count; the table keeps the newest time
    of a cut; a client with allowed cuts that it has not tried (it came later) tries the lowest of them. S²FL's grouping
    of features by size at the server concerns shared heads only and is left out.
    """

    def __init__(self) -> None:
        self._table: dict[str, dict[int, float]] = {}

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        """Cuts for the round, int64 (N,)."""
        for name, report in zip(costs.names, last, strict=True):
            if report is not None and report.batches:
                self._table.setdefault(name, {})[report.cut] = report.total_s / report.batches
        times = [report.total_s / report.batches for report in last if report is not None and report.batches]
        median = float(np.median(times)) if times else 0.0
        cuts = []
        for row, name in enumerate(costs.names):
            allowed = (np.flatnonzero(np.isfinite(costs.c[row])) + 1).tolist()
            tried = self._table.get(name, {})
            untried = [cut for cut in allowed if cut not in tried]
            cuts.append(untried[0] if untried else min(allowed, key=lambda cut: (abs(tried[cut] - median), cut)))
        return np.array(cuts, dtype=np.int64)
