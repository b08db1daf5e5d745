"""The ``dynsl`` command with runs that a test plays."""

import sys
from collections.abc import Callable

import pytest

from dynsl_app import cli
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary


def ended(settings: Settings, run_dir: str | None = None) -> Summary:
    """What a run of two rounds says of itself; its loss and moves tell its seed."""
    return Summary(
        accuracy=0.9,
        loss=0.01 * settings.seed,
        rounds=2,
        epoch_s=(3.0, 1.0),
        total_s=9.0,
        bytes_up=100,
        bytes_down=50,
        moves=settings.seed,
        cuts={0: 1},
        clients=1,
        algorithm=settings.algorithm.name,
        model="cnn",
        data="digits",
        seed=settings.seed,
        name="run",
        run_dir=run_dir or f"/runs/{settings.seed}",
    )


def call(monkeypatch: pytest.MonkeyPatch, run: Callable[[Settings], Summary], *arguments: str) -> int:
    """Exit code of the command, whose runs are ``run``."""
    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setattr(sys, "argv", ["dynsl", *arguments])
    try:
        return cli.main()
    except SystemExit as stop:  # Hydra's way to end
        return int(stop.code or 0)
