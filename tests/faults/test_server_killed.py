"""A server that dies at any moment goes on from its checkpoint with the same curve."""

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

from dynsl_app.telemetry.sinks.jsonl import read_events

DYNSL = str(Path(sys.executable).parent / "dynsl")

SMALL = [
    "model=mlp",
    "data=synthetic",
    "data.shape=[1,8,8]",
    "data.samples=120",
    "data.batch=4",
    "logging.console=off",
]


def run_command(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [DYNSL, *overrides, f"run_dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def curve(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "metrics.csv").open() as file:
        return [(row["round"], row["train_loss"], row["loss"], row["accuracy"]) for row in csv.DictReader(file)]


def test_a_server_killed_with_9_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    """User cases 13, 38: optimizer state that outlives a round included."""
    settings = [*SMALL, "clients=3", "rounds=4", "optimizer.persist=run", "algorithm=splitfed_v1"]
    assert run_command(tmp_path / "whole", *settings).wait() == 0
    killed = run_command(tmp_path / "killed", *settings)
    log = tmp_path / "killed" / "events.jsonl"
    while not (log.exists() and any(e["event"] == "round_start" and e["round"] == 3 for e in read_events(log))):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resume = [DYNSL, f"resume={tmp_path / 'killed'}", "logging.console=off"]
    assert subprocess.run(resume, check=False).returncode == 0
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
