"""Dynamics: rows into happenings and newcomers, and what is refused."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.compose import compose, conf_dir
from dynsl_app.dynamics import Dynamics, Row
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Change, Device, Fleet
from dynsl_app.testbed.dynamics import script, with_happenings
from dynsl_app.testbed.population import Population
from dynsl_app.testbed.world import Happening

FLEET = Fleet(name="some", devices=[Device("a", 4, speed=1, spread=0.3), Device("b", 2, speed=2, links="wifi")])
COLEXT24 = compose(["fleet=colext24"]).fleet


def happenings(*rows: Row, fleet: Fleet = FLEET, t0_s: float = 100.0, seed: int = 0) -> list[Happening]:
    return list(script(Dynamics("mine", rows=list(rows)), Population(fleet, seed), t0_s, seed).happenings)


def test_times_are_fractions_of_t0_or_seconds():
    made = happenings(
        Row(at=0.3, until=0.7, client=1, compute=3),
        Row(at_s=0.3, until=0.7, client=2, link=0),
        Row(at=0, server=True, compute=2),
        t0_s=50.0,
    )
    assert made == [
        Happening(0, None, "compute", 2),
        Happening(0.3, 2, "link", 0),
        Happening(0.7, 2, "link", 1),
        Happening(15, 1, "compute", 3),
        Happening(35, 1, "compute", 1),
    ]


def test_of_several_in_force_the_one_listed_last_counts():
    made = happenings(
        Row(at_s=1, client=0, compute=2), Row(at_s=2, until=4, client=0, compute=5), Row(at_s=6, client=0, compute=1)
    )
    assert [(one.at_s, one.factor) for one in made] == [(1, 2), (2, 5), (4, 2), (6, 1)]
    first_wins_later = happenings(Row(at_s=2, client=0, link=5), Row(at_s=1, until=3, client=0, link=2))
    assert [(one.at_s, one.factor) for one in first_wins_later] == [(1, 2), (3, 5)]


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(10, 19)), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        min_size=1,
        max_size=6,
    ),
    at=st.floats(0, 25),
)
def test_the_factor_at_a_time_is_the_last_rows_that_holds_then(spans, at):
    rows = [Row(at_s=begin, until=end, client=0, compute=factor) for begin, end, factor in spans]
    holding = [f for begin, end, f in spans if begin <= at and (end is None or at < end)]
    now = [one.factor for one in happenings(*rows) if one.at_s <= at]
    assert (now or [1.0])[-1] == (holding or [1.0])[-1]


def test_devices_are_met_by_name_and_shares_evenly():
    assert {one.client for one in happenings(Row(at=0, device="b", compute=2))} == {4, 5}
    for seed in range(20):
        for share, number in ((1 / 3, 8), (0.33333, 8), (0.25, 6), (1, 24), (0.001, 1)):
            hit = [one.client for one in happenings(Row(at=0, share=share, link=0.1), fleet=COLEXT24, seed=seed)]
            assert len(set(hit)) == len(hit) == number
            gaps = {after - before for before, after in pairwise(hit)}
            assert gaps <= {24 // number, -(-24 // number)}
    thirds = {
        tuple(one.client for one in happenings(Row(at=0, share=1 / 3, link=0.1), fleet=COLEXT24, seed=seed))
        for seed in range(20)
    }
    assert thirds == {tuple(range(start, 24, 3)) for start in range(3)}


def test_who_leaves_may_return():
    made = happenings(Row(at_s=2, until=5, client=3, action="leave"), Row(at_s=7, client=3, action="crash"))
    assert made == [Happening(2, 3, "leave"), Happening(5, 3, "join"), Happening(7, 3, "crash")]
    late = happenings(Row(at_s=2, until=5, client=3, action="join"))
    assert late == [Happening(2, 3, "join"), Happening(5, 3, "leave")]


def test_the_population_doubles_with_newcomers_of_the_same_kinds(world_of):
    world = world_of(FLEET, batches=[1, 2, 3, 4, 5, 6])
    double = Dynamics("double", rows=[Row(at=0.4, action="double"), Row(at=0.5, device="a", compute=3)])
    twice = with_happenings(world, FLEET, double, 10.0, 0)
    assert twice.clients[:6] == world.clients
    assert [client.name for client in twice.clients[6:]] == ["a.4", "a.5", "a.6", "a.7", "b.2", "b.3"]
    assert [client.batches for client in twice.clients[6:]] == [1, 2, 3, 4, 5, 6]
    joins = [one for one in twice.happenings if one.kind == "join"]
    assert joins == [Happening(4.0, client, "join") for client in range(6, 12)]
    assert {one.client for one in twice.happenings if one.kind == "compute"} == {0, 1, 2, 3, 6, 7, 8, 9}
    # Each has a spread and a link of its own.
    speeds = [client.block_s[0] for client in twice.clients if client.device == "a"]
    assert len(set(speeds)) == 8
    middle = 2 * twice.clients[4].block_s[0]
    assert all(0.7 <= middle / speed <= 1.3 for speed in speeds)
    assert len({client.up for client in twice.clients if client.device == "b"}) == 4
    # And the same that a fleet of that size would have.
    more = Fleet(name="some", devices=[Device("a", 7, speed=1, spread=0.3)])
    few = Fleet(name="some", devices=[Device("a", 6, speed=1, spread=0.3)])
    grown = with_happenings(world_of(few), few, Dynamics(rows=[Row(at=0, action="double")]), 1.0, 0)
    assert grown.clients[6].block_s == pytest.approx(world_of(more).clients[6].block_s)


def test_doubling_twice_makes_four_times_as_many(world_of):
    rows = [Row(at=0.6, action="double"), Row(at=0.2, action="double"), Row(at=0.7, client=23, compute=2)]
    world = with_happenings(world_of(FLEET), FLEET, Dynamics(rows=rows), 10.0, 0)
    assert len(world.clients) == 24
    joined = {one.client: one.at_s for one in world.happenings if one.kind == "join"}
    assert joined == {client: 2.0 if client < 12 else 6.0 for client in range(6, 24)}
    assert len({client.name for client in world.clients}) == 24


def test_newcomers_of_a_generated_fleet_are_copies_with_their_own_links(world_of):
    fleet = compose(["fleet=generated", "fleet.generate.count=20", "fleet.generate.links={wifi: 1}"]).fleet
    world = with_happenings(world_of(fleet), fleet, Dynamics(rows=[Row(at=0.1, action="double")]), 1.0, 0)
    assert [client.block_s for client in world.clients[20:]] == [client.block_s for client in world.clients[:20]]
    assert world.clients[0].up != world.clients[20].up


def test_a_fleets_own_changes_happen_too(world_of):
    fleet = Fleet(
        devices=[Device("a", 2, speed=1), Device("b", speed=2, up_Bps=1e6)],
        changes=[
            Change(at_batch=15, device="a", compute=6),
            Change(at_s=3, client=2, compute=2, link=0.5),
            Change(at_batch=30, device="a", compute=9),  # client 1 has no such batch
        ],
    )
    world = with_happenings(world_of(fleet, batches=[45, 30, 45]), fleet, Dynamics(), 9.0, 0)
    assert list(world.happenings) == [
        Happening(3.0, 0, "compute", 6),
        Happening(3, 2, "compute", 2),
        Happening(3, 2, "link", 0.5),
        Happening(4.5, 1, "compute", 6),
        Happening(6.0, 0, "compute", 9),
    ]


@pytest.mark.parametrize("name", sorted(file.stem for file in (conf_dir() / "dynamics").glob("*.yaml")))
def test_every_dynamics_fits_colext24(name, world_of):
    settings = compose(["runtime=testbed", f"dynamics={name}"])
    world = with_happenings(world_of(COLEXT24), COLEXT24, settings.dynamics, 100.0, 0)
    times = [one.at_s for one in world.happenings]
    assert times == sorted(times)
    assert (name == "none") == (not times)
    match name:
        case "slow_orin_nano" | "slow_lattepanda" | "slow_orange_pi":
            device = {
                "slow_orin_nano": "jetson_orin_nano",
                "slow_lattepanda": "lattepanda_delta_3",
                "slow_orange_pi": "orange_pi_5b",
            }[name]
            ids = [client for client in range(24) if COLEXT24.device(client).name == device]
            assert list(world.happenings) == [Happening(40.0, client, "compute", 3) for client in ids]
        case "links_dip" | "links_drop":
            assert {(one.at_s, one.factor) for one in world.happenings} == {
                (30.0, 0.1),
                *([(70.0, 1.0)] if name == "links_dip" else []),
            }
            assert len({one.client for one in world.happenings}) == 8
        case "double":
            assert list(world.happenings) == [Happening(40.0, client, "join") for client in range(24, 48)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([Row(at=0, client=6, compute=2)], "row 0: client=6 is not there; there are 6 clients, from 0"),
        ([Row(at=0, device="c", compute=2)], "row 0: device=c is not in the fleet, which has a, b"),
        (
            [Row(at_s=1, client=2, action="leave"), Row(at_s=2, client=2, action="crash")],
            "row 1: client 2 would crash at 2 s, when it is not there",
        ),
        (
            [Row(at_s=5, client=2, action="join"), Row(at_s=2, client=2, action="join")],
            "row 0: client 2 would join at 5 s, when it is there",
        ),
        (
            [Row(at_s=1, until=9, client=2, action="leave"), Row(at_s=3, client=2, action="leave")],
            "row 1: client 2 would leave at 3 s, when it is not there",
        ),
        (
            [Row(at_s=4, action="double"), Row(at_s=3, client=8, action="leave")],
            "row 1: client 8 would leave at 3 s, when it is not there",
        ),
        (
            [Row(at_s=4, action="double"), Row(at_s=5, client=8, action="join")],
            "row 1: client 8 would join at 5 s, when it is there",
        ),
    ],
)
def test_refusals_name_the_row(rows, says):
    with pytest.raises(SettingsError, match=re.escape(f"dynamics=mine: {says}")):
        happenings(*rows)


@pytest.mark.parametrize("t0_s", [0.0, -1.0, float("inf"), float("nan")])
def test_t0_is_a_time(t0_s):
    with pytest.raises(SettingsError, match="an epoch of this fleet takes"):
        happenings(Row(at=0.1, client=0, compute=2), t0_s=t0_s)
