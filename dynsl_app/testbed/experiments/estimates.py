"""What telemetry believes of links, against what is true, while an epoch runs."""

from collections.abc import Sequence
from itertools import islice

from dynsl_app.algorithms import check
from dynsl_app.errors import SettingsError
from dynsl_app.results import Estimate
from dynsl_app.telemetry.events import Event
from dynsl_app.testbed.experiments.grid import Grid
from dynsl_app.testbed.run import Testbed
from dynsl_app.testbed.world import RatePath

RECENT_S = 10
"""Seconds over which the recent true rate is a mean."""


def watch(grid: Grid, seed: int) -> list[Estimate]:
    """Every batch of every client in one run.

    Raises
    ------
    SettingsError
        The algorithm estimates nothing, or the links' rates are changed by dynamics.
    """
    settings = check(grid.settings({}, f"seed={seed}", f"algorithm={grid.algorithms[0]}"))
    if settings.dynamics.rows:
        raise SettingsError(f"dynamics={settings.dynamics.name}: truths are of undisturbed links; use dynamics=none")
    bed = Testbed(settings)
    watcher = _Watcher(bed, seed)
    bed.epochs([watcher])
    if bed.book is None:
        raise SettingsError(f"algorithm={settings.algorithm.name} estimates nothing; use algorithm=dynsl")
    return watcher.seen


class _Watcher:
    """A sink that looks into the book when a batch is done."""

    def __init__(self, bed: Testbed, seed: int) -> None:
        self.seen: list[Estimate] = []
        self._bed, self._seed = bed, seed

    def handle(self, event: Event) -> None:
        """Take an event."""
        if self._bed.book is None:
            return
        if event["event"] == "step":
            self._look(event["t"], [member[0] for member in event["members"]])
        elif event["event"] == "progress":
            self._look(event["t"], [event["client"]])

    def close(self) -> None:
        """Nothing to close."""

    def _look(self, at_s: float, clients: Sequence[int]) -> None:
        assert self._bed.book is not None
        for client in clients:
            link, truth = self._bed.book.client(client).link, self._bed.world.clients[client]
            self.seen.append(
                Estimate(
                    seed=self._seed,
                    client=client,
                    at_s=at_s,
                    up_Bps=link.up.value,
                    down_Bps=link.down.value,
                    up_true_Bps=mean_rate(truth.up, at_s, at_s),
                    down_true_Bps=mean_rate(truth.down, at_s, at_s),
                    up_recent_Bps=mean_rate(truth.up, max(0.0, at_s - RECENT_S), at_s),
                    down_recent_Bps=mean_rate(truth.down, max(0.0, at_s - RECENT_S), at_s),
                )
            )


def mean_rate(path: RatePath, start_s: float, end_s: float) -> float:
    """True bytes per second between two times; at one time if they are the same."""
    if end_s <= start_s:
        return next(iter(path.segments(start_s)))[1]
    now, passed = start_s, 0.0
    for until, Bps in islice(path.segments(start_s), 100_000):
        until = min(until, end_s)
        passed += Bps * (until - now)
        now = until
        if now >= end_s:
            break
    return passed / (now - start_s)
