"""What algorithms mean by their names, and which settings are refused together."""

import re
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.algorithms import ALGORITHMS, check, make_plan
from dynsl_app.errors import SettingsError
from dynsl_app.plan import SEPARATE
from dynsl_app.settings import AlgorithmSettings, Settings
from dynsl_app.validate import validate


def settings(**groups) -> Settings:
    return validate(
        {
            name: {"name": value} if name == "algorithm" and isinstance(value, str) else value
            for name, value in groups.items()
        }
    )


def test_every_name_has_a_meaning():
    names = get_args(get_type_hints(AlgorithmSettings)["name"])
    assert set(names) == ALGORITHMS.keys()


@pytest.mark.parametrize(
    ("algorithm", "heads", "policy", "cut", "boundary"),
    [
        ("dynsl", 0, "continuous", 3, 5),  # what it begins with
        ("fedavg", 0, "continuous", 5, 5),
        ("uniform", 0, "continuous", 3, 5),
        ("splitfed_v1", 0, "continuous", 3, 5),
        ("splitfed_v2", 1, "sequential", 3, 3),
        ("psl", 1, "lockstep", 3, 3),
    ],
)
def test_the_table_of_algorithms(algorithm, heads, policy, cut, boundary):
    """User case 7: the order in which SplitFed V2's server updates is part of its meaning."""
    run = settings(algorithm=algorithm, clients=3)
    plan = make_plan(run, 5, [0, 2])
    assert (plan.heads, check(run).server.policy, plan.boundary) == (heads, policy, boundary)
    assert plan.cuts == {0: cut, 2: cut}


