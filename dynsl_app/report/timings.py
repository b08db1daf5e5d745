"""Epoch times: what is kept of them, and tables of them."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from dynsl_app.errors import SettingsError
from dynsl_app.report.statistics import mean
from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.results import Case, Timing

Cases = Mapping[Case, Mapping[str, Timing]]
"""Timings by case and algorithm, in the order in which they were made."""

_HEAD = ("model", "links", "server", "dynamics", "algorithm", "mean_s", "interval_s")


def collect(found: Iterable[tuple[Case, str, float]]) -> list[Timing]:
    """One number a case, algorithm and seed, seeds in order, to timings."""
    seconds: dict[tuple[Case, str], list[float]] = {}
    for case, algorithm, each in found:
        seconds.setdefault((case, algorithm), []).append(each)
    return [Timing(case, algorithm, tuple(each)) for (case, algorithm), each in seconds.items()]


def by_case(timings: Iterable[Timing]) -> Cases:
    """Sort timings by case."""
    cases: dict[Case, dict[str, Timing]] = {}
    for timing in timings:
        cases.setdefault(timing.case, {})[timing.algorithm] = timing
    return cases


def timings_csv(timings: Sequence[Timing]) -> str:
    """A row a case and algorithm: mean, half of its 95 % interval, and every seed's seconds."""
    seeds = max(len(timing.seconds) for timing in timings)
    rows = []
    for timing in timings:
        case, average = timing.case, mean(timing.seconds)
        numbers = [average.value, average.half, *timing.seconds]
        rows.append(
            [case.model, case.links, case.server, case.dynamics, timing.algorithm, *(f"{one:.3f}" for one in numbers)]
        )
    return to_csv([*_HEAD, *(f"seed{number}_s" for number in range(seeds))], rows)


def read_timings(path: Path) -> list[Timing]:
    """What :func:`timings_csv` wrote.

    Raises
    ------
    SettingsError
        The file is another.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ())[: len(_HEAD)] != _HEAD:
            raise SettingsError(f"{path}: not a table of epoch times; run the experiment again")
        return [
            Timing(
                Case(row["model"], row["links"], row["server"], row["dynamics"]),
                row["algorithm"],
                tuple(float(value) for name, value in row.items() if name.startswith("seed")),
            )
            for row in reader
        ]


def timings_markdown(timings: Sequence[Timing]) -> str:
    """A table of algorithms by cases, seconds an epoch; one for each model, links and dynamics.

    Of uniform cuts the best, the mean and the worst; where there is nothing else, all.
    """
    parts = []
    tables: dict[tuple[str, str, str], dict[Case, Mapping[str, Timing]]] = {}
    for case, by_name in by_case(timings).items():
        tables.setdefault((case.model, case.links, case.dynamics), {})[case] = by_name
    for (model, links, dynamics), cases in tables.items():
        algorithms = dict.fromkeys(name for case in cases.values() for name in case)
        rows = [
            [name, *(mean(case[name].seconds).text(2) if name in case else "" for case in cases.values())]
            for name in algorithms
            if cut_of(name) is None
        ]
        if not rows:
            rows += _cut_rows(list(cases.values()))
        rows += _uniform_rows(list(cases.values()))
        title = f"{model}, {links}" + ("" if dynamics == "none" else f", {dynamics}")
        head = ["seconds an epoch", *(f"server {case.server}" for case in cases)]
        parts.append(f"### {title}\n\n{markdown(head, rows)}")
    return "\n".join(parts)


def cut_of(algorithm: str) -> int | None:
    """The cut of ``uniform 3``; None for others."""
    name, _, cut = algorithm.partition(" ")
    return int(cut) if name == "uniform" and cut else None


def uniform(case: Mapping[str, Timing]) -> list[Timing]:
    """The uniform cuts of a case, by cut."""
    return sorted((timing for timing in case.values() if cut_of(timing.algorithm)), key=_cut)


def _cut(timing: Timing) -> int:
    return cut_of(timing.algorithm) or 0


def _cut_rows(cases: Sequence[Mapping[str, Timing]]) -> list[list[str]]:
    """A row a cut."""
    columns = [[mean(timing.seconds).text(2) for timing in uniform(case)] for case in cases]
    return [[f"all at {cut}", *cells] for cut, cells in enumerate(zip(*columns, strict=True), start=1)]


def _uniform_rows(cases: Sequence[Mapping[str, Timing]]) -> list[list[str]]:
    """Best, mean and worst uniform cut: by the mean over seeds."""
    if not any(uniform(case) for case in cases):
        return []
    rows: list[list[str]] = [["uniform, best cut"], ["uniform, mean of cuts"], ["uniform, worst cut"]]
    for case in cases:
        cuts = sorted(uniform(case), key=lambda timing: fmean(timing.seconds))
        each = [fmean(seconds) for seconds in zip(*(timing.seconds for timing in cuts), strict=True)]
        rows[0].append(f"{mean(cuts[0].seconds).text(2)} (at {_cut(cuts[0])})")
        rows[1].append(mean(each).text(2))
        rows[2].append(f"{mean(cuts[-1].seconds).text(2)} (at {_cut(cuts[-1])})")
    return rows
