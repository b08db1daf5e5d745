"""Flower's simulation, as ``flwr run . --stream`` starts it."""

import json
from collections.abc import Callable
from pathlib import Path

from flower_run import describe, run_folder, simulate

from dynsl_app.compose import compose
from dynsl_app.local_grid import run_local
from dynsl_app.telemetry.sinks.jsonl import read_events

_SMALL = "clients=3 rounds=2 data.limit=288"
_FLEET = "devices: [{name: quick, count: 2, compute: 1}, {name: slow, compute: 40}]"
"""So slow that the server does most of its blocks sooner, whatever machine this is."""


def test_simulation_trains_like_the_local_way(
    tmp_path: Path, runs: Path, moves: Callable[[Path], list[tuple[int, int, int]]]
) -> None:
    """User cases 37 and 40: one string of overrides, nothing installed on the way.

    Layers move in mid-epoch; the weights are those of fixed cuts, without Ray, on devices that are alike.
    """
    (tmp_path / "fleet.yaml").write_text(_FLEET)
    outcome = simulate(tmp_path / "flwr", 3, f"{_SMALL} name=simulated fleet.file={tmp_path}/fleet.yaml")
    assert outcome.completed, outcome.output
    folder = run_folder(outcome.output)  # sober lines reach whoever streams the run
    assert folder is not None
    path = folder / "summary.json"
    assert folder.parent == runs
    assert json.loads(path.read_text())["clients"] == 3
    assert f"run folder  {path.parent}" in describe(path)
    assert any(client == 2 and after < before for client, before, after in moves(path.parent))
    nodes = next(iter(read_events(path.parent / "events.jsonl")))["nodes"]
    assert sorted(nodes) == ["0", "1", "2"]

    local = tmp_path / "local"
    fixed = ["algorithm=splitfed_v1", "wire=inprocess", "logging.console=off"]
    run_local(compose([*_SMALL.split(), *fixed, f"run_dir={local}"]))
    assert (path.parent / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()


def test_lockstep_with_too_few_clients_at_once_is_refused(tmp_path: Path, runs: Path) -> None:
    """Nothing may wait for all clients where only some run at the same time; the run fails and names the setting."""
    outcome = simulate(tmp_path / "flwr", 3, f"{_SMALL} algorithm=psl", at_once=2)
    assert outcome.status == "finished:failed", outcome.output
    assert "only 2 can run at the same time" in outcome.details
    assert "init-args-num-cpus" in outcome.details
