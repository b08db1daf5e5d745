"""INSTANCE.json is read strictly: what is wrong, where, and what to do."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.cost.instance import parse_instance
from dynsl_app.cost.what_if import assign
from dynsl_app.errors import SettingsError

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "instance.json"
DATA: dict[str, Any] = json.loads(EXAMPLE.read_text())


def changed(*changes: str) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    for change in changes:
        assign(data, change)
    return data


def test_example_is_read_whole() -> None:
    instance = parse_instance(DATA)
    assert len(instance.clients) == 24
    assert instance.blocks == len(DATA["server_block_s"])
    assert [client.name for client in instance.clients] == [client["name"] for client in DATA["clients"]]
    assert instance.clients[3].up_Bps == DATA["clients"][3]["up_Bps"]


def test_optional_keys_have_the_documented_defaults() -> None:
    data = changed()
    del data["server_call_s"]
    for key in ("min_cut", "max_cut", "cut"):
        del data["clients"][0][key]
    instance = parse_instance(data)
    assert instance.server_call_s == 0.0
    first = instance.clients[0]
    assert (first.min_cut, first.max_cut, first.cut) == (1, None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("clients.3.up_Bps=0", "client 'laptop-2': up_Bps=0.*bytes per second"),
        ("clients.3.down_Bps=Infinity", "client 'laptop-2': down_Bps=inf.*finite"),
        ("clients.3.down_Bps=1e999", "client 'laptop-2': down_Bps=inf.*finite"),
        ("clients.3.rtt_s=NaN", "client 'laptop-2': rtt_s=nan"),
        ("clients.3.rtt_s=-1", "client 'laptop-2': rtt_s=-1"),
        ("clients.3.batches=2.5", "client 'laptop-2': batches=2.5.*whole number"),
        ("clients.3.batches=true", "client 'laptop-2': batches=True"),
        ("clients.3.batches=1" + "0" * 400, "client 'laptop-2': batches="),
        ("clients.3.up_Bps=1" + "0" * 400, "client 'laptop-2': up_Bps="),
        ("clients.3.block_s.2=-0.1", r"client 'laptop-2': block_s\.2=-0.1.*every block"),
        ("clients.3.block_s=[1,2]", "client 'laptop-2': block_s has 2 entries"),
        ("clients.3.colour=1", "client 'laptop-2': unknown key 'colour'; the keys are name, batches"),
        ("clients.3.name=", r"clients\.3: name=''"),
        ("clients.3=7", r"clients\.3: expected a JSON object, got int"),
        ("clients.3.min_cut=0", "client 'laptop-2': min_cut=0"),
        ("colour=1", "unknown key 'colour'; the keys are workers"),
        ("workers=0", "workers=0"),
        ("clients=[]", "clients=.*an object for every client"),
        ("server_block_s=[]", "server_block_s="),
    ],
)
def test_bad_values_name_client_field_and_remedy(change: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_instance(changed(change))


@pytest.mark.parametrize("key", ["workers", "boundary", "server_block_s", "up_bytes", "down_bytes", "clients"])
def test_missing_key_of_the_fleet(key: str) -> None:
    data = changed()
    del data[key]
    with pytest.raises(SettingsError, match=f"{key} is missing; give"):
        parse_instance(data)


@pytest.mark.parametrize("key", ["batches", "block_s", "up_Bps", "down_Bps", "rtt_s"])
def test_missing_key_of_a_client(key: str) -> None:
    data = changed()
    del data["clients"][3][key]
    with pytest.raises(SettingsError, match=f"client 'laptop-2': {key} is missing; give"):
        parse_instance(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*DATA, *DATA["clients"][0]]) | st.text(max_size=3), inner, max_size=5)
        ),
    )
)
def test_anything_else_is_refused_as_a_settings_error(data: object) -> None:
    with pytest.raises(SettingsError):
        parse_instance(data)


def test_set_reaches_clients_by_position_and_name() -> None:
    by_position, by_name = changed("clients.3.up_Bps=1e6"), changed("clients.laptop-2.up_Bps=1e6")
    assert by_position == by_name
    assert by_name["clients"][3]["up_Bps"] == 1e6
    assert by_name["clients"][2] == DATA["clients"][2]


def test_set_reads_names_with_dots_and_text_values() -> None:
    data = changed("clients.0.name=pi.yard", "clients.1.name=pi", "clients.pi.yard.cut=2", "clients.pi.cut=3")
    assert [(client["name"], client["cut"]) for client in data["clients"][:2]] == [("pi.yard", 2), ("pi", 3)]


def test_set_reaches_list_entries() -> None:
    assert changed("server_block_s.2=0.5")["server_block_s"][2] == 0.5
    assert math.isclose(changed("clients.0.block_s.1=1e-3")["clients"][0]["block_s"][1], 1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workers", "expected PATH=VALUE"),
        ("=3", "expected PATH=VALUE"),
        ("fleet.workers=3", "no 'fleet' here; the keys are workers"),
        ("clients.99.cut=1", "'99' is not in this list; give a position 0..23, or a name: workstation-1"),
        ("clients.nobody.cut=1", "'nobody' is not in this list"),
        ("up_bytes.10=1", r"'10' is not in this list; give a position 0\.\.9$"),
        ("workers.1=1", "nothing lies below a single value"),
    ],
)
def test_set_that_leads_nowhere_says_so(change: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"--set .*{message}"):
        changed(change)
