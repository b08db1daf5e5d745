"""Epoch times of adaptive cuts beside every fixed one."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynsl_app.algorithms import ALGORITHMS
from dynsl_app.errors import SettingsError
from dynsl_app.report.run import Run


@dataclass(frozen=True)
class Comparison:
    """Runs that differ in their cuts only.

    Attributes
    ----------
    adaptive
        The run whose cuts follow what is measured.
    fixed
        Runs with one cut for all clients, by cut.
    """

    adaptive: Run
    fixed: tuple[Run, ...]

    @property
    def best(self) -> Run:
        """The fixed cut whose epochs are shortest."""
        return min(self.fixed, key=lambda run: run.mean_epoch_s)

    @property
    def mean_s(self) -> float:
        """Seconds an epoch takes, mean over the fixed cuts."""
        return sum(run.mean_epoch_s for run in self.fixed) / len(self.fixed)

    def gain(self, seconds: float) -> float:
        """The share of ``seconds`` that an adaptive epoch is shorter by; negative: longer."""
        return 1 - self.adaptive.mean_epoch_s / seconds

    @property
    def same_model(self) -> bool:
        """Whether all runs ended with the same weights, bit for bit."""
        return len({run.model for run in (self.adaptive, *self.fixed)}) == 1


def compare(runs: Sequence[Run]) -> Comparison:
    """Sort out runs.

    Raises
    ------
    SettingsError
        They are not one adaptive run and at least one with fixed cuts, or they differ in more than their cuts.
    """
    adaptive = [run for run in runs if ALGORITHMS[run.settings.algorithm.name].adaptive]
    fixed = [run for run in runs if run not in adaptive]
    if len(adaptive) != 1 or not fixed:
        raise SettingsError(
            f"{len(adaptive)} runs with adaptive cuts (algorithm=dynsl) and {len(fixed)} others; "
            f"give one and at least one"
        )
    for run in fixed:
        for name in _SAME:
            here, there = getattr(run.settings, name), getattr(adaptive[0].settings, name)
            if here != there:
                raise SettingsError(
                    f"{run.path} and {adaptive[0].path} differ in {name} ({here} and {there}), so their epochs cannot "
                    f"be compared; repeat one of them with the other's"
                )
    return Comparison(adaptive[0], tuple(sorted(fixed, key=_cut)))


_SAME = (
    *("seed", "rounds", "clients", "clients_per_round", "local_epochs", "threads", "fleet", "model", "data"),
    *("optimizer", "heads", "server", "wire"),
)
"""Settings that runs to be compared share."""


def comparison(compared: Comparison) -> RenderableType:
    """A table of epoch times, and what adaptive cuts gain."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("cuts")
    for heading in ("s an epoch", "round by round", "accuracy", "dynsl is shorter by"):
        table.add_column(heading, justify="right")
    for run in compared.fixed:
        table.add_row(*_row(_label(run), run), _percent(compared.gain(run.mean_epoch_s)))
    table.add_section()
    mean_s = compared.mean_s
    table.add_row("mean of these", f"{mean_s:.2f}", "", "", _percent(compared.gain(mean_s)))
    best_s = compared.best.mean_epoch_s
    table.add_row("best of these", f"{best_s:.2f}", "", "", _percent(compared.gain(best_s)))
    table.add_row(*_row(compared.adaptive.settings.algorithm.name, compared.adaptive), "")
    end = "All runs end with the same weights, bit for bit." if compared.same_model else "The runs' weights differ."
    return Group(table, Text(end))


def _row(label: str, run: Run) -> tuple[str, str, str, str]:
    rounds = " ".join(f"{seconds:.2f}" for seconds in run.epoch_s)
    accuracy = "–" if run.accuracy is None else f"{run.accuracy:.4f}"
    return label, f"{run.mean_epoch_s:.2f}", rounds, accuracy


def _label(run: Run) -> str:
    cut = _cut(run)
    return f"all at {cut}{' (whole model)' if cut == run.blocks else ''}"


def _cut(run: Run) -> int:
    return min(cut for client in run.clients for cut in client.starts.values())


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
