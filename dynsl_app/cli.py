"""The ``dynsl`` command: one run, or with Hydra's flags a sweep (``-m``), help and the like."""

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dynsl_app.compose import apply, check_overrides, compose, conf_dir, explained
from dynsl_app.errors import DynslError, Interrupted, SweepError
from dynsl_app.leaving import leave
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.sweep import Record, finished

_FULL_ERROR = "HYDRA_FULL_ERROR"
"""Hydra's own variable: set to 1, it raises errors to the caller, instead of printing them and exiting."""


def main() -> int:
    """Run what ``sys.argv`` says.

    Returns
    -------
    int
        Exit code: 0, or 1 after an error on stderr, in a sweep if any of its runs failed.
    """
    arguments = sys.argv[1:]
    try:
        if any(argument.startswith("-") for argument in arguments):
            return _hydra(arguments)
        _run(compose(arguments))
    except DynslError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as stop:
        print(f"interrupted; {stop}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def command() -> NoReturn:
    """The installed command: :func:`main`, then the end of the process."""
    leave(main())


def _hydra(arguments: Sequence[str]) -> int:
    """What Hydra's flags ask for; the exit code.

    Raises
    ------
    DynslError
        What cannot be composed, or the error that ended a sweep early.
    """
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    check_overrides(overrides)
    Record.current = None
    failed = 0
    try:
        with _errors_to_us():
            hydra.main(version_base=None, config_path=str(conf_dir()), config_name="config")(_job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides) from error
    except Exception as error:
        # Of a job, the record takes all exceptions: this one is the sweeper's or the launcher's.
        if Record.current is None or os.environ.get(_FULL_ERROR) == "1":
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SweepError(f"the sweep ended early: {reason} ({_FULL_ERROR}=1 shows where)") from error
    finally:
        if Record.current is not None:
            failed = Record.current.report()
    return 1 if failed else 0


@contextmanager
def _errors_to_us() -> Iterator[None]:
    before = os.environ.get(_FULL_ERROR)
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = before


def _run(settings: Settings) -> Summary:
    # Imported here so that --help and a refused setting need not wait for torch and Flower.
    if settings.runtime == "testbed":
        from dynsl_app.testbed.run import run_testbed

        return run_testbed(settings)
    from dynsl_app.local_grid import run_local

    return run_local(settings)


def _job(cfg: DictConfig) -> Summary:
    """One run under Hydra. In a sweep, :class:`~dynsl_app.sweep.Record` takes what this returns or raises."""
    hydra_cfg = HydraConfig.get()
    try:
        settings = apply(cfg, check_overrides(hydra_cfg.overrides.task))
        if hydra_cfg.runtime.choices["hydra/launcher"] != "basic" and settings.logging.console == "auto":
            # Runs side by side would mix their lines; each one's last line is the record's.
            settings = dataclasses.replace(settings, logging=dataclasses.replace(settings.logging, console="off"))
        return finished(hydra_cfg, settings) or _run(settings)
    except DynslError as error:
        if hydra_cfg.mode is RunMode.MULTIRUN:
            raise
        # Hydra would add words of its own to an exception.
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