@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    blocks=st.integers(2, 20),
    cut=st.none() | st.integers(1, 20),
    count=st.none() | st.sampled_from([-1, 1, 2, 3]),
    boundary=st.none() | st.integers(1, 20),
)
def test_a_plan_fits_the_model_or_is_refused(algorithm, blocks, cut, count, boundary):
    run = settings(
        algorithm={"name": algorithm, "cut": cut},
        heads={"count": count, "boundary": boundary},
        telemetry={"profile": "file", "profile_file": "p.json"},
        clients=3,
        runtime="testbed" if ALGORITHMS[algorithm].testbed else "local",
    )
    try:
        plan = make_plan(run, blocks, [0, 1, 2])
    except SettingsError:
        # The defaults of every algorithm fit every model that can be split.
        assert not cut == count == boundary == None  # noqa: E711
        return
    resolved = check(run)
    assert check(resolved) == resolved
    assert make_plan(resolved, blocks, [0, 1, 2]) == plan
    shared = resolved.heads.count != SEPARATE
    assert plan.heads == (resolved.heads.count if shared else 0)
    assert (plan.boundary < blocks) == shared
    assert set(plan.cuts.values()) == {cut or min((blocks + 1) // 2, boundary or blocks)} or algorithm == "fedavg"


def test_uniform_takes_explicit_heads():
    run = settings(algorithm={"name": "uniform", "cut": 2}, heads={"count": 2, "boundary": 3}, clients=5)
    plan = make_plan(run, 5, range(5))
    assert (plan.heads, plan.boundary, plan.cuts[4]) == (2, 3, 2)
    assert [plan.head_of(client) for client in range(5)] == [0, 1, 0, 1, 0]


def test_a_cut_at_the_last_block_is_fully_local():
    plan = make_plan(settings(algorithm={"name": "splitfed_v1", "cut": 5}), 5, [0])
    assert plan.cuts[0] == plan.blocks


@pytest.mark.parametrize(
    ("groups", "blocks", "says"),
    [
        ({"algorithm": {"name": "splitfed_v1", "cut": 6}}, 5, "algorithm.cut=6: model=cnn has 5 blocks; choose 1..5"),
        ({"algorithm": {"name": "psl", "cut": 5}}, 5, "algorithm.cut=5: model=cnn has 5 blocks, of which"),
        ({"algorithm": "uniform", "heads": {"count": 1, "boundary": 5}}, 5, "heads.boundary=5: model=cnn has 5"),
        ({"algorithm": "splitfed_v2"}, 1, "model=cnn has 1 block, and a shared head needs at least two"),
    ],
)
def test_a_cut_that_the_model_has_not_is_refused(groups, blocks, says):
    run = settings(**groups)
    with pytest.raises(SettingsError, match=re.escape(says)):
        make_plan(run, blocks, [0, 1])


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"algorithm": {"name": "fedavg", "cut": 2}}, "algorithm.cut=2 contradicts algorithm=fedavg"),
        ({"algorithm": "splitfed_v1", "heads": {"count": 1}}, "heads.count=1 contradicts algorithm=splitfed_v1"),
        ({"algorithm": "splitfed_v2", "heads": {"count": -1}}, "heads.count=-1 contradicts algorithm=splitfed_v2"),
        ({"algorithm": "fedavg", "heads": {"count": 1}}, "heads.count=1 contradicts algorithm=fedavg"),
        ({"algorithm": "psl", "heads": {"boundary": 3}}, "heads.boundary=3 contradicts algorithm=psl"),
        ({"algorithm": "uniform", "heads": {"count": 0}}, "heads.count=0: use -1"),
        ({"algorithm": "uniform", "heads": {"count": -2}}, "heads.count=-2: use -1"),
        ({"algorithm": "uniform", "heads": {"count": 5}}, "heads.count=5 is more than clients=4"),
        ({"algorithm": "uniform", "heads": {"boundary": 2}}, "heads.boundary=2 needs a shared head"),
        ({"algorithm": "uniform", "heads": {"count": -1, "boundary": 2}}, "heads.boundary=2 needs a shared head"),
        (
            {"algorithm": {"name": "uniform", "cut": 3}, "heads": {"count": 1, "boundary": 2}},
            "algorithm.cut=3 is beyond heads.boundary=2",
        ),
        ({"algorithm": "splitfed_v1", "server": {"policy": "lockstep"}}, "has no shared head"),
        ({"algorithm": "splitfed_v2", "server": {"policy": "lockstep"}}, "which means sequential or replay"),
        ({"algorithm": "psl", "server": {"policy": "sequential"}}, "which means lockstep or replay"),
        ({"algorithm": "psl", "server": {"policy": "replay"}}, "server.policy=replay needs server.replay"),
        ({"algorithm": "psl", "server": {"replay": "a"}}, "server.replay=a is only read with server.policy=replay"),
        ({"clients_per_round": 5}, "clients_per_round=5 is more than clients=4"),
        ({"optimizer": {"clip": "global_norm"}}, "use block_norm"),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, "needs optimizer.momentum above 0"),
        ({"optimizer": {"name": "adam", "momentum": 0.9}}, "adam has optimizer.betas instead"),
        ({"wire": {"tls": "off", "bind": "0.0.0.0:9000"}}, "wire.tls=off with wire.bind=0.0.0.0:9000"),
        ({"wire": {"tls": "off", "advertise": "example.org"}}, "wire.tls=off with wire.advertise=example.org"),
        ({"wire": {"certificate": "a.pem"}}, "wire.certificate and wire.key go together"),
        ({"wire": {"tls": "off", "certificate": "a.pem", "key": "b.pem"}}, "not used with wire.tls=off"),
        ({"faults": {"round_s": 10.0}}, "faults.round_s=10"),
        ({"telemetry": {"profile_file": "p.json"}}, "only read with telemetry.profile=file, and it is warmup"),
        (
            {"telemetry": {"profile": "file", "profile_file": {4: "p.json"}}},
            "telemetry.profile_file names client 4, and there are clients 0..3",
        ),
        (
            {"algorithm": "dynsl_profiled"},
            "clients 0, 1, 2, 3: algorithm=dynsl_profiled plans the first round from profiles",
        ),
        ({"algorithm": "dynsl_profiled", "telemetry": {"profile": "flops"}}, "make one with dynsl-profile and set"),
        (
            {
                "algorithm": "dynsl_profiled",
                "telemetry": {"profile": "file", "profile_file": {0: "a", 1: "a", 3: "a"}},
            },
            "client 2: algorithm=dynsl_profiled",
        ),
        *(
            ({"algorithm": name}, f"algorithm={name} plans from the truth, which only runtime=testbed knows")
            for name in ("oracle", "oracle_paid", "oracle_static", "oracle_bound")
        ),
        (
            {"algorithm": "oracle_bound", "runtime": "testbed", "testbed": {"compute": "real"}},
            "algorithm=oracle_bound is a bound that nobody reaches by training",
        ),
        ({"algorithm": {"name": "dtfl", "time_weight": 0.5}}, "algorithm.time_weight=0.5 is of algorithm=ares; dtfl"),
        ({"algorithm": {"name": "ares", "time_weight": 0.5}}, "and fleet=none does not say what the devices draw"),
        ({"algorithm": "ares", "heads": {"count": 1}}, "heads.count=1 contradicts algorithm=ares"),
        ({"algorithm": "sfsl", "heads": {"boundary": 2}}, "heads.boundary=2 contradicts algorithm=sfsl"),
    ],
)
def test_contradictions_are_refused_with_their_reason(groups, says):
    """User case 31 (time-outs checked together) among them."""
    run = settings(**groups)
    with pytest.raises(SettingsError, match=re.escape(says)):
        check(run)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), "half"])
def test_a_weight_is_from_0_to_1(weight):
    with pytest.raises(SettingsError, match=r"algorithm\.time_weight="):
        settings(algorithm={"name": "ares", "time_weight": weight})


def test_energy_may_be_weighed_where_devices_are_listed():
    fleet = {"devices": [{"name": "pi", "count": 2, "compute": 3}]}
    run = settings(algorithm={"name": "ares", "time_weight": 0.5}, fleet=fleet)
    assert check(run).algorithm.time_weight == 0.5


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "127.8.8.8:9", "localhost:0", "[::1]:0", "::1"])
def test_tls_may_be_off_on_loopback(bind):
    check(settings(wire={"tls": "off", "bind": bind}))


def test_in_process_links_need_no_tls():
    check(settings(wire={"name": "inprocess", "tls": "off", "bind": "0.0.0.0:0"}))
