"""One run from its settings to its summary, over any control plane: what all ways of running have in common."""

from pathlib import Path

from dynsl_app.errors import DynslError, Interrupted
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
        If the folder cannot be opened, or the run fails; the folder (the error's ``run_dir``) keeps what was written
        until then. A run that was refused before it began leaves none.
    Interrupted
        The user stopped it.
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
    except DynslError as error:
        error.run_dir = folder.path if folder.begun else None
        raise
    except KeyboardInterrupt:
        raise Interrupted(_way_on(folder)) from None
    finally:
        events.close()
        if not folder.begun:
            folder.discard()


def _way_on(folder: RunFolder) -> str:
    if not folder.begun:
        return "the run had not begun"
    if not folder.checkpoint.is_dir() or not any(folder.checkpoint.iterdir()):
        return f"the run in {folder.path} had no checkpoint yet; start it anew"
    return f"resume={folder.path} goes on from the run's last checkpoint"
