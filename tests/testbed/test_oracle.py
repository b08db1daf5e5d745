"""Plans from the truth: costs by hand, and that planning again at a change is worth it."""

import math

import numpy as np
import pytest
from simulations import device, world_of

from dynsl_app.compose import compose
from dynsl_app.plan import Plan
from dynsl_app.testbed.links import Looped
from dynsl_app.testbed.oracle import Oracle, true_costs
from dynsl_app.testbed.run import simulate_rounds
from dynsl_app.testbed.simulate import Clock
from dynsl_app.testbed.world import Happening

HAPPENINGS = [
    Happening(10.0, 0, "compute", 3.0),
    Happening(20.0, 0, "link", 0.5),
    Happening(30.0, None, "compute", 2.0),
]


@pytest.mark.parametrize(("time_s", "compute", "link", "server"), [(0, 1, 1, 1), (10, 3, 1, 1), (40, 3, 0.5, 2)])
def test_costs_are_the_truth_at_a_time(time_s: float, compute: float, link: float, server: float) -> None:
    world = world_of(device(), happenings=HAPPENINGS)
    # The round began 100 s after the run.
    costs = true_costs(world, 100.0 + time_s, 100.0, {0: 3}, {0: 2}, {0: (1, 4)}, boundary=4, moving=True)
    assert costs.compute_s[0].tolist() == [compute * own for own in (1, 3, 6, 10)]
    up_down = np.array([4 + 2, 2 + 1, 1 + 0.5, 0]) / link
    assert costs.transfer_s[0].tolist() == pytest.approx(np.add(up_down, [0.5, 0.5, 0.5, 0]).tolist())
    assert costs.server_s.tolist() == pytest.approx([server * own for own in (0.95, 0.75, 0.45, 0)])
    assert costs.move_bytes is not None
    assert costs.move_s is not None
    assert costs.move_bytes[0].tolist() == [20, 0, 30, 70]
    # Up at 100 B/s, down at 200.
    assert costs.move_s[0].tolist() == pytest.approx([0.2 / link, 0, 0.15 / link, 0.35 / link])


@pytest.mark.filterwarnings("error")
def test_a_link_that_carries_nothing_now_leaves_the_whole_model() -> None:
    """As in a trace's gap."""
    dead = device(up=Looped([1.0, 2.0], [0.0, 100.0]))
    costs = true_costs(world_of(dead), 0.0, 0.0, {0: 3}, {0: 0}, {0: (1, 4)}, boundary=4, moving=False)
    assert costs.transfer_s[0].tolist() == [math.inf] * 3 + [0.0]


def test_it_plans_the_best_cut_of_one_client() -> None:
    """At cuts 1 to 4 a batch takes 8.45, 7.25, 7.95 and 10 s."""
    clock = Clock()
    oracle = Oracle(world_of(device()), clock, {0: (1, 4)}, static=True)
    assert oracle.initial(Plan(4, 4, {0: 1})).cuts == {0: 2}
    floor = Oracle(world_of(device()), clock, {0: (3, 4)}, static=True)
    assert floor.initial(Plan(4, 4, {0: 3})).cuts == {0: 3}


def test_planning_again_pays_and_free_moves_pay_more() -> None:
    """When a type of device slows down, by the same fleet, seeds and happenings."""
    common = ["runtime=testbed", "model=resnet18", "testbed.batches=20", "rounds=1", "fleet.server=medium"]
    common += ["dynamics=slow_lattepanda"]
    names = ("oracle_static", "oracle_paid", "oracle")
    static, paid, free = (simulate_rounds(compose([*common, f"algorithm={name}"]))[0] for name in names)
    assert paid < 0.95 * static
    assert free <= 1.02 * paid
