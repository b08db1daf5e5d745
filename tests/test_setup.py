"""scripts/setup.sh on small checkouts, offline: their environments borrow this one's packages."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "dynsl"
version = "1"
[project.scripts]
dynsl = "dynsl_app:main"
[tool.hatch.build]
dev-mode-dirs = ["."]
[tool.hatch.build.targets.wheel]
packages = ["dynsl_app"]
"""


@pytest.fixture
def venv(tmp_path):
    """An environment that sees this one's packages, so that nothing is downloaded."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    inside = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", inside))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def make_checkout(folder: Path, says: str) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "dynsl_app").mkdir()
    for name in ("setup.sh", "outdated.py"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    (folder / "dynsl_app" / "__init__.py").write_text(f"def main():\n    print({says!r})\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    version = importlib.metadata.version("packaging")
    (folder / "requirements.txt").write_text(
        f'# pins\npackaging=={version}\nnot-for-here==1 ; sys_platform == "nowhere"\n'
    )
    return folder


def setup(checkout: Path, venv: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts" / "setup.sh"],
        env=os.environ | {"DYNSL_VENV": str(venv)} | environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_installs_once_and_again_when_something_changes(tmp_path, venv):
    one = make_checkout(tmp_path / "one", "one")
    two = make_checkout(tmp_path / "two", "two")

    def command() -> str:
        return subprocess.run([venv / "bin" / "dynsl"], capture_output=True, text=True, check=True).stdout.strip()

    first = setup(one, venv)
    assert first.returncode == 0, first.stderr
    assert "Installing this checkout" in first.stdout
    assert command() == "one"
    again = setup(one, venv)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")

    assert setup(two, venv).returncode == 0
    assert command() == "two"
    assert setup(two, venv).stdout == ""

    (two / "pyproject.toml").write_text(
        PYPROJECT.replace('"dynsl_app:main"', '"dynsl_app:main"\nsecond = "dynsl_app:main"')
    )
    assert setup(two, venv).returncode == 0
    assert (venv / "bin" / "second").is_file()


def test_a_pin_that_is_not_installed_is_installed_or_the_script_fails(tmp_path, venv):
    checkout = make_checkout(tmp_path / "one", "one")
    (checkout / "requirements.txt").write_text("packaging==0.0.0.dev9\n")
    done = setup(checkout, venv, PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "Installing requirements.txt" in done.stdout
    assert "error: pip could not install requirements.txt" in done.stderr


def test_the_missing_interpreter_is_named(tmp_path):
    checkout = make_checkout(tmp_path / "one", "one")
    done = setup(checkout, tmp_path / "none", PYTHON="/bin/false")
    assert done.returncode == 1
    assert "error: PYTHON=/bin/false is no Python 3.11 to 3.13" in done.stderr
    assert not (tmp_path / "none").exists()


def test_the_pins_satisfy_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, (x for x in lines if not x.startswith("#")))}
    for requirement in map(Requirement, wanted):
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), requirement
