"""The ``dynsl`` command: one run, or with Hydra's flags a sweep (``-m``), help and the like."""

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf import DictConfig

from dynsl_app.compose import apply, check_overrides, compose, conf_dir
from dynsl_app.errors import DynslError
from dynsl_app.settings import Settings


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
            check_overrides([argument for argument in arguments if "=" in argument and not argument.startswith("-")])
            hydra.main(version_base=None, config_path=str(conf_dir()), config_name="config")(_job)()
        else:
            _run(compose(arguments))
    except DynslError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; resume=<run folder> goes on from its last checkpoint", file=sys.stderr)
        return 130
    return 0


def _run(settings: Settings) -> float | None:
    # Imported here so that --help and a refused setting need not wait for torch and Flower.
    if settings.runtime == "testbed":
        from dynsl_app.testbed.run import run_testbed

        summary = run_testbed(settings)
        print(f"run folder  {summary.run_dir}")
        return summary.accuracy
    from dynsl_app.local_grid import run_local

    return run_local(settings).accuracy


def _job(cfg: DictConfig) -> float | None:
    """One run under Hydra; returns the accuracy on held-out data, which a sweeper may maximise."""
    overrides = HydraConfig.get().overrides.task
    try:
        return _run(apply(cfg, check_overrides(overrides)))
    except DynslError as error:
        print(f"error: {error}", file=sys.stderr)
        # Hydra goes on with the sweep's other runs, and at its end reports this one and exits with 1.
        raise CompactHydraException(f"error: this run failed: dynsl {' '.join(overrides)}") from None
