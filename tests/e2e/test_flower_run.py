"""The scripts around Flower: what they start they end, and what they report is true."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import flower_run
import psutil
import pytest
from flower_runtime import Outcome, SuperLink, end_process

_RAY = Outcome("finished:failed", "Simulation failed with exception: The current node timed out during startup.", "")
_BUG = Outcome("finished:failed", "Simulation failed with exception: as ordered", "")
_DONE = Outcome("finished:completed", "", "")

_STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


class _NoSuperLink:
    """Stands in for SuperLink; each run ends as the test says."""

    outcomes: list[Outcome]

    def __init__(self, home: Path, *, simulation: bool) -> None:
        assert simulation

    def __enter__(self) -> "_NoSuperLink":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, overrides: str, **_: object) -> Outcome:
        return self.outcomes.pop(0)


@pytest.mark.parametrize(
    ("outcomes", "final", "left"),
    [([_DONE], _DONE, 0), ([_RAY, _DONE], _DONE, 0), ([_RAY, _RAY, _DONE], _RAY, 1), ([_BUG, _DONE], _BUG, 1)],
    ids=["first time", "second time", "never", "not Ray's fault"],
)
def test_only_a_failed_start_of_ray_is_tried_again_and_only_once(
    outcomes: list[Outcome], final: Outcome, left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = type("_StandIn", (_NoSuperLink,), {"outcomes": list(outcomes)})
    monkeypatch.setattr(flower_run, "SuperLink", stand_in)
    assert flower_run.simulate(tmp_path, 2, "") is final
    assert len(stand_in.outcomes) == left


def _end(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the script after a run that ended so."""
    monkeypatch.setattr(flower_run, "SuperLink", type("_StandIn", (_NoSuperLink,), {"outcomes": [outcome]}))
    monkeypatch.setattr(sys, "argv", ["flower_run.py", "simulation", "--clients", "2", "rounds=1"])
    return flower_run.main()


def _output(folder: Path) -> str:
    return f"INFO : run folder  {folder}\nfinished    1 round\nrun folder  {folder}\r\nINFO : done\n"


def test_what_is_told_is_of_the_folder_that_the_run_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    """Wherever it is, and whatever has ended since."""
    own = runs / "with a space"
    _summary(own, accuracy=0.975)
    _summary(runs / "newer", accuracy=0.1)
    assert _end(Outcome("finished:completed", "", _output(own)), monkeypatch) == 0
    printed = capsys.readouterr()
    assert "0.9750 after 3 rounds" in printed.out
    assert f"run folder  {own}\n" in printed.out


def test_a_run_that_failed_is_told_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _end(_BUG, monkeypatch) == 1
    printed = capsys.readouterr()
    assert "as ordered" in printed.err
    assert "accuracy" not in printed.out


def test_a_run_that_names_no_folder_is_not_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    _summary(runs / "another", accuracy=0.5)
    assert _end(_DONE, monkeypatch) == 0
    assert "accuracy" not in capsys.readouterr().out


def test_a_folder_that_is_gone_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    _summary(runs / "another", accuracy=0.5)
    assert _end(Outcome("finished:completed", "", _output(runs / "own")), monkeypatch) == 1
    printed = capsys.readouterr()
    assert f"its results in {runs / 'own'} cannot be read (No such file or directory)" in printed.err
    assert "accuracy" not in printed.out


def test_end_process_leaves_no_descendant() -> None:
    """The parent ignores the polite request, and its child would outlive it."""
    with subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        end_process(process, patience=0.5)
        assert process.returncode is not None
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        end_process(process)  # it is gone already


def test_superlink_that_cannot_start_says_why(tmp_path: Path) -> None:
    superlink = SuperLink(tmp_path / "flwr", simulation=True)
    superlink.port = -1
    with pytest.raises(RuntimeError, match="did not come up on port -1"), superlink:
        pass


def _summary(folder: Path, *, accuracy: float) -> None:
    folder.mkdir(parents=True)
    fields: Mapping[str, object] = {
        "accuracy": accuracy,
        "rounds": 3,
        "epoch_s": [1.0, 2.0],
        "total_s": 9.0,
        "bytes_up": 10,
        "bytes_down": 10,
        "cuts": {"0": 3},
        "clients": 1,
        "data": "digits",
        "model": "cnn",
        "algorithm": "psl",
    }
    (folder / "summary.json").write_text(json.dumps(fields))


def test_interrupting_is_told_at_once_and_cannot_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def twice(*_: object, **__: object) -> Outcome:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
        return _DONE

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(flower_run, "simulate", twice)
    monkeypatch.setattr(sys, "argv", ["flower_run.py", "simulation"])
    try:
        assert flower_run.main() == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "interrupted; ending what was started takes some seconds",
        "all that was started has ended",
    ]
