"""conf/ and overrides to typed settings, with Hydra: the only reader of configuration.

Once per process, on the server's side and in the command line; a client gets its settings inside its order.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dynsl_app.algorithms import check
from dynsl_app.dynamics import resolve as resolve_dynamics
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import resolve as resolve_fleet
from dynsl_app.resume import resumed
from dynsl_app.settings import Settings
from dynsl_app.validate import is_known, unknown_setting, validate

_EXPERIMENT = "experiment"
"""A group of no setting of its own: its files are laid over all settings."""

_TESTBED_FLEET = "colext24"
"""The testbed's fleet unless another is chosen."""


def conf_dir(package: Path = Path(__file__).parent) -> Path:
    """The folder that holds ``config.yaml``: in the package (a wheel), else beside it (a checkout, Flower's bundle).

    Raises
    ------
    SettingsError
        If it is in neither place.
    """
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise SettingsError(f"no conf/config.yaml in or beside {package}; install the package again")


def compose(overrides: Sequence[str], *, config_name: str = "config") -> Settings:
    """Compose ``conf/<config_name>.yaml`` with Hydra overrides.

    Not for use under ``@hydra.main`` (see :func:`apply`) nor in two threads at once: Hydra's state is global.

    Raises
    ------
    SettingsError
        Naming what is unknown, mistyped, out of range or contradictory, and the remedy.
    """
    parsed = check_overrides(overrides)
    with initialize_config_dir(str(conf_dir()), version_base=None):
        try:
            cfg = hydra_compose(config_name, overrides=list(overrides))
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise explained(error, overrides, config_name=config_name) from None
    return apply(cfg, parsed)


def explained(error: Exception, overrides: Sequence[str], *, config_name: str = "config") -> SettingsError:
    """What Hydra or OmegaConf could not compose, in one line."""
    if isinstance(error, MissingConfigException):
        return SettingsError(_missing(error, config_name))
    reason = " ".join(f"{error} {error.__cause__ or ''}".split())
    return SettingsError(f"cannot compose {' '.join(overrides)}: {reason}")


def apply(cfg: DictConfig, overrides: Sequence[Override] = ()) -> Settings:
    """Typed settings of what Hydra has composed, for use under ``@hydra.main``.

    Parameters
    ----------
    overrides
        What was composed on top of conf/; with ``resume`` only these are laid over the resumed run's settings.

    Raises
    ------
    SettingsError
        Like :func:`compose`.
    """
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key or 'settings'}: {' '.join(str(error).split())}") from None
    assert isinstance(plain, dict)
    named = {str(key): value for key, value in plain.items()}
    if named.get("resume") is not None:
        return resumed(str(named["resume"]), overrides)
    if isinstance(named["fleet"], dict):
        named["fleet"] = resolve_fleet(_fleet(named["fleet"], str(named["runtime"])))
    if isinstance(named["dynamics"], dict):
        named["dynamics"] = resolve_dynamics(named["dynamics"])
    return check(validate(named))


def _fleet(plain: dict[str, Any], runtime: str) -> dict[str, Any]:
    """The fleet's settings; the testbed, which cannot do without devices, has some where none are chosen."""
    if runtime != "testbed" or any(plain.get(key) for key in ("devices", "generate", "file")):
        return plain
    usual = OmegaConf.to_container(OmegaConf.load(conf_dir() / "fleet" / f"{_TESTBED_FLEET}.yaml"))
    assert isinstance(usual, dict)
    given = {key: value for key, value in plain.items() if value not in (None, [], {}) and key != "name"}
    return {**plain, **{str(key): value for key, value in usual.items()}, **given}


def split_overrides(text: str) -> list[str]:
    """Overrides out of one line as a shell would split it, for Flower's ``--run-config "overrides='…'"``.

    Raises
    ------
    SettingsError
        If a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"overrides={text!r}: {error}") from None


def check_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides, and refuse those of settings that do not exist.

    Returns
    -------
    list
        The overrides of settings, without those of Hydra itself.

    Raises
    ------
    SettingsError
        If one cannot be read, or names no setting; with the nearest names.
    """
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise SettingsError(
            f"cannot read the override {error.override!r}: write setting=value, and quote a value that holds "
            f"spaces or any of ,=(){{}}[]"
        ) from None
    ours = [override for override in parsed if re.split("[./]", override.key_or_group)[0] != "hydra"]
    for override in ours:
        if override.key_or_group != _EXPERIMENT and not is_known(override.key_or_group):
            raise unknown_setting(override.key_or_group)
    return ours


def _missing(error: MissingConfigException, config_name: str) -> str:
    wanted = error.missing_cfg_file or config_name
    group, _, option = wanted.rpartition("/")
    options = sorted(error.options or ())
    near = difflib.get_close_matches(option, options, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if not group:
        return f"config-name={wanted}: there is no conf/{wanted}.yaml"
    return f"{group}={option}: no such option{hint} (there are: {', '.join(options)})"
