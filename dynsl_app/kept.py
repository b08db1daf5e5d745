"""Whether what a sweep has left may stand for what is asked for now: the same jobs, settings, code and packages."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dynsl_app.errors import DynslError
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary, installed_versions
from dynsl_app.validate import from_yaml


class NotTheSame(DynslError):
    """What was done before cannot stand for what is asked for; the message says why."""


def check_same_sweep(folder: Path, config: DictConfig) -> None:
    """Whether the sweep in a folder was asked for as this one is, so that a job's number means the same in both.

    Parameters
    ----------
    config
        This sweep's, with Hydra's part.

    Raises
    ------
    NotTheSame
        It was not, or nobody knows, or the sweeper makes up its jobs as it goes; with the remedy.
    """
    sweeper = str(config.hydra.sweeper._target_)
    if not sweeper.endswith(".BasicSweeper"):
        raise NotTheSame(f"{sweeper} tries other settings each time; choose another hydra.sweep.dir")
    asked = folder / "multirun.yaml"
    try:
        before = list(OmegaConf.load(asked).hydra.overrides.task)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise NotTheSame(f"{asked} cannot be read ({error}); choose another hydra.sweep.dir") from None
    now = list(config.hydra.overrides.task)
    if before != now:
        raise NotTheSame(
            f"the sweep in {folder} was `{' '.join(before)}`, and this one is `{' '.join(now)}`; ask for the same, in "
            f"the same order, or choose another hydra.sweep.dir"
        )


def kept(folder: Path, settings: Settings) -> Summary:
    """The summary of a run that ended well, if the same settings, code and packages made it.

    Files that settings name (data, profiles, a replay) and modules of the user's own are not compared.

    Raises
    ------
    NotTheSame
        Naming what differs.
    """
    try:
        summary = Summary.from_json((folder / "summary.json").read_text(encoding="utf-8"))
        before = from_yaml((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, DynslError):
        raise NotTheSame("its folder is gone or cannot be read") from None
    # Logging depends on the launcher.
    names = [name for name in vars(settings) if name != "logging" and getattr(before, name) != getattr(settings, name)]
    if names:
        raise NotTheSame(f"it had other settings of {', '.join(names)}")
    others = _others(summary.versions, installed_versions())
    if others:
        raise NotTheSame(f"it was made with other versions of {', '.join(others)}")
    return summary


def _others(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ["DynSL's code" if name == "code" else name for name in names]
