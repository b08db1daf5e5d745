"""Reading fleets: who is what, what happens to whom, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.algorithms import check
from dynsl_app.compose import compose
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import SERVERS, Change, Device, Fleet, Generate, Line, Server, read_fleet, resolve
from dynsl_app.settings import Settings
from dynsl_app.validate import from_json, from_yaml, to_json, to_yaml

PI = {"name": "pi", "compute": 3.0}
JET = {"name": "jet", "compute": 2.0, "up_Bps": 1e6}
GENERATE = {"count": 4, "speed": 3, "sigma": 1, "slowest": 2, "fastest": 5}


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        return file

    return write


def test_client_ids_count_through_the_devices() -> None:
    fleet = Fleet(devices=[Device("a", 2, compute=1), Device("b", 1, compute=3), Device("c", 3, compute=1)])
    assert fleet.size == 6
    assert [fleet.device(client).name for client in range(6)] == ["a", "a", "b", "c", "c", "c"]
    with pytest.raises(SettingsError, match=r"client 6: fleet=none has 6 devices; choose clients=6"):
        fleet.device(6)


@given(speeds=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6))
def test_speeds_are_relative_to_the_fastest(speeds: list[float]) -> None:
    fleet = Fleet(devices=[Device(str(n), speed=speed) for n, speed in enumerate(speeds)])
    factors = [fleet.compute(device) for device in fleet.devices]
    assert min(factors) == 1.0
    assert [factor * speed for factor, speed in zip(factors, speeds, strict=True)] == pytest.approx(
        [max(speeds)] * len(speeds)
    )


def test_changes_meet_their_client_or_all_devices_of_a_name() -> None:
    one, kind, other = (
        Change(at_s=1, client=1, compute=2),
        Change(at_batch=3, device="a", compute=4),
        Change(at_s=2, device="b", compute=5),
    )
    fleet = Fleet(devices=[Device("a", 2, compute=1), Device("b", compute=1)], changes=[one, kind, other])
    assert [fleet.changes_of(client) for client in range(3)] == [(kind,), (one, kind), (other,)]


def test_clients_are_the_fleets_size_or_four() -> None:
    assert compose([]).clients == Settings().clients == 4
    assert Settings(fleet=Fleet(devices=[Device("a", 7, compute=1)])).clients == 7
    demo = compose(["fleet=demo"])
    assert (demo.clients, demo.fleet.size) == (4, 4)
    assert compose(["fleet=demo", "clients=4"]) == demo
    assert compose(["clients=9"]).clients == 9


def test_another_number_of_clients_is_refused() -> None:
    with pytest.raises(SettingsError, match="clients=5 contradicts fleet=demo, which has 4 devices; leave clients out"):
        compose(["fleet=demo", "clients=5"])


def test_a_fleet_sets_devices_and_links_only() -> None:
    """Nothing that changes a run's curve comes from a fleet."""
    plain, demo = compose([]), compose(["fleet=demo"])
    differing = [name for name in plain.__dataclass_fields__ if getattr(plain, name) != getattr(demo, name)]
    assert differing == ["fleet"]


def test_settings_with_a_fleet_survive_text() -> None:
    settings = compose(["fleet=demo"])
    assert from_json(to_json(settings)) == from_yaml(to_yaml(settings)) == check(settings) == settings


def test_a_file_is_read_once_and_kept_in_the_settings(write) -> None:
    file = write("devices:\n- {name: pi, count: 3, speed: 2, up_Bps: 12.5e6}\n- {name: jet, speed: 8}\n")
    settings = compose([f"fleet.file={file}"])
    assert (settings.clients, settings.fleet.name, settings.fleet.file) == (4, "mine", str(file))
    assert settings.fleet.device(0) == Device("pi", 3, speed=2, up_Bps=12.5e6)
    file.unlink()
    assert from_yaml(to_yaml(settings)) == settings


