"""Flower's ServerApp: composes the settings and runs the round loop over Flower's Grid. The rest is in ``server/``."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dynsl_app.compose import compose, split_overrides
from dynsl_app.errors import DynslError, SettingsError
from dynsl_app.flower_control import GridControlPlane
from dynsl_app.run import run
from dynsl_app.settings import Settings

app = ServerApp()

# Flower runs apps in the SuperLink's working directory, which says nothing about the user's.
_DEFAULT_BASE = Path.home() / "dynsl-runs"


def _without_stack(record: logging.LogRecord) -> bool:
    """Let Flower log an error that its user can act on as one line; faults of ours keep their stack."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DynslError):
        record.msg, record.args = "%s: %s", (record.getMessage(), error)
        record.exc_info = record.exc_text = None
    return True


logging.getLogger("flwr").addFilter(_without_stack)


def refuse_other_ways(settings: Settings) -> None:
    """Refuse what only holds for runs without Flower: raises SettingsError with the remedy."""
    if settings.wire.name == "inprocess":
        raise SettingsError(
            "wire=inprocess cannot reach the clients of a Flower run, which are other processes; use wire=grpc"
        )
    if settings.runtime == "testbed":
        raise SettingsError("runtime=testbed simulates devices itself, without Flower; use `dynsl runtime=testbed …`")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one training, as ``--run-config "overrides='…'"`` says.

    Raises
    ------
    DynslError
        Whatever ends the run early; Flower then shows it as failed, with this reason.
    """
    overrides = split_overrides(str(context.run_config["overrides"]))
    settings = compose(overrides, config_name=str(context.run_config["config-name"]))
    refuse_other_ways(settings)
    run(settings, GridControlPlane(grid), _DEFAULT_BASE)
