"""Server processes that die by SIGKILL at chosen moments, and go on (user cases 13, 38)."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynsl_app.server.folder import RunFolder

_DIE = """
import os, signal, sys
from dynsl_app.cli import main
from dynsl_app.telemetry.events import EventStream
emit, seen = EventStream.emit, []
def fatal(self, event, **fields):
    emit(self, event, **fields)
    seen.append((event, fields.get("round")))
    if seen.count({moment}) == {times}:
        os.kill(os.getpid(), signal.SIGKILL)
EventStream.emit = fatal
main()
"""


def curve(folder: RunFolder) -> list[list[str]]:
    """What metrics.csv says of each round, times apart."""
    with folder.metrics.open() as file:
        return [[row[k] for k in ("round", "train_loss", "loss", "accuracy")] for row in csv.DictReader(file)]


def killed(path: Path, settings: tuple[str, ...], moment: tuple[str, int], times: int = 1) -> RunFolder:
    """A run of the ``dynsl`` command that kills itself when an event has come so many times."""
    code = _DIE.format(moment=moment, times=times)
    done = subprocess.run([sys.executable, "-c", code, *settings, f"run_dir={path}"], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return RunFolder(path)


@pytest.mark.parametrize(
    ("moment", "times"),
    [(("step", 2), 2), (("round_end", 2), 1)],
    ids=["in mid-epoch", "before the checkpoint is written"],
)
def test_the_curve_is_the_same(trial, tmp_path: Path, moment: tuple[str, int], times: int) -> None:
    """Momentum that outlives rounds comes from the checkpoint, for clients and shared head alike."""
    settings = ("rounds=4", "optimizer.persist=run", "algorithm=psl", "optimizer.schedule.name=step")
    settings += ("optimizer.schedule.every=2", "clients_per_round=2")
    whole = trial(*settings).folder
    folder = killed(tmp_path / "killed", (*trial.BASE, *settings), moment, times)
    assert not folder.summary.exists()
    watch = trial.resume(folder)
    assert [event["round"] for event in watch.named("round_start")] == [2, 3, 4]
    assert curve(folder) == curve(whole)
    assert [row[0] for row in curve(folder)] == ["1", "2", "3", "4"]
    assert folder.model.read_bytes() == whole.model.read_bytes()
    assert folder.summary.exists()


def test_a_finished_run_goes_on_with_more_rounds(trial) -> None:
    """BatchNorm that stays each client's own, and moments that persist, come from the checkpoint."""
    settings = (
        "model=mobilenet_v2",
        "algorithm=splitfed_v1",
        "algorithm.cut=6",
        "server.batchnorm=local",
        "optimizer.persist=run",
        "data.limit=18",
        "wire=inprocess",
    )
    whole = trial(*settings, "rounds=3").folder
    folder = trial(*settings, "rounds=2").folder
    trial.resume(folder, "rounds=3")
    assert curve(folder) == curve(whole)
    assert folder.model.read_bytes() == whole.model.read_bytes()


def test_a_finished_run_stays_as_it_is(trial) -> None:
    folder = trial("rounds=2").folder
    model, rows = folder.model.read_bytes(), curve(folder)
    watch = trial.resume(folder)
    assert not watch.named("round_start")
    assert curve(folder) == rows
    assert folder.model.read_bytes() == model
    assert folder.summary.exists()
