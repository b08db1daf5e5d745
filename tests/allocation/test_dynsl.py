"""The allocator's rules one by one, on situations made by hand."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynsl_app.allocation.base import Situation
from dynsl_app.allocation.dynsl import DynslAllocator
from dynsl_app.allocation.refine import NEAR, refine
from dynsl_app.allocation.rules import dtfl, each_alone
from dynsl_app.allocation.solver import solve
from dynsl_app.allocation.thrift import thrifty
from dynsl_app.cost.instance import Instance
from dynsl_app.cost.model import Costs, Ints, NoFeasibleCut, costs_of
from dynsl_app.cost.queueing import simulate
from dynsl_app.settings import AllocatorSettings

Fleet = Callable[..., Instance]


def situation(costs: Costs, **changes: Any) -> Situation:
    """Long since anybody moved, nothing new."""
    count = len(costs.names)
    usual = {
        "batches_done": np.full(count, 50),
        "since_move": np.full(count, 50),
        "moving": np.zeros(count, dtype=bool),
        "jumped": np.zeros(count, dtype=bool),
        "paced": np.zeros(count, dtype=np.int64),
        "in_doubt": np.zeros(count, dtype=bool),
        "joined": False,
    }
    return Situation(costs, **{**usual, **changes})


def alone(*, cut: int = 3, slow: float = 1.0, move_s: float = 0.0, left: int = 100, **changes: Any) -> Costs:
    """One client, three blocks of ``slow`` s each, transfers of 0.5 s, a server that takes no time.

    Unless slowed it is as fast at cut 1 as it gets: 1.5 s, against 2.5 s and 3 s.
    """
    away = np.abs(np.arange(1, 4) - cut)[None, :].astype(float)
    usual: dict[str, Any] = {
        "names": ("7",),
        "batches": np.array([left]),
        "compute_s": slow * np.array([[1.0, 2.0, 3.0]]),
        "transfer_s": np.array([[0.5, 0.5, 0.0]]),
        "server_s": np.array([1e-6, 1e-6, 0.0]),
        "allowed": np.ones((1, 3), dtype=bool),
        "current": np.array([cut]),
        "workers": 1,
        "move_s": move_s * (away > 0),
        "move_bytes": away * 1e6,
    }
    return Costs(**{**usual, **changes})


def from_fleet(instance: Instance, *, seconds: float = 1e-3) -> Costs:
    """Moves take so long for each block, a mebibyte."""
    current = np.array([client.cut or 1 for client in instance.clients])
    blocks = np.abs(np.arange(1, instance.blocks + 1) - current[:, None])
    return costs_of(instance, move_s=blocks * seconds, move_bytes=blocks * 2.0**20)


def after(costs: Costs, moves: dict[int, int]) -> Ints:
    cuts = costs.current.copy()
    cuts[list(moves)] = list(moves.values())
    return cuts


def allocator(**changes: Any) -> DynslAllocator:
    return DynslAllocator(AllocatorSettings(**changes))


def test_a_plan_that_gains_enough_is_applied_and_another_is_not() -> None:
    assert allocator().revise(situation(alone())) == {0: 1}
    assert allocator(min_gain=0.49).revise(situation(alone())) == {0: 1}
    assert allocator(min_gain=0.51).revise(situation(alone())) == {}
    assert allocator().revise(situation(alone(cut=1))) == {}


def test_the_gain_counts_the_move() -> None:
    """40 batches left save 60 s."""
    assert allocator(guard=0.0).revise(situation(alone(left=40, move_s=50.0))) == {0: 1}
    assert allocator(guard=0.0).revise(situation(alone(left=40, move_s=59.0))) == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_never_worse_than_the_references(fleet: Fleet, workers: int) -> None:
    applied = 0
    for seed in range(12):
        costs = from_fleet(fleet(seed, clients=10, blocks=8, workers=workers, batches=20))
        moves = allocator().revise(situation(costs))
        references = (solve(costs).cuts, each_alone(costs), dtfl(costs), costs.current)
        best_s = min(simulate(costs, cuts).epoch_s for cuts in references)
        if moves:
            assert simulate(costs, after(costs, moves)).epoch_s <= best_s
        else:
            assert best_s >= 0.95 * simulate(costs, costs.current).epoch_s
        applied += bool(moves)
    assert applied > 6


def test_moves_that_do_not_matter_are_not_made(fleet: Fleet) -> None:
    """A client on a thin link is to be fully local; the others end before it, wherever they are cut."""
    instance = fleet(0, clients=6, blocks=8)
    thin, *rest = instance.clients
    thin = replace(thin, block_s=tuple(8 * seconds for seconds in thin.block_s), up_Bps=1e5, down_Bps=1e5, cut=1)
    rest = [replace(client, batches=20) for client in rest]
    costs = from_fleet(replace(instance, clients=(thin, *rest)))
    assert (solve(costs).cuts != costs.current).sum() > 3
    assert allocator().revise(situation(costs)) == {0: 8}


def test_a_client_settles_first() -> None:
    for since_move in range(3):
        assert allocator().revise(situation(alone(), since_move=np.array([since_move]))) == {}
    assert allocator().revise(situation(alone(), since_move=np.array([3]))) == {0: 1}


def test_who_is_moving_or_done_is_left_alone() -> None:
    assert allocator().revise(situation(alone(), moving=np.array([True]))) == {}
    assert allocator().revise(situation(alone(left=0))) == {}


def play(pull: Callable[[int, int], bool], batches: int) -> list[int]:
    """At which batches a client is moved that is better off at cut 1 or, pulled, at 3; asked after every one.

    ``pull``: by batches done and moves made.
    """
    subject = allocator()
    cut, since_move, asked = 3, 0, []
    for done in range(1, batches + 1):
        since_move += 1
        # Pulled: transfers take so long that only the whole model on the client is worth its while.
        transfer = np.array([[9.0, 9.0, 0.0]]) if pull(done, len(asked)) else np.array([[0.5, 0.5, 0.0]])
        costs = alone(cut=cut, left=1000, transfer_s=transfer)
        moves = subject.revise(
            situation(costs, batches_done=np.array([done]), since_move=np.array([since_move]), jumped=np.array([True]))
        )
        if moves:
            cut, since_move = moves[0], 0
            asked.append(done)
    return asked


def test_ways_back_are_ever_further_apart() -> None:
    """The condition turns with every move, so that each next one is made as soon as the cool-down allows."""
    assert play(lambda done, moves: moves % 2 == 1, 320) == [3, 6, 12, 24, 48, 96, 192]


def test_a_lasting_change_is_met_at_once_each_time() -> None:
    """A client that has stayed for twice its cool-down has nothing held against it."""
    assert play(lambda done, moves: done // 50 % 2 == 1, 250) == [3, 50, 100, 150, 200, 250]


def test_a_client_may_go_on_in_the_same_direction_during_the_cool_down() -> None:
    subject = allocator()
    first = alone(transfer_s=np.array([[9.0, 0.5, 0.0]]))
    assert subject.revise(situation(first)) == {0: 2}
    assert subject.revise(situation(alone(cut=2), since_move=np.array([2]))) == {}
    assert subject.revise(situation(alone(cut=2), since_move=np.array([3]))) == {0: 1}


@pytest.mark.parametrize(("guard", "batches"), [(0.0, 0), (0.5, 5), (1.0, 9)])
def test_a_costly_move_waits_until_its_share_is_lost(guard: float, batches: int) -> None:
    """A batch loses 1.5 s, the move costs 14 s: half of that is lost in 5 batches, all of it soonest after 9."""
    subject = allocator(guard=guard)
    asked = [
        done
        for done in range(12)
        if subject.revise(situation(alone(left=100 - done, move_s=14.0), batches_done=np.array([50 + done])))
    ]
    assert asked[0] == batches


def waited(subject: DynslAllocator, paced: int) -> int:
    """Batches that a move of 14 s waits, of a device that is seen to have changed its pace ``paced`` batches ago."""
    for done in range(8):
        news = {"paced": np.array([0 if done else paced]), "since_move": np.array([3 + done])}
        costs = alone(left=100 - done, move_s=14.0)
        if subject.revise(situation(costs, batches_done=np.array([50 + done]), **news)):
            return done
    raise AssertionError("it never moved")


@pytest.mark.parametrize(("paced", "batches"), [(0, 5), (1, 4), (2, 3)])
def test_what_a_slower_device_lost_before_that_was_seen_counts(paced: int, batches: int) -> None:
    subject = allocator()
    subject.revise(situation(alone(), batches_done=np.array([45])))
    assert waited(subject, paced) == batches


def test_what_was_lost_at_another_cut_does_not_count() -> None:
    """It moved three batches before."""
    subject = allocator()
    for done, cut in ((46, 2), (47, 3)):
        subject.revise(situation(alone(cut=cut), batches_done=np.array([done]), since_move=np.array([0])))
    assert waited(subject, 20) == 2


def test_a_move_of_a_batch_does_not_wait() -> None:
    assert allocator().revise(situation(alone(move_s=3.0))) == {0: 1}
    assert allocator().revise(situation(alone(move_s=3.1))) == {}


def test_the_guard_starts_anew_when_conditions_recover() -> None:
    subject = allocator()

    def ask(done: int, local: float = 3.0) -> dict[int, int]:
        costs = alone(move_s=14.0, compute_s=np.array([[1.0, 2.0, local]]))
        return subject.revise(situation(costs, batches_done=np.array([50 + done])))

    assert [ask(0), ask(4)] == [{}, {}]
    assert ask(5, local=1.5) == {}
    assert [ask(6), ask(10)] == [{}, {}]
    assert ask(11) == {0: 1}


def test_who_waits_for_a_costly_move_makes_no_cheap_one_on_the_way() -> None:
    """It would have to settle at half-way, where it gains little, and pay for the rest as well."""
    subject = allocator()
    costs = replace(alone(move_s=1.0), move_s=np.array([[15.0, 1.0, 0.0]]))
    asked = [subject.revise(situation(costs, batches_done=np.array([50 + done]))) for done in range(6)]
    assert asked == [{}] * 5 + [{0: 1}]


def test_others_move_while_one_waits() -> None:
    two = replace(
        alone(),
        names=("7", "8"),
        batches=np.array([100, 100]),
        compute_s=np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 6.0]]),
        transfer_s=np.array([[0.5, 0.5, 0.0]] * 2),
        allowed=np.ones((2, 3), dtype=bool),
        current=np.array([3, 3]),
        move_s=np.array([[15.0, 15.0, 0.0], [1.0, 1.0, 0.0]]),
        move_bytes=np.array([[15.0, 15.0, 0.0], [1.0, 1.0, 0.0]]),
    )
    assert allocator().revise(situation(two)) == {1: 1}


def test_a_cut_below_the_floor_is_left_at_once() -> None:
    allowed = np.array([[False, True, True]])
    costs = alone(cut=1, move_s=50.0, allowed=allowed)
    assert allocator().revise(situation(costs, since_move=np.array([0]))) == {0: 2}


def test_a_dead_link_means_fully_local() -> None:
    dead = np.array([[np.inf, np.inf, 0.0]])
    assert allocator().revise(situation(alone(cut=1, transfer_s=dead))) == {0: 3}
    assert allocator().initial(alone(cut=0, transfer_s=dead, move_s=0.0), [None]).tolist() == [3]


def test_a_dead_link_of_a_client_that_is_moving_harms_nobody(fleet: Fleet) -> None:
    costs = from_fleet(fleet(0, clients=4, blocks=8))
    transfer_s = costs.transfer_s.copy()
    transfer_s[0, :-1] = np.inf
    current = costs.current.copy()
    current[0] = 3
    dead = replace(costs, transfer_s=transfer_s, current=current)
    others = replace(dead, batches=np.where(np.arange(4) == 0, 0, dead.batches))
    moving = np.array([True, False, False, False])
    assert allocator().revise(situation(dead, moving=moving)) == allocator().revise(situation(others, moving=moving))


def test_no_way_at_all_is_an_error_that_names_the_client() -> None:
    with pytest.raises(NoFeasibleCut, match=r"client '7' has no feasible cut.*lower min_cut, raise max_cut"):
        alone(transfer_s=np.array([[np.inf, np.inf, 0.0]]), allowed=np.array([[True, True, False]]))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_moves_are_possible_ones(seed: int) -> None:
    """Three calls with dead links, barred cuts, and clients that are done, moving, new or without a cut."""
    rng = np.random.default_rng(seed)
    subject = allocator(min_gain=0.0, cooldown=4)
    for turn in range(3):
        count, blocks = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        transfer_s = rng.choice([0.1, 1.0, np.inf], (count, blocks))
        transfer_s[:, -1] = 0.0
        allowed = rng.random((count, blocks)) < 0.7
        allowed[:, -1] = True
        current = rng.integers(0 if rng.random() < 0.2 else 1, blocks + 1, count)
        move_s = rng.choice([0.0, 0.1, 10.0], (count, blocks))
        move_s[np.arange(count), current - 1] = 0.0
        costs = Costs(
            names=tuple(str(name) for name in sorted(rng.permutation(8)[:count])),
            batches=rng.integers(0, 9, count),
            compute_s=np.cumsum(rng.exponential(1.0, (count, blocks)), axis=1),
            transfer_s=transfer_s,
            server_s=np.append(np.sort(rng.exponential(1.0, blocks - 1))[::-1], 0.0),
            allowed=allowed,
            current=current,
            workers=int(rng.integers(1, 3)),
            move_s=move_s,
            move_bytes=move_s * 1e6,
        )
        moving, since_move = rng.random(count) < 0.3, rng.integers(0, 9, count)
        moves = subject.revise(
            situation(costs, batches_done=rng.integers(0, 9, count) + turn, since_move=since_move, moving=moving)
        )
        for row, cut in moves.items():
            assert not moving[row]
            assert costs.batches[row] > 0
            assert cut != current[row]
            assert np.isfinite(costs.c[row, cut - 1])
            forced = current[row] == 0 or np.isinf(costs.c[row, current[row] - 1])
            assert forced or since_move[row] >= 3


def test_initial_cuts_are_the_refined_plan(fleet: Fleet) -> None:
    costs = costs_of(fleet(3, clients=8, blocks=8))
    assert allocator().initial(costs, [None] * len(costs.names)).tolist() == refine(costs).cuts.tolist()


def due(subject: DynslAllocator, totals: range, **news: bool) -> list[int]:
    news = {"jumped": False, "joined": False, **news}
    return [total for total in totals if subject.due(total, **news)]


def test_due_every_period_of_an_average_client(fleet: Fleet) -> None:
    subject = allocator()
    costs = from_fleet(fleet(0, clients=4, blocks=8))
    subject.revise(situation(replace(costs, current=refine(costs).cuts)))
    long_after = situation(replace(costs, current=refine(costs).cuts), batches_done=np.full(4, 70))
    subject.revise(long_after)
    assert due(subject, range(1, 100)) == [20, 40, 60, 80]
    # The next epoch counts from 0.
    assert due(subject, range(1, 50)) == [20, 40]


def test_due_at_once_on_news(fleet: Fleet) -> None:
    subject = allocator()
    subject.revise(situation(from_fleet(fleet(0, clients=4, blocks=8))))
    assert due(subject, range(1, 5), jumped=True) == [1, 2, 3, 4]
    assert due(subject, range(5, 8), joined=True) == [5, 6, 7]


def test_due_with_every_batch_for_some_time_after_a_jump(fleet: Fleet) -> None:
    subject = allocator()
    costs = from_fleet(fleet(0, clients=4, blocks=8))
    for done in (50, 70):
        subject.revise(situation(costs, batches_done=np.full(4, done)))
    one = np.arange(4) == 2
    subject.revise(situation(costs, batches_done=np.full(4, 71), jumped=one))
    assert due(subject, range(1, 13)) == [4, 8, 12]
    subject.revise(situation(costs, batches_done=np.full(4, 81)))
    assert due(subject, range(13, 53)) == [32, 52]


def test_clients_may_come_and_go_between_calls(fleet: Fleet) -> None:
    """What is remembered goes by name, not by row."""
    subject = allocator()
    costs = alone(move_s=14.0)
    both = replace(
        costs,
        names=("3", "7"),
        batches=np.array([0, 100]),
        **{
            name: np.repeat(getattr(costs, name), 2, axis=0)
            for name in ("compute_s", "transfer_s", "allowed", "current", "move_s", "move_bytes")
        },
    )
    assert subject.revise(situation(both)) == {}
    assert subject.revise(situation(both, batches_done=np.array([50, 54]))) == {}
    assert subject.revise(situation(costs, batches_done=np.array([55]))) == {0: 1}


def test_large_fleets_keep_who_can_stay(fleet: Fleet) -> None:
    instance = fleet(0, clients=400, blocks=12)
    light = replace(instance, server_block_s=tuple(0.2 * seconds for seconds in instance.server_block_s))
    costs = from_fleet(light)
    plan = refine(costs, events=0)
    kept = thrifty(costs, plan)
    assert kept.epoch_s <= plan.epoch_s * (1 + NEAR)
    assert kept.epoch_s == simulate(costs, kept.cuts).epoch_s
    assert (kept.cuts != costs.current).sum() < 0.7 * (plan.cuts != costs.current).sum()
    assert kept.moved_bytes < 0.7 * plan.moved_bytes


def test_a_large_fleet_is_planned_in_bounded_time(fleet: Fleet) -> None:
    costs = from_fleet(fleet(1, clients=2000, blocks=20))
    started = time.process_time()
    moves = allocator().revise(situation(costs))
    assert moves
    assert time.process_time() - started < 5.0


def test_speed(fleet: Fleet) -> None:
    """About 1 ms for 4 x 5 and 20 ms for 24 x 20; CPU time, with room for slower machines."""
    for clients, blocks, limit_s in ((4, 5, 0.01), (24, 20, 0.15)):
        elapsed = []
        for seed in range(8):
            now = situation(from_fleet(fleet(seed, clients=clients, blocks=blocks)))
            subject = allocator()
            started = time.process_time()
            subject.revise(now)
            elapsed.append(time.process_time() - started)
        assert np.median(elapsed) < limit_s
    subject = allocator()
    started = time.process_time()
    for total in range(10_000):
        subject.due(total % 3, jumped=False, joined=False)
    assert (time.process_time() - started) / 10_000 < 2e-5
