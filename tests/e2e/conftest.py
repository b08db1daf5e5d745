"""Whole runs, started as a user starts them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dynsl_app.telemetry.sinks.jsonl import read_events

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs go, for this process and those it starts."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("DYNSL_RUNS", str(folder))
    return folder


def _moves(run: Path) -> list[tuple[int, int, int]]:
    events = [event for event in read_events(run / "events.jsonl") if event["event"] == "move"]
    assert json.loads((run / "summary.json").read_text())["moves"] == len(events)
    return [(event["client"], event["cut_before"], event["cut"]) for event in events]


@pytest.fixture
def moves() -> Callable[[Path], list[tuple[int, int, int]]]:
    """Completed moves of a finished run: client, blocks before and after; its events and its summary agree."""
    return _moves
