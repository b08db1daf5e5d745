"""What plans made from the truth decide, by hand: once, at changes for nothing, at changes that cost something."""

import math
from dataclasses import replace

import pytest
from simulations import led

from dynsl_app.plan import Plan, Power
from dynsl_app.telemetry.events import EventStream
from dynsl_app.testbed.links import Constant
from dynsl_app.testbed.oracle import Oracle
from dynsl_app.testbed.simulate import Clock, Simulation
from dynsl_app.testbed.world import Client, Happening, Server, World

UNLIMITED = Constant(math.inf)


def world(*block_s: tuple[float, float], server_s: float, state_bytes: float = 0.0, happenings=()) -> World:
    """Ten batches a client, two blocks, 10 B/s down; nothing but state weighs anything."""
    clients = [Client("d", "d", each, UNLIMITED, Constant(10.0), 0.0, 10, Power(1, 1, 1)) for each in block_s]
    server = Server((0.0, server_s), 0.0, 1)
    return World(tuple(clients), server, (0.0, 0.0), (0.0, 0.0), (0.0, state_bytes), tuple(happenings), 0.0, 0.0)


def played(world: World, *, static: bool = False) -> tuple[dict[int, int], Simulation]:
    """The cuts that a round began with, and the round."""
    clients = range(len(world.clients))
    clock, events = Clock(), EventStream([])
    oracle = Oracle(world, clock, dict.fromkeys(clients, (1, 2)), static=static)
    plan, simulation = led(world, oracle, Plan(2, 2, dict.fromkeys(clients, 1)), clock, events)
    return dict(plan.cuts), simulation


def test_the_static_plan_is_the_best_for_all_together():
    """1 s and the server's w at cut 1, or 3.5 s alone. w = 1: both at cut 1. w = 3: alone 40 s, so both local.

    A client eight times slower, 8 + w or 28 s: with w = 3 it alone has the server.
    """
    alike = (1.0, 2.5), (1.0, 2.5)
    assert played(world(*alike, server_s=1), static=True)[0] == {0: 1, 1: 1}
    assert played(world(*alike, server_s=3), static=True)[0] == {0: 2, 1: 2}
    assert played(world((1.0, 2.5), (8.0, 20.0), server_s=3), static=True)[0][1] == 1


SLOWED = world((1.0, 3.0), server_s=1.0, happenings=[Happening(6.5, None, "compute", 9.0)])
"""2 s a batch at cut 1, or 4 s alone; the fourth is being served when the server gets nine times slower: then 10 s."""


@pytest.mark.parametrize(
    ("static", "state_bytes", "epoch_s", "moves"),
    [
        (True, 0, 4 * 2 + 6 * 10, 0),
        (False, 0, 4 * 2 + 6 * 4, 1),  # oracle: state weighs nothing
        (False, 30, 4 * 2 + 3 + 6 * 4, 1),  # oracle_paid: 30 bytes come with the fourth reply
        (False, 400, 4 * 2 + 6 * 10, 0),  # 40 s for a move that saves 36
    ],
)
def test_plans_follow_what_happens_if_it_is_worth_it(static, state_bytes, epoch_s, moves):
    changed = replace(SLOWED, state_bytes=(0.0, float(state_bytes)))
    began, simulation = played(changed, static=static)
    assert began == {0: 1}
    assert simulation.epoch_s == pytest.approx(epoch_s)
    assert simulation.courses[0].generation == moves
