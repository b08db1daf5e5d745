from pathlib import Path

import pytest

from dynsl_app.errors import SettingsError
from dynsl_app.seeds import derive_seed
from dynsl_app.targets import resolve_target


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's package that defines `build`, imports `system` and leaves a mark when it is imported."""
    name = f"mine_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "models.py").write_text(
        f"from os import system\nfrom pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n"
        "def build(width):\n    return width\nWIDTH = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_the_apps_own_are_always_found() -> None:
    assert resolve_target("dynsl_app.seeds.derive_seed") is derive_seed


def test_an_allowed_package_is_found(package: str) -> None:
    assert resolve_target(f"{package}.models.build", frozenset({package}))(4) == 4
    assert resolve_target(f"{package}.models.build", frozenset({f"{package}.models"}))(4) == 4


def test_a_package_that_is_not_allowed_is_not_even_imported(package: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"does not allow.*setting `allow`"):
        resolve_target(f"{package}.models.build", frozenset({package[:-1], "other"}))
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("path", ["os.system", "subprocess.run", "builtins.eval", "torch.load", "dynsl_app_evil.run"])
def test_anything_installed_is_refused(path: str) -> None:
    with pytest.raises(SettingsError, match="does not allow"):
        resolve_target(path)


def test_what_an_allowed_module_imports_is_no_way_out(package: str) -> None:
    with pytest.raises(SettingsError, match=r"only imported there; it is defined in '(posix|nt)'"):
        resolve_target(f"{package}.models.system", frozenset({package}))
    with pytest.raises(SettingsError, match="only imported there"):
        resolve_target("dynsl_app.targets.Callable")
    with pytest.raises(SettingsError, match=r"cannot import 'dynsl_app.targets.importlib'"):
        resolve_target("dynsl_app.targets.importlib.import_module")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("derive_seed", "not of the form"),
        ("dynsl_app.seeds.derive-seed", "not of the form"),
        ("dynsl_app..seeds", "not of the form"),
        ("", "not of the form"),
        ("dynsl_app.nothing.here", "cannot import 'dynsl_app.nothing'"),
        ("dynsl_app.seeds.nothing", "has no 'nothing'"),
        ("dynsl_app.data.loader.Tail", "not a function or class|only imported"),
        ("dynsl_app.data.augment.PADDING", "not a function or class"),
    ],
)
def test_errors_name_the_target(path: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        resolve_target(path)
    assert repr(path) in str(caught.value)
