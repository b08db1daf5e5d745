"""What a sweep leaves behind: ``multirun.csv``, a row for each of its runs, written as they end.

Hydra makes :class:`Record` by ``conf/hydra/callbacks/sweep.yaml`` and tells it of each job, in the process that runs
it. The columns are explained in docs/sweeps.md.
"""

import csv
import fcntl
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from hydra.conf import HydraConf
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dynsl_app.errors import DynslError
from dynsl_app.kept import NotTheSame, check_same_sweep, kept
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary

FILE = "multirun.csv"

RESULTS = (
    *("status", "error", "run_dir", "accuracy", "loss", "epoch_s", "epochs_s", "total_s", "moves"),
    *("bytes_up", "bytes_down"),
)
"""Columns after the job's number and its overrides."""


class Record(Callback):
    """Turns what a job returned or raised into a row, and into the number that a sweeper optimises.

    A job of ``dynsl`` returns its :class:`~dynsl_app.summary.Summary` or raises. One that raised counts as done, with
    no number, so that the sweep goes on.

    Parameters
    ----------
    resume
        Whether the folder's sweep goes on, see :func:`finished`; else a folder that holds one is refused.
    """

    current: ClassVar["Record | None"] = None
    """The sweep of this process: Hydra makes it, so that nobody could hand it on."""

    def __init__(self, resume: bool = False) -> None:
        self._resume = resume
        self.path: Path | None = None
        """``multirun.csv``, absolute; None outside of a sweep."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Take the sweep's folder.

        Ends the program if the folder holds another sweep, or the sweeper would seek the worst run.
        """
        path = Path(str(config.hydra.sweep.dir)).absolute() / FILE
        if path.exists() and not self._resume:
            _refuse(
                f"hydra.sweep.dir={path.parent} holds a sweep already ({path}); choose another folder, or set "
                f"hydra.callbacks.sweep.resume=true to go on with it"
            )
        if path.exists():
            try:
                check_same_sweep(path.parent, config)
            except NotTheSame as error:
                _refuse(f"hydra.callbacks.sweep.resume=true: {error}")
        metric, direction = str(config.sweep.metric), OmegaConf.select(config, "hydra.sweeper.direction")
        best = "maximize" if metric == "accuracy" else "minimize"
        if direction is not None and str(getattr(direction, "name", direction)) != best:
            _refuse(
                f"sweep.metric={metric} with hydra.sweeper.direction={getattr(direction, 'name', direction)} looks for "
                f"the worst run; set hydra.sweeper.direction={best}, or another sweep.metric"
            )
        self.path, Record.current = path, self

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Write the job's row, and leave its number as the job's result."""
        if self.path is None:
            return
        result = job_return._return_value  # the property would raise what the job raised
        row = {"job": config.hydra.job.num, **_values(config.hydra.overrides.task)}
        if isinstance(result, Summary):
            job_return.return_value = measure(result, str(config.sweep.metric))
            row |= _results(result)
        else:
            job_return.status, job_return.return_value = JobStatus.COMPLETED, None
            row |= _failure(result)
        add_row(self.path, row)
        print(_line(row), flush=True)

    def report(self) -> int:
        """Print, at the sweep's end, where its rows are and which runs failed.

        Returns
        -------
        int
            How many failed.
        """
        assert self.path is not None
        rows = read_rows(self.path)
        if rows:
            print(f"sweep       {self.path}", flush=True)
        failed = [row for row in rows if row["status"] == "failed"]
        if failed:
            print(f"{len(failed)} of {len(rows)} runs failed:", file=sys.stderr)
        for row in failed:
            print(f"  #{row['job']} {_settings(row)}: {row['error']}", file=sys.stderr)
        return len(failed)


def finished(hydra: HydraConf, settings: Settings) -> Summary | None:
    """What a job has left in a sweep that goes on, if that may stand for it; None: the job is to be done.

    Prints that it is kept, or why it is done again.
    """
    if hydra.mode is not RunMode.MULTIRUN or not OmegaConf.select(DictConfig(hydra), "callbacks.sweep.resume"):
        return None
    rows = read_rows(Path(hydra.sweep.dir).absolute() / FILE)
    folder = next((row["run_dir"] for row in rows if (row["job"], row["status"]) == (str(hydra.job.num), "ok")), None)
    if folder is None:
        return None
    try:
        summary = kept(Path(folder), settings)
    except NotTheSame as reason:
        print(f"run #{hydra.job.num:<6} is done again: {reason} ({folder})", flush=True)
        return None
    print(f"run #{hydra.job.num:<6} is kept: {folder}", flush=True)
    return summary


def measure(summary: Summary, metric: str) -> float | None:
    """The number that ``sweep.metric`` names; None where the run has none."""
    match metric:
        case "accuracy":
            return summary.accuracy
        case "loss":
            return summary.loss
        case "epoch_s":
            return _mean(summary.epoch_s)
        case "total_s":
            return summary.total_s
        case "bytes":
            return float(summary.bytes_up + summary.bytes_down)
    raise ValueError(f"{metric!r} is no sweep.metric")


def add_row(path: Path, row: Mapping[str, object]) -> None:
    """Add a row in the order of the jobs' numbers, in place of one of the same number.

    Safe in several processes at once, and the file is always whole.
    """
    # Imported here: it loads torch, which the process of a job has loaded by now.
    from dynsl_app.server.durable import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        others = [each for each in read_rows(path) if each["job"] != str(row["job"])]
        rows: list[Mapping[str, object]] = sorted([*others, row], key=lambda each: int(str(each["job"])))
        overrides = dict.fromkeys(name for each in rows for name in each if name not in ("job", *RESULTS))
        with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["job", *overrides, *RESULTS])
            writer.writeheader()
            writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows so far; none before the first run has ended."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _values(overrides: Sequence[str]) -> dict[str, str]:
    pairs = (override.partition("=") for override in overrides)
    return {name.lstrip("+~"): value for name, _, value in pairs}


def _results(summary: Summary) -> dict[str, object]:
    return {
        "status": "ok",
        "run_dir": summary.run_dir,
        "accuracy": summary.accuracy,
        "loss": summary.loss,
        "epoch_s": _mean(summary.epoch_s),
        "epochs_s": json.dumps(summary.epoch_s),
        "total_s": summary.total_s,
        "moves": summary.moves,
        "bytes_up": summary.bytes_up,
        "bytes_down": summary.bytes_down,
    }


def _failure(error: object) -> dict[str, object]:
    """Status, first line of the error and the folder, if the run left one; what is no user's error is shown whole."""
    if isinstance(error, DynslError):
        text, run_dir = str(error), error.run_dir
    else:
        assert isinstance(error, BaseException)
        traceback.print_exception(error)
        text, run_dir = f"{type(error).__name__}: {error}", None
    print(f"error: {text}", file=sys.stderr, flush=True)
    found = {} if run_dir is None else {"run_dir": str(run_dir)}
    return {"status": "failed", "error": (text.splitlines() or [""])[0], **found}


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _line(row: Mapping[str, object]) -> str:
    """One ended run for people."""
    if row["status"] == "failed":
        return f"run #{row['job']:<6} failed      {_settings(row)}"
    numbers = [
        f"{name} {row[name]:.4g}{unit}"
        for name, unit in (("accuracy", ""), ("loss", ""), ("epoch_s", " s"))
        if isinstance(row[name], float)
    ]
    return f"run #{row['job']:<6} {', '.join(numbers)}  {_settings(row)}"


def _settings(row: Mapping[str, object]) -> str:
    """What a row's run was given: an empty cell is an override that only another run had."""
    values = {name: value for name, value in row.items() if name not in ("job", *RESULTS) and value != ""}
    return " ".join(f"{name}={value}" for name, value in values.items())


def _refuse(reason: str) -> NoReturn:
    # Hydra makes a warning of any exception of a callback, and goes on.
    print(f"error: {reason}", file=sys.stderr)
    raise SystemExit(1)
