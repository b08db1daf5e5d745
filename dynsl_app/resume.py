"""Settings of a run that goes on: the ones it was started with, and the few that may change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from dynsl_app.algorithms import check
from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings
from dynsl_app.validate import read_yaml, validate

CHANGEABLE = (
    *("resume", "run_dir", "runtime", "rounds", "server.workers"),
    *("wire.*", "telemetry.*", "faults.*", "logging.*", "events.*", "sweep.*"),
)
"""What does not change the curve, so that a run may go on with other values."""


def resumed(folder: str, overrides: Sequence[Override]) -> Settings:
    """The settings saved in a run's folder, with overrides of what may change.

    Parameters
    ----------
    folder
        The run to go on with; it becomes both ``resume`` and ``run_dir``, absolute.

    Raises
    ------
    SettingsError
        If the folder holds no run that can go on, or an override could change its curve.
    """
    run = Path(folder).expanduser().absolute()
    plain = _saved(run)
    before = validate(plain)
    for override in overrides:
        _lay_over(plain, override, run)
    settings = check(validate(plain | {"resume": str(run), "run_dir": str(run)}))
    if settings.rounds != before.rounds and settings.optimizer.schedule.name == "cosine":
        raise SettingsError(
            f"resume={folder}: rounds={settings.rounds} cannot differ from the run's {before.rounds}, because its "
            f"cosine schedule spans all rounds; leave rounds out, or start a new run"
        )
    return settings


def _saved(run: Path) -> dict[str, Any]:
    if not run.is_dir():
        raise SettingsError(f"resume={run}: there is no such folder")
    config = run / "config.yaml"
    if not config.is_file():
        raise SettingsError(f"resume={run}: it holds no config.yaml, so it is not a run's folder")
    checkpoint = run / "checkpoint"
    if not checkpoint.is_dir() or not any(checkpoint.iterdir()):
        raise SettingsError(f"resume={run}: the run ended before its first checkpoint; start it anew")
    return read_yaml(config.read_text())


def _lay_over(plain: dict[str, Any], override: Override, run: Path) -> None:
    """Set one changeable value in place; a group's choice (``wire=inprocess``) is not a value."""
    *groups, name = override.key_or_group.split(".")
    allowed = override.key_or_group in CHANGEABLE or ".".join([*groups, "*"]) in CHANGEABLE
    if not allowed or override.type is OverrideType.DEL:
        raise SettingsError(
            f"resume={run}: {override.input_line} could change the run's curve, and a resumed run keeps the settings "
            f"it was started with; only these may be new: {', '.join(CHANGEABLE[1:])}"
        )
    value = override.value()
    if name == "run_dir" and Path(str(value)).expanduser().absolute() != run:
        raise SettingsError(f"run_dir={value}: a resumed run goes on in its own folder {run}; leave run_dir out")
    inner = plain
    for group in groups:
        inner = inner[group]
    inner[name] = value
