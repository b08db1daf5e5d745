"""How well throughput is estimated."""

from collections.abc import Callable, Sequence

import numpy as np

from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.results import Estimate

_SETTLED = 0.2
"""Share of a client's batches at its start that do not count: the prior is being unlearnt (choice)."""

_Rate = Callable[[Estimate], float]
_WAYS: tuple[tuple[str, _Rate, _Rate, _Rate], ...] = (
    ("up", lambda one: one.up_Bps, lambda one: one.up_true_Bps, lambda one: one.up_recent_Bps),
    ("down", lambda one: one.down_Bps, lambda one: one.down_true_Bps, lambda one: one.down_recent_Bps),
)
_HEAD = ("way, against", "median error, %", "90th percentile, %", "median estimate over truth")


def settled(found: Sequence[Estimate]) -> list[Estimate]:
    """Without the first batches of each client and seed."""
    groups: dict[tuple[int, int], list[Estimate]] = {}
    for one in found:
        groups.setdefault((one.seed, one.client), []).append(one)
    return [one for group in groups.values() for one in group[int(_SETTLED * len(group)) :]]


def error_rows(found: Sequence[Estimate]) -> list[list[str]]:
    """Relative errors against the rate at that moment, and against its mean of the last ten seconds."""
    ones = settled(found)
    rows = []
    for way, estimate, now, recent in _WAYS:
        for words, truth in (("the rate at the moment", now), ("its mean of 10 s", recent)):
            ratio = np.array([estimate(one) / truth(one) for one in ones])
            errors = 100 * np.abs(ratio - 1)
            numbers = np.median(errors), np.percentile(errors, 90), np.median(ratio)
            rows.append([f"{way}, {words}", f"{numbers[0]:.0f}", f"{numbers[1]:.0f}", f"{numbers[2]:.2f}"])
    return rows


def estimates_tables(found: Sequence[Estimate]) -> tuple[str, str]:
    """The errors as Markdown and CSV."""
    rows = error_rows(found)
    return markdown(_HEAD, rows), to_csv(_HEAD, rows)
