"""Refinement: never worse than its references, close to the best there is, within its budget."""

import itertools
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from dynsl_app.allocation import refine as refine_module
from dynsl_app.allocation.refine import NEAR, refine
from dynsl_app.allocation.rules import dtfl, each_alone
from dynsl_app.allocation.solver import solve
from dynsl_app.cost.instance import Instance
from dynsl_app.cost.model import Costs, Ints, costs_of
from dynsl_app.cost.queueing import Timeline, requests, simulate

Fleet = Callable[..., Instance]


def vars_of(costs: Costs) -> dict[str, Any]:
    return {field.name: getattr(costs, field.name) for field in fields(costs)}


def best_reference_s(costs: Costs) -> float:
    plans = (solve(costs).cuts, each_alone(costs), dtfl(costs), costs.current)
    return min(simulate(costs, cuts).epoch_s for cuts in plans)


def moves(costs: Costs, seed: int) -> np.ndarray:
    """Bytes to move: so many for every block between the present cut and the other."""
    distance = np.abs(np.arange(1, costs.c.shape[1] + 1) - costs.current[:, None])
    return distance * np.random.default_rng(seed).uniform(1e5, 1e7, (len(costs.c), 1))


@pytest.mark.parametrize("events", [0, 10_000, 60_000])
@pytest.mark.parametrize("weigh_bytes", [False, True])
def test_never_worse_than_the_references(fleet: Fleet, events: int, weigh_bytes: bool) -> None:
    for seed in range(8):
        instance = fleet(seed, clients=10, blocks=8, workers=1 + seed % 3, batches=20)
        costs = costs_of(instance)
        if weigh_bytes:
            costs = costs_of(instance, move_bytes=moves(costs, seed))
        refined = refine(costs, events=events)
        assert refined.epoch_s <= best_reference_s(costs)
        assert refined.epoch_s == simulate(costs, refined.cuts).epoch_s
        assert np.isfinite(costs.c[np.arange(10), refined.cuts - 1]).all()


def test_each_reference_is_the_best_of_them_somewhere(fleet: Fleet) -> None:
    """With no budget the references alone are tried, so each must be able to win."""
    winners = set()
    for seed in range(30):
        instance = fleet(seed, clients=10, blocks=8, workers=1 + seed % 3, batches=20)
        light = replace(instance, server_block_s=tuple(seconds * 0.1 for seconds in instance.server_block_s))
        costs = costs_of(light)
        refined = refine(costs, events=0)
        assert refined.epoch_s == best_reference_s(costs)
        winners.add(refined.origin)
    costs = costs_of(fleet(0))
    settled = Costs(**{**vars_of(costs), "current": refine(costs).cuts})
    winners.add(refine(settled, events=0).origin)
    assert winners == {"bound", "alone", "dtfl", "today"}


def test_close_to_the_best_of_all_plans(fleet: Fleet) -> None:
    gaps, gains = [], []
    for seed in range(12):
        costs = costs_of(fleet(seed, clients=4, blocks=5, workers=1, batches=20))
        plans = (np.array(cuts, dtype=np.int64) for cuts in itertools.product(range(1, 6), repeat=4))
        best_s = min(simulate(costs, cuts).epoch_s for cuts in plans)
        refined_s = refine(costs).epoch_s
        gaps.append(refined_s / best_s - 1)
        gains.append(simulate(costs, solve(costs).cuts).epoch_s / refined_s - 1)
    assert np.median(gaps) < 0.005
    assert max(gaps) < 0.05
    assert max(gains) > 0.01, "the fleets are too easy: the bound's plan is already best everywhere"


def test_improves_on_the_bounds_plan_under_contention(fleet: Fleet) -> None:
    costs = [costs_of(fleet(seed)) for seed in range(6)]
    gains = [1 - refine(one).epoch_s / simulate(one, solve(one).cuts).epoch_s for one in costs]
    assert max(gains) > 0.02


def test_among_equals_the_plan_that_moves_least(fleet: Fleet) -> None:
    fewer = 0
    for seed in range(6):
        instance = fleet(seed, clients=8, blocks=8, batches=30)
        weights = moves(costs_of(instance), seed)
        costs = costs_of(instance, move_bytes=weights)
        fastest, lightest = refine(costs_of(instance)), refine(costs)
        rows = np.arange(8)
        assert lightest.moved_bytes == weights[rows, lightest.cuts - 1].sum()
        assert lightest.moved_bytes <= weights[rows, fastest.cuts - 1].sum()
        assert lightest.epoch_s <= fastest.epoch_s * (1 + NEAR)
        fewer += lightest.moved_bytes < weights[rows, fastest.cuts - 1].sum()
    assert fewer > 0


def test_the_same_costs_give_the_same_plan(fleet: Fleet) -> None:
    first, second = refine(costs_of(fleet(5))), refine(costs_of(fleet(5)))
    assert first.cuts.tolist() == second.cuts.tolist()
    assert first.epoch_s == second.epoch_s


def test_budget_bounds_what_is_simulated(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[int] = []

    def counted(costs: Costs, cuts: Ints) -> Timeline:
        simulated.append(requests(costs, cuts))
        return simulate(costs, cuts)

    monkeypatch.setattr(refine_module, "simulate", counted)
    for seed in range(4):
        costs = costs_of(fleet(seed, workers=4), move_bytes=np.ones((24, 20)))
        most = int(costs.batches.sum())
        refine(costs, events=0)
        assert len(simulated) <= 4, "only the references are simulated without a budget"
        simulated.clear()
        refine(costs, events=40_000)
        # Either phase may overrun by one plan.
        assert sum(simulated) <= 40_000 * 5 // 4 + 2 * most
        simulated.clear()


def test_clients_without_a_present_cut_or_batches(fleet: Fleet) -> None:
    costs = costs_of(fleet(1, clients=6, blocks=5, batches=10))
    unknown = Costs(**{**vars_of(costs), "current": np.zeros(6, dtype=np.int64)})
    assert refine(unknown).origin != "today"
    nothing = Costs(**{**vars_of(costs), "batches": np.zeros(6, dtype=np.int64)})
    assert refine(nothing).epoch_s == 0.0


def test_speed(fleet: Fleet) -> None:
    """CPU time for 24 clients × 20 cuts, 50 batches each."""
    costs = costs_of(fleet(0))
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        refine(costs)
        best = min(best, time.process_time() - start)
    assert best < 0.05