def test_a_fleet_can_be_listed_in_the_override() -> None:
    settings = compose(
        ["fleet.devices=[{name: a, count: 2, compute: 3}]", "fleet.changes=[{at_s: 1, client: 0, compute: 2}]"]
    )
    assert settings.clients == 2
    assert settings.fleet.changes_of(0) == (Change(at_s=1, client=0, compute=2),)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"devices": [PI, JET | {"up_Bps": -1}]}, "device 1 (jet): up_Bps=-1: must be greater than 0"),
        ({"devices": [PI | {"up_bps": 1}]}, "device 0 (pi): up_bps is unknown; did you mean up_Bps?"),
        ({"devices": [PI | {"cores": 4}]}, "device 0 (pi): cores is unknown; there are name, count, compute"),
        ({"devices": [{"compute": 1}]}, "device 0: name is missing"),
        ({"devices": [PI | {"compute": 0.5}]}, "device 0 (pi): compute=0.5: must be greater than or equal to 1"),
        ({"devices": [PI | {"compute": float("nan")}]}, "device 0 (pi): compute=nan: must be"),
        ({"devices": [PI | {"down_Bps": float("inf")}]}, "device 0 (pi): down_Bps=inf: must be a finite number"),
        ({"devices": [PI | {"rtt_s": -1}]}, "device 0 (pi): rtt_s=-1: must be"),
        ({"devices": [PI | {"count": 0}]}, "device 0 (pi): count=0: must be"),
        ({"devices": [PI | {"speed": 2}]}, "device 0 (pi): needs either compute"),
        ({"devices": [{"name": "pi"}]}, "device 0 (pi): needs either compute"),
        ({"devices": [PI, {"name": "b", "speed": 2}]}, "some devices have compute and some speed"),
        ({"devices": [PI, PI]}, "two devices are called pi"),
        ({"devices": 3}, "devices=3: must be a valid list"),
        ({"devices": [3]}, "device 0=3: must be"),
        ({"device": [PI]}, "device is unknown; did you mean devices?"),
        ({"changes": [{"at_s": 1, "client": 0, "compute": 2}]}, "change 0: client=0 is not in the fleet"),
        ({"changes": [{"at_s": 1, "device": "pi", "compute": 2}]}, "device=pi is not in the fleet; there are none"),
        ({"devices": [PI], "changes": [{"at_s": 1, "device": "jet", "compute": 2}]}, "there are pi"),
        ({"devices": [PI], "changes": [{"at_s": 1, "client": 1, "compute": 2}]}, "client=1 is not in the fleet"),
        ({"devices": [PI], "changes": [{"client": 0, "compute": 2}]}, "change 0: needs either at_batch or at_s"),
        ({"devices": [PI], "changes": [{"at_s": 1, "compute": 2}]}, "change 0: needs either client"),
        ({"devices": [PI], "changes": [{"at_s": 1, "client": 0}]}, "change 0: changes nothing"),
        ({"devices": [PI], "changes": [{"at_s": 1, "client": 0, "compute": 0}]}, "change 0: compute=0: must be"),
        ({"devices": [PI], "changes": [{"at_s": 1, "client": 0, "compute": 0.1}]}, "would make pi faster than"),
        ({"devices": [PI], "changes": [{"at_s": 1, "client": 0, "link": 0.1}]}, "link=0.1: pi has neither up_Bps"),
        ({"devices": [PI | {"links": "lan"}]}, "device 0 (pi): links='lan': must be 'wired', 'wifi' or 'lte'"),
        ({"devices": [JET | {"links": "lte"}]}, "device 0 (jet): links=lte and up_Bps both say what its link is"),
        ({"devices": [JET | {"up_trace": "a"}]}, "device 0 (jet): up_Bps and up_trace both say"),
        ({"devices": [JET], "links": "lte"}, "links=lte: there are no devices without a link of their own"),
        ({"links": "lte"}, "links=lte: there are no devices without a link of their own"),
        ({"devices": [PI | {"spread": 1}]}, "device 0 (pi): spread=1: must be less than 1"),
        ({"devices": [PI], "server": "big"}, "server='big': there are strong, medium, weak; or give speed"),
        ({"devices": [PI], "server": {"speed": 0}}, "server: speed=0: must be greater than 0"),
        ({"devices": [PI], "server": -3}, "server=-3: there are strong, medium, weak; or give speed"),
        ({"devices": [PI], "server": {"sped": 1}}, "server: sped is unknown; did you mean speed?"),
        ({"devices": [PI], "reference_gflops": 0}, "reference_gflops=0: must be greater than 0"),
        ({"devices": [PI], "generate": GENERATE}, "devices and changes are listed, and generate would draw others"),
        ({"generate": GENERATE | {"count": 0}}, "generate: count=0: must be greater than or equal to 1"),
        ({"generate": GENERATE | {"slowest": 9}}, "generate: speed=3 is not from slowest=9 to fastest=5"),
        ({"generate": GENERATE | {"links": {"lte": 0}}}, "generate: links: all shares are 0"),
        ({"generate": {"count": 3}}, "generate: speed is missing"),
    ],
)  # fmt: skip
def test_refusals_name_row_and_field(plain: dict[str, Any], says: str) -> None:
    """User case 37: an unknown key is an error."""
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        resolve({"name": "mine", **plain})
    assert str(caught.value).startswith("fleet=mine: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devices: [{name: pi, compute: fast}]", "device 0 (pi): compute='fast': must be a valid number"),
        ("devices: [{name: pi, compute: 2}]\nfile: other.yaml", "cannot name another file"),
        ("devices: []", "lists no devices; see conf/fleet/demo.yaml"),
        ("[1, 2]", "lists no devices"),
        ("", "lists no devices"),
        ("devices: [", "cannot be read"),
    ],
)
def test_refusals_name_the_file(write, text: str, says: str) -> None:
    file = write(text)
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        compose([f"fleet.file={file}"])
    assert str(caught.value).startswith(f"fleet.file={file}: ")
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.file=.*absent\.yaml: cannot be read"):
        read_fleet(tmp_path / "absent.yaml")


