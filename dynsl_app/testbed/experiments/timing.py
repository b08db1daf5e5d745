"""Epoch times of all algorithms in one case and seed, over one world."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dynsl_app.algorithms import check
from dynsl_app.fleet import SERVERS
from dynsl_app.results import Case
from dynsl_app.settings import Settings
from dynsl_app.testbed.experiments.grid import Grid
from dynsl_app.testbed.run import Testbed

BETWEEN, AT_ONCE = "dynsl between rounds", "dynsl at once"
"""``dynsl`` that does not move in mid-epoch, and that never waits before a long move (``allocator.guard=0``)."""

_VARIANTS: Mapping[str, Mapping[str, Any]] = {BETWEEN: {"mid_epoch": False}, AT_ONCE: {"guard": 0.0}}


def case_of(settings: Settings) -> Case:
    """The conditions of a run."""
    fleet = settings.fleet
    server = (fleet.server or SERVERS["medium"]).name
    dynamics = settings.dynamics
    repeated = " in every round" if dynamics.rows and dynamics.rounds is not None else ""
    return Case(settings.model.label, fleet.links or "own", server or "own", f"{dynamics.name}{repeated}")


def time_case(grid: Grid, case: Mapping[str, str], seed: int) -> list[tuple[Case, str, float]]:
    """Mean seconds of the rounds that count, by algorithm in the order of tables.

    The first round is a start from nothing known and does not count; of ``sfsl`` its warm-up, a round a block, does
    not. Dynamics come as a surprise: only in the last round, which is the only one that counts, unless
    ``dynamics.rounds`` says otherwise. ``uniform`` is every cut, unless the case sets one. Where something happens,
    ``dynsl`` has variants, too.

    Raises
    ------
    DynslError
        The settings do not fit.
    """
    first = grid.settings(case, f"seed={seed}", f"algorithm={grid.algorithms[0]}")
    bed = Testbed(check(first))
    found = []
    for label, settings in _runs(first, grid.algorithms, bed.world.blocks):
        counted = settings.rounds if settings.rounds == 1 else first.rounds - 1
        surprise = first.dynamics.rows and first.dynamics.rounds is None
        if surprise:
            dynamics = dataclasses.replace(settings.dynamics, rounds=[settings.rounds])
            settings, counted = dataclasses.replace(settings, dynamics=dynamics), 1
        seconds = bed.alike(check(settings)).epochs()
        found.append((case_of(first), label, fmean(seconds[-counted:])))
    return found


def _runs(first: Settings, algorithms: Sequence[str], blocks: int) -> Iterable[tuple[str, Settings]]:
    base = dataclasses.replace(first, server=dataclasses.replace(first.server, policy=None))
    for name in algorithms:
        changed: Mapping[str, Any] = {"name": name}
        algorithm = dataclasses.replace(first.algorithm, **changed)
        settings = dataclasses.replace(base, algorithm=algorithm)
        if name == "uniform" and algorithm.cut is None:
            for cut in range(1, blocks + 1):
                one = dataclasses.replace(settings, algorithm=dataclasses.replace(algorithm, cut=cut))
                yield f"uniform {cut}", one
        elif name == "sfsl":
            yield name, dataclasses.replace(settings, rounds=blocks + max(1, first.rounds - 1))
        else:
            yield name, settings
        if name == "dynsl" and first.dynamics.rows and first.dynamics.rounds is None:
            links = any(row.link is not None for row in first.dynamics.rows)
            for label, other in _VARIANTS.items():
                if label == AT_ONCE and not links:  # only a slow link makes a move long
                    continue
                yield label, dataclasses.replace(settings, allocator=dataclasses.replace(first.allocator, **other))
