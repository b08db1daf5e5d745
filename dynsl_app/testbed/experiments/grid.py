"""An experiment's file of conf/experiment/ as what is to be run: the same sweep that ``dynsl -m experiment=…`` runs."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from omegaconf import OmegaConf

from dynsl_app.compose import compose, conf_dir
from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings


@dataclass(frozen=True)
class Grid:
    """A sweep.

    Attributes
    ----------
    experiment
        Its name.
    algorithms
        Compared in each case.
    seeds
        Of each.
    cases
        Overrides of each case, by setting; without algorithm and seed.
    """

    experiment: str
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    cases: tuple[Mapping[str, str], ...]

    def settings(self, case: Mapping[str, str], *more: str) -> Settings:
        """A run of a case, with further overrides.

        Raises
        ------
        SettingsError
            Like :func:`~dynsl_app.compose.compose`.
        """
        own = [f"{name}={value}" for name, value in case.items()]
        return compose([f"experiment={self.experiment}", *own, "logging.console=off", *more])


def names() -> tuple[str, ...]:
    """All experiments that have a file."""
    return tuple(sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml")))


def read_grid(experiment: str) -> Grid:
    """Read ``hydra.sweeper.params`` of an experiment's file; values are lists by commas.

    Raises
    ------
    SettingsError
        There is no such file.
    """
    file = conf_dir() / "experiment" / f"{experiment}.yaml"
    if not file.is_file():
        raise SettingsError(f"experiment={experiment}: no such option (there are: {', '.join(names())})")
    params = OmegaConf.to_container(OmegaConf.load(file).hydra.sweeper.params)
    assert isinstance(params, dict)
    lists = {str(name): str(values).split(",") for name, values in params.items()}
    algorithms, seeds = lists.pop("algorithm", []), lists.pop("seed", ["0"])
    cases = tuple(dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return Grid(experiment, tuple(algorithms), tuple(int(seed) for seed in seeds), cases)
