"""``oracle_bound``: hand-computed programs, and that no plan beats it where nothing is random."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import led

from dynsl_app.algorithms import make_plan
from dynsl_app.allocation.dynsl import DynslAllocator
from dynsl_app.allocation.limits import Memory
from dynsl_app.compose import compose
from dynsl_app.errors import RoundFailed
from dynsl_app.plan import Plan, Power
from dynsl_app.server.book import Book, Sizes
from dynsl_app.server.steering import Steering
from dynsl_app.settings import AllocatorSettings
from dynsl_app.telemetry.events import EventStream
from dynsl_app.testbed.bound import bound_s
from dynsl_app.testbed.links import Constant, Looped
from dynsl_app.testbed.oracle import Oracle
from dynsl_app.testbed.run import run_testbed, simulate_rounds
from dynsl_app.testbed.simulate import Clock
from dynsl_app.testbed.world import Client, Happening, Server, World


def device(*block_s: float, batches: int = 10, up=Constant(math.inf), down=Constant(math.inf)) -> Client:  # noqa: B008
    return Client("d", "d", block_s, up, down, 0.0, batches, Power(1, 1, 1))


def world(*clients: Client, server_s=(0.0, 1.0), workers: int = 1, up=0.0, happenings=()) -> World:
    blocks = len(server_s)
    up_bytes = (*[up] * (blocks - 1), 0.0)
    server = Server(tuple(server_s), 0.0, workers)
    return World(clients, server, up_bytes, (0.0,) * blocks, (0.0,) * blocks, tuple(happenings), 0.0, 0.0)


def bound(world: World, *, cut: int | None = None, present=None, t0_s: float = 20.0) -> float:
    """``cut``: the only one that is allowed."""
    limits = dict.fromkeys(range(len(world.clients)), (cut or 1, cut or world.blocks))
    there = range(len(world.clients)) if present is None else present
    return bound_s(world, there, limits, t0_s)


def test_one_client_has_the_better_of_its_cuts():
    """A batch: 1 + 1 s at cut 1, 1 + 3 s at cut 2."""
    assert bound(world(device(1, 3))) == pytest.approx(20)
    assert bound(world(device(1, 0.5))) == pytest.approx(15)


def test_clients_share_the_server_in_any_fractions():
    """Each: 2.5 s at cut 1, of which 1.5 s at the server, and 3 s alone. With x of 10 batches at cut 1 it takes
    30 - x/2, and the server 3x: both 25.71 s at x = 60/7. Two workers: all at cut 1, 25 s.
    """
    pair = world(device(1, 2), device(1, 2), server_s=(0, 1.5))
    assert bound(pair) == pytest.approx(30 - 30 / 7)
    assert bound(replace(pair, server=replace(pair.server, workers=2))) == pytest.approx(25)


def test_a_batch_under_way_keeps_its_speed():
    """Locally, a second each; three from 4.5 s on. Of 5.5 batches one is under way then; 4.5 more take 13.5 s."""
    slowed = world(device(0.5, 0.5), happenings=[Happening(4.5, 0, "compute", 3.0)])
    assert bound(slowed, cut=2) == pytest.approx(5.5 + 13.5)


def test_links_count_as_long_as_they_are_so():
    """10 bytes at 10 B/s: 1 + 1 s a batch with the server's none, five in 10 s; then 11 s each, were it not 8 s alone.

    The one under way at 10 s has the better rate throughout: 6 batches by 12 s, 4 more at 8 s.
    """
    path = Constant(10.0)
    one = world(device(1, 7, up=path), server_s=(0, 0), up=10.0, happenings=[Happening(10.0, 0, "link", 0.1)])
    assert bound(one) == pytest.approx(12 + 4 * 8)


def test_a_dead_link_is_not_used():
    """Dead from the start; of the batch that begins just before, the bound thinks the best: 3 s, or 2 s."""
    dead = world(device(1, 7, up=Constant(10.0)), up=10.0, happenings=[Happening(0.0, 0, "link", 0.0)])
    assert bound(dead) == pytest.approx(3 + 9 * 8)
    with pytest.raises(RoundFailed, match=r"client 0: the batches cannot all be done"):
        bound(dead, cut=1)
    unlimited = world(device(1, 7), happenings=[Happening(0.0, 0, "link", 0.0)])
    assert bound(unlimited) == pytest.approx(2 + 9 * 8)


def test_a_busy_server_is_slower_for_a_while():
    """1 + 1 s at cut 1; from 4 to 14 s the server takes 5 s, a batch 6. Locally 11 s.

    By 4 s two batches, and one more under way at its old speed, by 6 s; until 14 s one in 6 s, and the one that might
    be under way then in 2 s at the most favourable; 5 more at 2 s.
    """
    busy = world(
        device(1, 10), happenings=[Happening(4.0, None, "compute", 5.0), Happening(14.0, None, "compute", 1.0)]
    )
    assert bound(busy) == pytest.approx(24)


def test_who_is_away_does_nothing_but_end_its_batch():
    """A second a batch, away from 4 to 7 s: 4 and the one under way, then 5."""
    away = [Happening(4.0, 0, "leave"), Happening(7.0, 0, "join")]
    assert bound(world(device(0.5, 0.5), happenings=away), cut=2) == pytest.approx(12)


def test_who_comes_later_begins_then():
    pair = world(device(0.5, 0.5), device(0.5, 0.5), happenings=[Happening(5.0, 1, "join")])
    assert bound(pair, cut=2, present=[0]) == pytest.approx(15)
    # The epoch begins with the first who is there.
    assert bound(
        replace(pair, clients=pair.clients[1:], happenings=(Happening(5.0, 0, "join"),)), cut=2, present=[]
    ) == (pytest.approx(10))


@pytest.mark.parametrize("kind", ["crash", "leave"])
def test_who_is_lost_does_not_count(kind):
    gone = [Happening(2.0, 0, kind)]
    assert bound(world(device(5, 5), device(0.5, 0.5), happenings=gone), cut=2) == pytest.approx(10)
    with pytest.raises(RoundFailed, match="no client can finish"):
        bound(world(device(5, 5), happenings=gone), cut=2)


def test_links_that_vary_count_with_their_means():
    """10 bytes a batch, 5 B/s for a second and 15 for another, again and again, looked at every 2 s: 10 B/s."""
    path = Looped([1.0, 2.0], [5.0, 15.0])
    assert bound(world(device(1, 7, up=path), server_s=(0, 0), up=10.0), t0_s=40.0) == pytest.approx(20)
    # Looked at every second: in 2 s 5/15 and 15/25 of a batch.
    in_turns = bound(world(device(1, 7, up=path, batches=14), server_s=(0, 0), up=10.0), t0_s=20.0)
    assert in_turns == pytest.approx(30)


blocks = 3
seconds = st.floats(0.05, 3.0)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 4))
    clients = []
    for number in range(count):
        rate = Constant(draw(st.floats(1.0, 100.0)))
        block_s = tuple(draw(st.lists(seconds, min_size=blocks, max_size=blocks)))
        rtt_s = draw(st.sampled_from([0.0, 0.1]))
        power = Power(1, 1, 1)
        clients.append(Client(f"d{number}", "d", block_s, rate, rate, rtt_s, draw(st.integers(1, 12)), power))
    happenings = []
    for _ in range(draw(st.integers(0, 4))):
        at, client = draw(st.floats(0.0, 30.0)), draw(st.integers(0, count - 1))
        kind = draw(st.sampled_from(["compute", "link", "server", "leave"]))
        factor = draw(st.sampled_from([0.2, 0.5, 1.0, 3.0]))
        if kind == "leave":
            happenings += [Happening(at, client, "leave"), Happening(at + draw(st.floats(0.5, 9.0)), client, "join")]
        else:
            whom = None if kind == "server" else client
            happenings.append(Happening(at, whom, "link" if kind == "link" else "compute", factor))
    happenings.sort(key=lambda one: one.at_s)
    return World(
        tuple(clients),
        Server(tuple(draw(st.lists(seconds, min_size=blocks, max_size=blocks))), 0.01, draw(st.integers(1, 2))),
        (20.0, 10.0, 0.0),
        (20.0, 10.0, 0.0),
        (0.0,) * blocks,
        tuple(happenings),
        0.0,
        0.0,
    )


def played(world: World, name: str) -> float:
    """The epoch of a round without jitter; infinite if a client is lost."""
    everybody = range(len(world.clients))
    clock, events = Clock(), EventStream([])
    limits = dict.fromkeys(everybody, (1, blocks))
    if name == "dynsl":
        sizes = Sizes((20, 10, 0), (20, 10, 0), (0,) * blocks)
        book = Book(world.server.block_s, 8, sizes, 2**20)
        for client, one in enumerate(world.clients):
            book.introduce(client, one.block_s)
        driver = Steering(
            DynslAllocator(AllocatorSettings()),
            book,
            limits,
            world.server.workers,
            events,
            memory=Memory([1] * blocks, 1.0),
            mid_epoch=True,
            expected={client: one.batches for client, one in enumerate(world.clients)},
            clock=clock,
            threaded=False,
        )
    else:
        driver = Oracle(world, clock, limits, static=name == "oracle_static")
    plan = Plan(blocks, blocks, dict.fromkeys(everybody, 2))
    _, simulation = led(world, driver, plan, clock, events)
    return math.inf if any(course.lost for course in simulation.courses.values()) else simulation.epoch_s


@settings(max_examples=60, deadline=None)
@given(world=worlds(), name=st.sampled_from(["oracle", "oracle_static", "dynsl"]))
def test_no_plan_beats_it(world, name):
    assert bound(world) <= played(world, name) * (1 + 1e-9)


SMALL = ["runtime=testbed", "model=mlp", "testbed.shape=[1,8,8]", "testbed.batches=20", "fleet=demo", "rounds=2"]


def test_a_run_has_it_as_its_epochs(tmp_path):
    run = compose([*SMALL, "algorithm=oracle_bound", f"run_dir={tmp_path}/run", "logging.console=off"])
    summary = run_testbed(run)
    assert len(summary.epoch_s) == 2
    assert summary.epoch_s[0] == pytest.approx(summary.epoch_s[1])
    assert summary.total_s == pytest.approx(sum(summary.epoch_s))
    assert (summary.moves, summary.bytes_up, summary.cuts) == (0, 0, {})
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 3
    others = [simulate_rounds(compose([*SMALL, f"algorithm={name}"])) for name in ("oracle", "fedavg", "uniform")]
    assert summary.epoch_s[0] < 1.02 * min(min(epochs) for epochs in others)  # they may be lucky
    assert make_plan(run, 4, range(4)).boundary == 4
