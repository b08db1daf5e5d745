"""docs/testbed.md lists every field, and its examples are valid."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dynsl_app.compose import conf_dir
from dynsl_app.dynamics import Dynamics, Row, read_dynamics
from dynsl_app.fleet import SERVERS, Device, Fleet, Generate
from dynsl_app.testbed.classes import LTE_DOWN, LTE_UP

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "testbed.md").read_text()


def listed(heading: str) -> set[str]:
    """What the first column of the table under a heading row names."""
    rows = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("| field | meaning |\n|---|---|\n| `name`", Fleet), ("| field of a device", Device),
     ("| field of `generate`", Generate), ("| field | meaning |\n|---|---|\n| `at`", Row)],
)  # fmt: skip
def test_every_field_is_listed(heading, kind):
    # `file` is for the program; `compute` is explained beside `speed`.
    assert listed(heading) | {"file", "compute"} == {field.name for field in fields(kind)} | {"file", "compute"}


def test_everything_that_can_be_chosen_is_listed():
    for group, heading in (("fleet", "| fleet | devices"), ("dynamics", "| dynamics | what happens")):
        files = {file.stem for file in (conf_dir() / group).glob("*.yaml")}
        assert listed(heading) == (files - {"none"} if group == "fleet" else files)
    assert listed("| `fleet.server` |") == set(SERVERS)


def test_the_example_is_valid(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(example)
    dynamics = read_dynamics(file)
    assert isinstance(dynamics, Dynamics)
    assert len(dynamics.rows) == len(OmegaConf.load(file).rows) == 3


def test_the_fitted_figures_are_those_in_use():
    for law, words in ((LTE_UP, "median 4.08 Mbit/s, sigma 0.84, phi 0.69"), (LTE_DOWN, "15.05 Mbit/s, 0.69, 0.70")):
        assert words in TEXT.replace("\n", " ")
        median, sigma, phi = (float(figure) for figure in re.findall(r"\d+\.\d+", words))
        assert (law.median_Bps / 125_000, law.sigma, law.phi) == (pytest.approx(median), sigma, phi)
