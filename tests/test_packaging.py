"""What a wheel and Flower's bundle hold."""

import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).parent.parent
CONF = {str(file.relative_to(ROOT)) for file in (ROOT / "conf").rglob("*.yaml")}
MODULES = {str(file.relative_to(ROOT)) for file in (ROOT / "dynsl_app").rglob("*.py")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy, so that nothing is built in the checkout itself."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("dynsl_app", "conf", "tests", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_the_wheel_holds_the_package_and_its_configuration(checkout, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=checkout, check=True, text=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names >= MODULES | {f"dynsl_app/{name}" for name in CONF}
    assert {name.split("/")[0] for name in names} == {"dynsl_app"}


def test_flowers_bundle_holds_the_apps_and_their_configuration(checkout):
    names = set(zipfile.ZipFile(io.BytesIO(build_fab_from_disk(checkout))).namelist())
    assert names >= MODULES | CONF | {"pyproject.toml", "LICENSE"}
    assert not any(name.startswith("tests/") for name in names)
