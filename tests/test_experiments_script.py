"""scripts/experiments.py: what it writes, and that the documents hold exactly that."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dynsl_app.report import goals, timings
from dynsl_app.testbed.experiments.grid import names, read_grid
from dynsl_app.testbed.experiments.timing import time_case

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "experiments.py"
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("experiments", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], env=environment, text=True, capture_output=True, timeout=540
    )


def test_every_file_of_conf_belongs_to_one(script):
    parts = {"accuracy_shared", "accuracy_cifar10", "accuracy_cifar10_shared"}
    assert set(names()) == {*script.TITLES, *script.OTHERS} | parts


def test_readme_names_every_experiment_and_no_other(script):
    commands = re.findall(r"`python scripts/experiments\.py ([^`]*)`", (ROOT / "README.md").read_text())
    named = {name for command in commands for name in command.split(" --")[0].split()}
    assert named == {"all", *script.TITLES, *script.OTHERS}


def test_one_experiment_from_end_to_end(tmp_path):
    """Twice the same files; and what cannot be run is refused."""
    for folder in ("a", "b"):
        done = run("estimates", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    written = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    assert set(written) == {"estimates.csv", "estimates.md", "estimates.svg"}
    assert written == {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()}
    assert b"| up, the rate at the moment |" in written["estimates.md"]


def test_an_unknown_experiment_is_refused():
    done = run("statics")
    assert done.returncode == 2
    assert "no experiment statics; there are all, static," in done.stderr


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--seeds", "0"], "--seeds 0: give 1 or more"),
        (["--seeds", "-1"], "--seeds -1: give 1 or more"),
        (["--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--cifar", "/nowhere/cifar"], "--cifar /nowhere/cifar: there is no such folder"),
        (["--out", "/dev/null/results"], "choose a writable folder"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(script, monkeypatch, capsys, arguments, match):
    monkeypatch.setattr(sys, "argv", ["experiments.py", "estimates", "--out", "/nowhere/results", *arguments])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert match in capsys.readouterr().err


def test_documents_are_the_tables(script):
    for name in script.TITLES:
        found = timings.read_timings(RESULTS / f"{name}.csv")
        assert (RESULTS / f"{name}.md").read_text().endswith(timings.timings_markdown(found)), name
    cases = timings.by_case(one for name in script.COMPARED for one in timings.read_timings(RESULTS / f"{name}.csv"))
    assert (RESULTS / "goals.md").read_text() == goals.goals_markdown(cases)
    assert (RESULTS / "goals.csv").read_text() == goals.goals_csv(cases)


def test_documents_are_what_is_simulated():
    """One case of many, again: if this fails, `python scripts/experiments.py all --out docs/results` is due."""
    grid = read_grid("static")
    case = {"model": "cnn", "fleet.server": "strong"}
    assert case in grid.cases
    there = timings.by_case(timings.read_timings(RESULTS / "static.csv"))
    for of, algorithm, seconds in time_case(grid, case, grid.seeds[0]):
        assert there[of][algorithm].seconds[0] == pytest.approx(seconds, rel=1e-4, abs=6e-4), algorithm
