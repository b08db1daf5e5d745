"""A sweep that goes on: which of its runs are kept, and which are done again."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import commands
import pytest

from dynsl_app.errors import RoundFailed
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.sweep import read_rows
from dynsl_app.validate import to_yaml

ON = "hydra.callbacks.sweep.resume=true"
SWEEP = ("-m", "algorithm=fedavg,psl", "seed=1,2", "rounds=2", "hydra.sweep.dir=sweep")

Dynsl = Callable[..., tuple[int, list[tuple[str, int]]]]


@pytest.fixture
def dynsl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dynsl:
    """Calls the command in an empty folder; its exit code, and the runs that it started, which leave their folders."""
    monkeypatch.chdir(tmp_path)
    numbers = itertools.count()

    def call(*arguments: str, fail: tuple[str, int] | None = None, stop: int = 99) -> tuple[int, list[tuple[str, int]]]:
        runs: list[tuple[str, int]] = []

        def run(settings: Settings) -> Summary:
            if len(runs) == stop:
                raise KeyboardInterrupt
            runs.append((settings.algorithm.name, settings.seed))
            folder = tmp_path / "runs" / str(next(numbers))
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(to_yaml(settings))
            if runs[-1] == fail:
                raise RoundFailed("round 1: no client finished")
            summary = commands.ended(settings, str(folder))
            (folder / "summary.json").write_text(summary.to_json())
            return summary

        return commands.call(monkeypatch, run, *arguments), runs

    return call


def rows(folder: Path) -> list[dict[str, str]]:
    return read_rows(folder / "sweep" / "multirun.csv")


def test_only_what_failed_or_is_missing_is_done(
    dynsl: Dynsl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, runs = dynsl(*SWEEP, fail=("fedavg", 2), stop=3)
    assert (code, runs) == (130, [("fedavg", 1), ("fedavg", 2), ("psl", 1)])
    before = rows(tmp_path)
    assert [row["status"] for row in before] == ["ok", "failed", "ok"]
    capsys.readouterr()

    code, runs = dynsl(*SWEEP, ON)
    assert (code, runs) == (0, [("fedavg", 2), ("psl", 2)])
    after = rows(tmp_path)
    assert [row["job"] for row in after] == ["0", "1", "2", "3"]
    assert (after[0], after[2]) == (before[0], before[2])
    assert {row["status"] for row in after} == {"ok"}
    assert "run #0      is kept: " + before[0]["run_dir"] in capsys.readouterr().out

    assert dynsl(*SWEEP, ON) == (0, [])
    assert rows(tmp_path) == after


def alter(file: str, old: str, new: str) -> Callable[[Path], None]:
    def act(run: Path) -> None:
        text = (run / file).read_text()
        assert old in text
        (run / file).write_text(text.replace(old, new))

    return act


def other_code(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["versions"] |= {"code": "0" * 12, "torch": "1.0"}
    (run / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (shutil.rmtree, "its folder is gone or cannot be read"),
        (lambda run: (run / "summary.json").write_text("[]"), "its folder is gone or cannot be read"),
        (lambda run: (run / "config.yaml").unlink(), "its folder is gone or cannot be read"),
        (alter("config.yaml", "lr: 0.001", "lr: 0.002"), "it had other settings of optimizer"),
        (other_code, "it was made with other versions of DynSL's code, torch"),
        (alter("config.yaml", "console: auto", "console: 'off'"), None),
    ],
    ids=["gone", "damaged", "no settings", "other settings", "other code", "other console"],
)
def test_a_run_that_cannot_stand_for_the_job_is_done_again(
    dynsl: Dynsl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    reason: str | None,
) -> None:
    dynsl(*SWEEP)
    change(tmp_path / "runs" / "2")
    code, runs = dynsl(*SWEEP, ON)
    assert (code, runs) == (0, [] if reason is None else [("psl", 1)])
    if reason is not None:
        assert f"run #2      is done again: {reason} ({tmp_path}/runs/2)\n" in capsys.readouterr().out
        assert rows(tmp_path)[2]["run_dir"] == str(tmp_path / "runs" / "4")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m", "seed=1,2", "algorithm=fedavg,psl", "rounds=2"], "the sweep in "),
        (["-m", "algorithm=fedavg,psl", "seed=1,2", "rounds=3"], "the sweep in "),
        (["-m", "algorithm=fedavg,psl", "seed=1,2", "rounds=2", "hydra/sweeper=optuna"], "OptunaSweeper tries other"),
    ],
)
def test_another_sweep_is_refused_and_spoils_nothing(
    dynsl: Dynsl, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    dynsl(*SWEEP)
    before = rows(tmp_path)
    code, runs = dynsl(*arguments, "hydra.sweep.dir=sweep", ON)
    assert (code, runs) == (1, [])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {ON}: ")
    assert says in error
    assert "choose another hydra.sweep.dir" in error
    assert rows(tmp_path) == before
    assert dynsl(*SWEEP, ON) == (0, [])


def test_a_sweep_whose_request_is_lost_is_refused(
    dynsl: Dynsl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynsl(*SWEEP)
    (tmp_path / "sweep" / "multirun.yaml").unlink()
    assert dynsl(*SWEEP, ON) == (1, [])
    assert "multirun.yaml cannot be read" in capsys.readouterr().err


def test_going_on_where_nothing_has_begun_begins(dynsl: Dynsl) -> None:
    assert dynsl(*SWEEP, ON)[1] == [("fedavg", 1), ("fedavg", 2), ("psl", 1), ("psl", 2)]
