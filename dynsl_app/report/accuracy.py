"""Accuracy of runs that trained for real: the same bits, or the same within noise, and how soon."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from dynsl_app.report.statistics import Mean, mean
from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.results import Training

LEVELS = (0.9, 0.95, 0.98)
"""Accuracies to be reached."""

Label = tuple[str, str]
"""Heads and algorithm."""

_HEAD = ("heads", "algorithm", "seed", "accuracy", "model_sha256", "moves", "total_s")


def by_label(trainings: Sequence[Training]) -> dict[Label, list[Training]]:
    """Runs by heads and algorithm, in order; of each in order of seeds."""
    labels: dict[Label, list[Training]] = {}
    for one in trainings:
        labels.setdefault((one.heads, one.algorithm), []).append(one)
    return labels


def accuracy_csv(trainings: Sequence[Training]) -> str:
    """A row a run."""
    rows = [
        [
            *(one.heads, one.algorithm, str(one.seed), f"{one.accuracy[-1]:.4f}", one.digest[:16]),
            *(str(one.moves), f"{one.ended_s[-1]:.3f}"),
        ]
        for one in trainings
    ]
    return to_csv(_HEAD, rows)


def same_bits(ones: Sequence[Training], reference: Sequence[Training]) -> int:
    """For how many seeds the models are the same, bit for bit."""
    own = {one.seed: one.digest for one in ones}
    return sum(own.get(one.seed) == one.digest for one in reference)


def difference(ones: Sequence[Training], reference: Sequence[Training]) -> Mean:
    """Of final accuracies, percentage points, seed by seed."""
    return mean([100 * (one.accuracy[-1] - other.accuracy[-1]) for one, other in zip(ones, reference, strict=True)])


def within_noise(gap: Mean) -> bool:
    """Whether no difference is within the interval."""
    return abs(gap.value) <= gap.half or gap.value == gap.half == 0


def reached_s(one: Training, level: float) -> float | None:
    """When a round ended with an accuracy of at least ``level`` for the first time, virtual seconds; None: never."""
    return next((at_s for at_s, got in zip(one.ended_s, one.accuracy, strict=True) if got >= level), None)


def accuracy_markdown(trainings: Sequence[Training]) -> str:
    """Separate heads against FedAvg, shared heads against SplitFed V2 and PSL."""
    labels = by_label(trainings)
    parts = []
    fedavg = labels.get(("separate", "fedavg"))
    separate = {label: ones for label, ones in labels.items() if label[0] == "separate"}
    if separate and fedavg:
        rows = [
            [name, _accuracy(ones), f"{same_bits(ones, fedavg)} of {len(fedavg)}", f"{fmean(o.moves for o in ones):g}"]
            for (_, name), ones in separate.items()
        ]
        head = ["separate heads", "accuracy, %", "seeds with FedAvg's bits", "moves a run"]
        parts.append(markdown(head, rows))
    shared = {label: ones for label, ones in labels.items() if label[0] == "shared"}
    if shared:
        references = [name for name in ("splitfed_v2", "psl") if ("shared", name) in labels]
        rows = []
        for (_, name), ones in shared.items():
            gaps = [_gap(name, other, labels) for other in references]
            seconds = mean([one.ended_s[-1] / len(one.ended_s) for one in ones]).text(3)
            rows.append([name, _accuracy(ones), *gaps, seconds])
        head = ["one shared head", "accuracy, %", *(f"against {name}, points" for name in references), "s an epoch"]
        parts.append(markdown(head, rows))
    return "\n".join(parts)


def time_to_accuracy_rows(trainings: Sequence[Training]) -> list[list[str]]:
    """A row a label: mean virtual seconds to each level, over the seeds that reached it, and how many did not."""
    rows = []
    for (heads, name), ones in by_label(trainings).items():
        cells = []
        for level in LEVELS:
            times = [reached_s(one, level) for one in ones]
            got = [each for each in times if each is not None]
            missed = len(times) - len(got)
            cells.append((mean(got).text(2) if got else "never") + (f" ({missed} never)" if got and missed else ""))
        rows.append([name, heads, *cells])
    return rows


def time_to_accuracy(trainings: Sequence[Training]) -> tuple[str, str]:
    """The table as Markdown and CSV."""
    head = ["algorithm", "heads", *(f"s to {100 * level:g} %" for level in LEVELS)]
    rows = time_to_accuracy_rows(trainings)
    return markdown(head, rows), to_csv(head, rows)


def _accuracy(ones: Sequence[Training]) -> str:
    return mean([100 * one.accuracy[-1] for one in ones]).text(2)


def _gap(name: str, other: str, labels: Mapping[Label, Sequence[Training]]) -> str:
    if name == other:
        return ""
    gap = difference(labels["shared", name], labels["shared", other])
    if math.isnan(gap.half):  # one seed tells nothing of noise
        return gap.text(2)
    return f"{gap.text(2)} ({'within' if within_noise(gap) else 'beyond'} noise)"
