"""The solver against brute force, and laws that any optimum obeys."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynsl_app.allocation.solver import solve, solve_arrays
from dynsl_app.cost.instance import ClientCosts, Instance
from dynsl_app.cost.model import Ints, costs_of


def random_instance(rng: np.random.Generator) -> Instance:
    """Up to 5 clients × 6 blocks; small whole numbers half of the time, so that ties and zeros abound."""
    blocks, count = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    boundary = blocks if rng.random() < 0.7 else int(rng.integers(1, blocks + 1))

    whole = rng.random() < 0.5
    heavy = int(rng.choice([1, 1, 10]))  # blocks above the first: a server that fills up, clients that cannot help

    def draw(size: int, times: int = 1) -> list[float]:
        values = rng.integers(0, 4, size) if whole else rng.exponential(2.0, size)
        return [float(value) * times for value in values]

    clients = []
    for index in range(count):
        floor = int(rng.integers(1, boundary + 1)) if rng.random() < 0.4 else 1
        ceiling = int(rng.integers(floor, blocks + 1)) if rng.random() < 0.4 else blocks
        clients.append(
            ClientCosts(
                name=f"c{index}",
                batches=0 if rng.random() < 0.15 else int(rng.integers(1, 9)),
                block_s=(*draw(1), *draw(blocks - 1, 3 * heavy)),
                up_Bps=float(rng.integers(1, 4)),
                down_Bps=float(rng.integers(1, 4)),
                rtt_s=draw(1)[0],
                min_cut=floor,
                max_cut=ceiling,
                cut=int(rng.integers(1, boundary + 1)) if rng.random() < 0.6 else None,
            )
        )
    return Instance(
        workers=int(rng.integers(1, 4)),
        boundary=boundary,
        server_call_s=draw(1)[0] if rng.random() < 0.5 else 0.0,
        server_block_s=(*draw(1), *draw(blocks - 1, heavy)),
        up_bytes=(*draw(blocks - 1), 0.0),
        down_bytes=(*draw(blocks - 1), 0.0),
        clients=tuple(clients),
    )


def own_and_work(instance: Instance, client: ClientCosts, cut: int) -> tuple[float, float]:
    """c_i(n) and v_i(n) from the definitions, sharing no code with the package."""
    if cut == instance.blocks:
        return client.batches * sum(client.block_s), 0.0
    work = instance.server_call_s + sum(instance.server_block_s[cut:])
    link = instance.up_bytes[cut - 1] / client.up_Bps + instance.down_bytes[cut - 1] / client.down_Bps + client.rtt_s
    return client.batches * (sum(client.block_s[:cut]) + link + work), client.batches * work


def choices(instance: Instance, client: ClientCosts) -> list[int]:
    if client.batches == 0:
        return [client.cut or client.min_cut]
    return list(range(client.min_cut, min(client.max_cut or instance.blocks, instance.boundary) + 1))


def least_bound(instance: Instance) -> float:
    """The optimum over all plans, one by one (as arrays over the plans)."""
    options = [choices(instance, client) for client in instance.clients]
    terms = [
        [own_and_work(instance, client, cut) for cut in cuts]
        for client, cuts in zip(instance.clients, options, strict=True)
    ]
    plans = np.array(list(itertools.product(*(range(len(cuts)) for cuts in options))))
    own = np.zeros(len(plans))
    work = np.zeros(len(plans))
    for index, pairs in enumerate(terms):
        picked = np.array(pairs)[plans[:, index]]
        own = np.maximum(own, picked[:, 0])
        work += picked[:, 1]
    return float(np.maximum(own, work / instance.workers).min())


def bound_of(instance: Instance, cuts: Ints) -> float:
    pairs = [own_and_work(instance, client, int(cut)) for client, cut in zip(instance.clients, cuts, strict=True)]
    return max(max(own for own, _ in pairs), sum(work for _, work in pairs) / instance.workers)


def test_solver_equals_brute_force_on_2000_instances() -> None:
    """Floors, ceilings, ties, zeros, h0, R = 0, m = 1 to 3, b < L."""
    rng = np.random.default_rng(0)
    shared = server_bound = 0
    for number in range(2000):
        instance = random_instance(rng)
        solution = solve(costs_of(instance))
        optimum = least_bound(instance)
        assert solution.bound_s == pytest.approx(optimum, rel=1e-12, abs=1e-12), number
        assert bound_of(instance, solution.cuts) == pytest.approx(optimum, rel=1e-12, abs=1e-12), number
        for client, cut in zip(instance.clients, solution.cuts.tolist(), strict=True):
            assert cut in choices(instance, client), number
        shared += instance.boundary < instance.blocks
        pairs = zip(instance.clients, solution.cuts.tolist(), strict=True)
        server_bound += optimum > max(own_and_work(instance, client, cut)[0] for client, cut in pairs)
    # The draw must reach the hard cases, else the comparison says little.
    assert shared > 200
    assert server_bound > 50


def test_the_deadline_before_the_first_feasible_one_can_be_best() -> None:
    # At T = 10 the server is idle; at T = 4 it needs 12/2 = 6 s of each worker, which is sooner.
    c = np.array([[4.0, 10.0], [4.0, 10.0]])
    v = np.array([[6.0, 0.0], [6.0, 0.0]])
    assert solve_arrays(c, v, 2, np.zeros(2, dtype=np.int64)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("c", "current", "cut"),
    [
        ([3.0, 2.0, 2.0, 9.0], 1, 1),  # the current cut, though another has less c
        ([3.0, 2.0, 4.0, 9.0], 0, 2),  # else least c
        ([3.0, 2.0, 2.0, 9.0], 0, 3),  # else the larger cut
        ([3.0, 2.0, 2.0, 9.0], 4, 3),  # the current cut is too late for the deadline
    ],
)
def test_ties_in_work(c: list[float], current: int, cut: int) -> None:
    # A second client that cannot end before 5 sets the deadline, so that work, not c, decides.
    own = np.array([c, [5.0, np.inf, np.inf, np.inf]])
    work = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, np.inf, np.inf, np.inf]])
    assert solve_arrays(own, work, 1, np.array([current, 1])).tolist() == [cut, 1]


seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int) -> Instance:
    return random_instance(np.random.default_rng(seed))


@given(seeds, st.integers(0, 4), st.sampled_from([1.5, 2.0, 100.0]), st.sampled_from(["up_Bps", "down_Bps"]))
@settings(max_examples=200, deadline=None)
def test_more_bandwidth_never_makes_the_optimum_worse(seed: int, index: int, factor: float, field: str) -> None:
    instance = drawn(seed)
    clients = list(instance.clients)
    lucky = clients[index % len(clients)]
    clients[index % len(clients)] = replace(lucky, **{field: getattr(lucky, field) * factor})
    better = solve(costs_of(replace(instance, clients=tuple(clients)))).bound_s
    assert better <= solve(costs_of(instance)).bound_s * (1 + 1e-12)


@given(seeds, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_permuting_clients_permutes_cuts(seed: int, random: object) -> None:
    instance = drawn(seed)
    # Quarters sum exactly in any order, so that rounding cannot break a tie.
    exact = replace(
        instance,
        server_call_s=round(instance.server_call_s),
        server_block_s=tuple(round(s * 4) / 4 for s in instance.server_block_s),
    )
    order = list(range(len(exact.clients)))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted = replace(exact, clients=tuple(exact.clients[i] for i in order))
    cuts, moved = solve(costs_of(exact)).cuts, solve(costs_of(permuted)).cuts
    assert moved.tolist() == cuts[order].tolist()


@given(seeds)
@settings(max_examples=200, deadline=None)
def test_more_workers_and_wider_limits_never_hurt(seed: int) -> None:
    instance = drawn(seed)
    optimum = solve(costs_of(instance)).bound_s * (1 + 1e-12)
    assert solve(costs_of(replace(instance, workers=instance.workers + 1))).bound_s <= optimum
    free = tuple(replace(client, min_cut=1, max_cut=None) for client in instance.clients)
    assert solve(costs_of(replace(instance, clients=free))).bound_s <= optimum


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_another_client_never_makes_the_optimum_better(seed: int) -> None:
    instance = drawn(seed)
    fewer = replace(instance, clients=instance.clients[:1])
    assert solve(costs_of(fewer)).bound_s <= solve(costs_of(instance)).bound_s * (1 + 1e-12)


@pytest.mark.parametrize(("clients", "blocks", "limit_s"), [(24, 20, 1e-3), (1000, 50, 1e-2), (10_000, 50, 0.1)])
def test_speed(fleet: Callable[..., Instance], clients: int, blocks: int, limit_s: float) -> None:
    """CPU time, so that neighbours on the machine do not count; scripts/bench_solver.py prints a table."""
    costs = costs_of(fleet(0, clients=clients, blocks=blocks, workers=4))
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        solve(costs)
        best = min(best, time.process_time() - start)
    assert best < limit_s
