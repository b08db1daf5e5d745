"""Whole runs in one process, by overrides: what the parity tests compare."""

from collections.abc import Callable

import pytest

from dynsl_app.compose import compose
from dynsl_app.inprocess import InProcessControl
from dynsl_app.run import run
from dynsl_app.server.folder import RunFolder
from dynsl_app.telemetry.sinks.jsonl import read_events

Train = Callable[..., RunFolder]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains with the given overrides; equal ones are run once."""
    done: dict[tuple[str, ...], RunFolder] = {}

    def run_once(*overrides: str) -> RunFolder:
        if overrides not in done:
            path = tmp_path_factory.mktemp("run") / "run"
            settings = compose([*overrides, f"run_dir={path}", "logging.console=off"])
            run(settings, InProcessControl(settings.clients))
            done[overrides] = RunFolder(path)
            lost = [event["reason"] for event in read_events(path / "events.jsonl") if event["event"] == "client_lost"]
            assert not lost
        return done[overrides]

    return run_once
