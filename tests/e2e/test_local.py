"""The local way: Flower's apps in one process, by the ``dynsl`` command and from Python."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dynsl_app.compose import compose
from dynsl_app.inprocess import InProcessControl
from dynsl_app.local_grid import run_local
from dynsl_app.run import run
from dynsl_app.telemetry.sinks.jsonl import read_events

_TINY = ["clients=3", "rounds=2", "data.limit=96"]
_WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from dynsl_app.cli import main; sys.exit(main())"


def _dynsl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The ``dynsl`` command in a folder, where Ray cannot be imported."""
    command = [sys.executable, "-c", _WITHOUT_RAY, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_command_trains_without_ray(tmp_path: Path, runs: Path) -> None:
    """User case 33: the same apps in one process. User case 1: the default configuration just runs."""
    done = _dynsl(tmp_path, "runtime=local", "algorithm=splitfed_v1", *_TINY, "name=tiny")
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    assert folder.name.endswith("-tiny")
    assert str(folder) in done.stdout
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rounds"], summary["clients"], len(summary["epoch_s"])) == (2, 3, 2)
    assert summary["bytes_up"] > 0
    written = {path.name for path in folder.iterdir()}
    assert written >= {"config.yaml", "events.jsonl", "metrics.csv", "model.safetensors", "checkpoint", "trace.json"}


def test_the_demo_fleet_moves_in_mid_epoch(
    tmp_path: Path, runs: Path, moves: Callable[[Path], list[tuple[int, int, int]]]
) -> None:
    """With the defaults, within two rounds."""
    done = _dynsl(tmp_path, "runtime=local", "fleet=demo", "rounds=2")
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    assert moves(folder)


@pytest.mark.parametrize("limit", [1, 8, 9])
def test_the_defaults_train_one_client_on_next_to_nothing(tmp_path: Path, limit: int) -> None:
    """One or two batches, one of them of one sample: nothing to plan, and nothing to warn of."""
    folder = tmp_path / "run"
    overrides = ["model=mlp", "clients=1", "rounds=2", f"data.limit={limit}", f"run_dir={folder}"]
    summary = run_local(compose([*overrides, "logging.console=off"]))
    assert (summary.algorithm, summary.rounds, len(summary.cuts)) == ("dynsl", 2, 1)
    assert not [event for event in read_events(folder / "events.jsonl") if event["event"] == "warning"]


def test_command_fails_with_the_setting_and_no_traceback(tmp_path: Path, runs: Path) -> None:
    done = _dynsl(tmp_path, "algorithm.cut=99", *_TINY)
    assert done.returncode == 1
    assert "algorithm.cut=99" in done.stderr
    assert "Traceback" not in done.stderr


def test_sweep_makes_a_run_for_each_value(tmp_path: Path, runs: Path) -> None:
    done = _dynsl(tmp_path, "-m", "algorithm=splitfed_v1,psl", "rounds=1", "clients=2", "data.limit=64")
    assert done.returncode == 0, done.stderr
    found = {json.loads((folder / "summary.json").read_text())["algorithm"] for folder in runs.iterdir()}
    assert found == {"splitfed_v1", "psl"}


def test_all_ways_in_one_process_give_the_same_weights(tmp_path: Path) -> None:
    """Through Flower's messages or handed over, over gRPC or in-process: the model file has the same bytes."""
    models = []
    for number, (wire, flower) in enumerate([("grpc", True), ("inprocess", True), ("inprocess", False)]):
        folder = tmp_path / str(number)
        settings = compose([*_TINY, f"wire={wire}", f"run_dir={folder}", "logging.console=off"])
        summary = run_local(settings) if flower else run(settings, InProcessControl(3))
        assert summary.run_dir == str(folder)
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1] == models[2]
