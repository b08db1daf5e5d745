"""Reading dynamics: what a row may say, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.compose import compose
from dynsl_app.dynamics import Dynamics, Row, read_dynamics, resolve
from dynsl_app.errors import SettingsError
from dynsl_app.validate import from_json, from_yaml, to_json, to_yaml

SLOW = {"at": 0.4, "device": "pi", "compute": 3}


def test_a_file_is_read_once_and_kept_in_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rows:\n- {at: 0.4, until: 0.6, device: pi, compute: 3}\n- {at_s: 2, action: double}\n")
    settings = compose([f"dynamics.file={file}", "runtime=testbed"])
    rows = [Row(at=0.4, until=0.6, device="pi", compute=3), Row(at_s=2, action="double")]
    assert settings.dynamics == Dynamics("mine", str(file), rows)
    file.unlink()
    assert from_json(to_json(settings)) == from_yaml(to_yaml(settings)) == settings


def test_rows_can_be_listed_in_the_override() -> None:
    settings = compose(["dynamics.rows=[{at: 0.1, client: 2, link: 0}]", "runtime=testbed"])
    assert settings.dynamics.rows == [Row(at=0.1, client=2, link=0)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (SLOW | {"at": -0.1}, "row 0: at=-0.1: must be greater than or equal to 0"),
        (SLOW | {"at_s": 1}, "row 0: needs either at"),
        ({"device": "pi", "compute": 3}, "row 0: needs either at"),
        (SLOW | {"until": 0.4}, "row 0: until=0.4 is not after 0.4"),
        (SLOW | {"client": 1}, "row 0: needs one of client"),
        ({"at": 0.4, "compute": 3}, "row 0: needs one of client"),
        (SLOW | {"client": 1, "device": None}, None),
        ({"at": 0, "client": -1, "compute": 3}, "row 0: client=-1: must be"),
        ({"at": 0, "share": 0, "compute": 3}, "row 0: share=0: must be greater than 0"),
        ({"at": 0, "share": 1.5, "compute": 3}, "row 0: share=1.5: must be less than or equal to 1"),
        (SLOW | {"compute": 0}, "row 0: compute=0: must be greater than 0"),
        (SLOW | {"compute": -2}, "row 0: compute=-2: must be greater than 0"),
        (SLOW | {"link": -0.1}, "row 0: link=-0.1: must be greater than or equal to 0"),
        (SLOW | {"link": float("inf")}, "row 0: link=inf: must be a finite number"),
        ({"at": 0, "client": 1}, "row 0: changes nothing"),
        ({"at": 0, "client": 1, "action": "exit"}, "row 0: action='exit': must be 'join', 'leave', 'crash' or"),
        ({"at": 0, "server": True, "link": 0.5}, "row 0: of the server only compute can change"),
        ({"at": 0, "server": True, "action": "crash"}, "row 0: of the server only compute can change"),
        ({"at": 0, "action": "double", "client": 1}, "row 0: action=double concerns all clients"),
        ({"at": 0, "action": "double", "until": 1}, "row 0: action=double concerns all clients"),
        (SLOW | {"computes": 3}, "row 0: computes is unknown; did you mean compute?"),
    ],
)
def test_refusals_name_the_row_and_the_field(row: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert resolve({"name": "mine", "rows": [row]}).rows == [Row(at=0.4, client=1, compute=3)]
        return
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        resolve({"name": "mine", "rows": [row]})
    assert str(caught.value).startswith("dynamics=mine: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rows: []", "lists no rows; see conf/dynamics/links_dip.yaml"),
        ("", "lists no rows"),
        ("rows: [", "cannot be read"),
        ("rows: [{at: soon, client: 1, compute: 2}]", "row 0: at='soon': must be a valid number"),
        ("rows: [{at: 0, client: 1, compute: 2}]\nfile: other.yaml", "cannot name another file"),
        ("rows: [{at: 0, client: 1, compute: 2}]\ndevices: []", "devices is unknown; there are name, file, rows"),
    ],
)
def test_refusals_name_the_file(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        read_dynamics(file)
    assert str(caught.value).startswith(f"dynamics.file={file}: ")


def test_a_file_and_named_dynamics_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"dynamics\.file=.* and dynamics=double both list rows; choose one"):
        compose(["dynamics=double", f"dynamics.file={tmp_path / 'mine.yaml'}"])


def test_devices_that_are_played_have_no_dynamics() -> None:
    with pytest.raises(SettingsError, match="dynamics=double happens in virtual time only; set runtime=testbed"):
        compose(["fleet=demo", "dynamics=double"])
    assert compose(["fleet=demo", "dynamics=none"]) == compose(["fleet=demo"])
