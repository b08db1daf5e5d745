"""One run from its settings to its summary, over any control plane: what all ways of running have in common."""

from pathlib import Path

from dynsl_app.server import checkpoint, rounds
from dynsl_app.server.control import ControlPlane
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.sinks.factory import make_sinks


def run(settings: Settings, control: ControlPlane, default_base: Path = Path("runs")) -> Summary:
    """Open the run's folder, new or resumed, and train in it.

    Parameters
    ----------
    settings
        The run's settings.
    control
        Reaches the clients.
    default_base
        Where the folder of a new run goes, unless ``run_dir`` or ``$DYNSL_RUNS`` says otherwise.

    Raises
    ------
    DynslError
        If the folder cannot be opened, or the run fails; the folder keeps what was written until then.
    """
    start = None
    if settings.resume is None:
        folder = RunFolder.create(settings, default_base)
    else:
        path = Path(settings.resume)
        start = checkpoint.load(path / "checkpoint")
        folder = RunFolder.reopen(path, start.round)
    events = EventStream(make_sinks(settings, folder), start=folder.elapsed())
    try:
        return rounds.run(settings, control, folder=folder, events=events, start=start)
    finally:
        events.close()
