"""Runs that train for real in virtual time."""

import hashlib
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dynsl_app.plan import SEPARATE
from dynsl_app.results import Training
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.testbed.experiments.grid import Grid
from dynsl_app.testbed.run import run_testbed


def train(grid: Grid, algorithm: str, seed: int, overrides: Sequence[str] = ()) -> Training:
    """One run in a temporary folder, and what it left there.

    Parameters
    ----------
    overrides
        Further ones, such as where the data are.

    Raises
    ------
    DynslError
        The settings do not fit, or a round ended with no client.
    """
    with tempfile.TemporaryDirectory(prefix="dynsl-training-") as temporary:
        run = Path(temporary) / "run"
        settings = grid.settings({}, f"algorithm={algorithm}", f"seed={seed}", f"run_dir='{run}'", *overrides)
        summary = run_testbed(settings)
        ends = [event for event in read_events(run / "events.jsonl") if event["event"] == "round_end"]
        return Training(
            algorithm=algorithm,
            heads="separate" if settings.heads.count == SEPARATE else "shared",
            seed=seed,
            accuracy=tuple(event["accuracy"] for event in ends),
            ended_s=tuple(itertools.accumulate(summary.epoch_s)),
            moves=summary.moves,
            digest=hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest(),
        )