def test_a_file_and_a_named_fleet_are_refused_together(write) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.file=.* and fleet=demo both list devices; choose one"):
        compose(["fleet=demo", f"fleet.file={write('devices: [{name: a, compute: 1}]')}"])


def test_settings_are_laid_over_a_file(write) -> None:
    file = write("links: wired\nserver: weak\ndevices: [{name: a, speed: 1}]\n")
    fleet = compose([f"fleet.file={file}", "fleet.links=wifi", "fleet.server=strong"]).fleet
    assert (fleet.links, fleet.server, fleet.name) == ("wifi", SERVERS["strong"], "mine")
    fleet = compose([f"fleet.file={file}", "fleet.server={speed: 70, workers: 3}"]).fleet
    assert (fleet.links, fleet.server) == ("wired", Server(70, workers=3))
    file = write("generate: {count: 4, speed: 3, sigma: 1, slowest: 2, fastest: 5}\n")
    settings = compose([f"fleet.file={file}", "+fleet.generate.count=9"])
    assert (settings.clients, settings.fleet.generate) == (9, Generate(**GENERATE | {"count": 9}))
    assert from_yaml(to_yaml(settings)) == from_json(to_json(settings)) == settings


def test_a_file_and_a_generated_fleet_are_refused_together(write) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.file=.* and fleet=generated both list devices; choose one"):
        compose(["fleet=generated", f"fleet.file={write('devices: [{name: a, compute: 1}]')}"])


def test_generated_devices_are_known_to_the_testbed_only() -> None:
    settings = compose(["fleet=generated", "fleet.generate.count=1000"])
    assert settings.clients == 1000
    with pytest.raises(SettingsError, match="client 3: fleet=generated draws its devices, which only the testbed can"):
        settings.fleet.device(3)


def test_clients_are_counted_in_their_kind() -> None:
    fleet = Fleet(devices=[Device("a", 2, compute=1), Device("b", 2, compute=3)])
    assert [fleet.place(client)[1] for client in range(4)] == [0, 1, 0, 1]


def test_what_varies_cannot_be_played() -> None:
    fleet = compose(["fleet=colext24"]).fleet
    assert fleet.line(fleet.device(0)) == Line(117.5e6, 117.5e6, 0.5e-3)
    assert Fleet(devices=[Device("a", compute=1, links="wired", rtt_s=1)]).line(
        Device("a", compute=1, links="wired", rtt_s=1)
    ) == Line(117.5e6, 117.5e6, 1)
    for links in ("wifi", "lte"):
        fleet = compose(["fleet=colext24", f"fleet.links={links}"]).fleet
        with pytest.raises(SettingsError, match=f"jetson_agx_orin: links={links} is known to the testbed only"):
            fleet.line(fleet.device(0))
    traced = Device("a", compute=1, up_trace="a.trace")
    with pytest.raises(SettingsError, match="device a: its trace is known to the testbed only"):
        Fleet(devices=[traced]).line(traced)


def test_a_class_of_links_can_change() -> None:
    fleet = Fleet(devices=[Device("a", compute=1)], links="wired", changes=[Change(at_s=1, client=0, link=0.1)])
    assert fleet.changes_of(0)[0].link == 0.1


def test_changes_after_a_clients_last_batch_are_told_together() -> None:
    fleet = Fleet(
        name="mine",
        devices=[Device("a", 3, compute=1), Device("b", compute=1)],
        changes=[Change(at_batch=9, device="a", compute=2), Change(at_s=1e9, client=3, compute=2)],
    )
    assert fleet.late_changes({0: 10, 1: 11, 2: 10, 3: 1}) == []
    (told,) = fleet.late_changes({0: 9, 1: 10, 2: 4, 3: 1})
    assert told.startswith(
        "fleet=mine: change 0, at_batch=9, never happens to clients 0, 2: batches of a round are 0..8 there; lower"
    )
    assert Fleet().late_changes({0: 1}) == []
