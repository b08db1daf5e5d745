"""The batching policies as laws: nothing is lost, nobody waits for who has left, order is what the policy says."""

import random

from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.server.batching import Continuous, Lockstep, Replay, Request, Scheduler


def request(client: int, batch: int = 0, *, lane: int = 0, size: int = 1, arrived: float = 0.0) -> Request[None]:
    return Request(client, batch, lane, size, arrived, None)


def names(group: list[Request[None]] | None) -> list[tuple[int, int]] | None:
    return None if group is None else [(one.client, one.batch) for one in group]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), max_size=30), st.integers(1, 5), st.integers(1, 60))
def test_continuous_keeps_arrival_order_and_caps(arrivals: list[tuple[int, int]], most: int, most_bytes: int) -> None:
    policy: Continuous[None] = Continuous(most, most_bytes)
    for index, (client, size) in enumerate(arrivals):
        policy.add(request(client, index, size=size))
    seen: list[int] = []
    while policy.ready_at(0.0) is not None:
        group = policy.take()
        assert 1 <= len(group) <= most
        assert len(group) == 1 or sum(one.bytes for one in group) <= most_bytes
        seen += [one.batch for one in group]
    assert seen == list(range(len(arrivals)))


def test_continuous_waits_only_when_asked_and_not_when_full() -> None:
    """User case 12: merging across clients, capped."""
    eager: Continuous[None] = Continuous(8, 100)
    eager.add(request(0, arrived=5.0))
    assert eager.ready_at(5.0) == 5.0
    patient: Continuous[None] = Continuous(2, 100, wait_s=0.5)
    patient.add(request(0, arrived=5.0))
    assert patient.ready_at(5.1) == 5.5
    patient.add(request(1, arrived=5.2))
    assert patient.ready_at(5.2) == 5.2


@given(st.data())
def test_lockstep_is_independent_of_arrival(data: st.DataObject) -> None:
    """User case 20: unequal counts, random arrival; groups are by client id, nobody waits for a finished client."""
    batches = data.draw(st.dictionaries(st.integers(0, 6), st.integers(1, 4), min_size=3))
    policy: Lockstep[None] = Lockstep(batches)
    sent = dict.fromkeys(batches, 0)
    waiting: set[int] = set()
    groups: list[list[tuple[int, int]] | None] = []
    while True:
        able = sorted(c for c in batches if c not in waiting and sent[c] < batches[c])
        if policy.ready_at(0.0) is not None:
            group = policy.take()
            groups.append(names(group))
            for one in group:
                waiting.discard(one.client)
                if sent[one.client] == batches[one.client]:
                    policy.leave(one.client)
        elif able:
            client = data.draw(st.sampled_from(able))
            policy.add(request(client, sent[client]))
            sent[client] += 1
            waiting.add(client)
        else:
            break
    expected = [
        [(client, step) for client in sorted(batches) if step < batches[client]]
        for step in range(max(batches.values()))
    ]
    assert groups == expected


def test_lockstep_goes_on_without_a_lost_client() -> None:
    policy: Lockstep[None] = Lockstep([0, 1, 2])
    policy.add(request(0))
    policy.add(request(2))
    assert policy.ready_at(0.0) is None
    policy.leave(1)
    assert policy.ready_at(0.0) is not None
    assert names(policy.take()) == [(0, 0), (2, 0)]


def test_replay_follows_the_record_and_passes_over_who_left() -> None:
    policy: Replay[None] = Replay([[(1, 0), (0, 0)], [(2, 0)], [(0, 1), (1, 1)]])
    policy.add(request(2))
    policy.add(request(0))
    assert policy.ready_at(0.0) is None
    policy.add(request(1))
    assert names(policy.take()) == [(1, 0), (0, 0)]
    policy.leave(2)
    policy.add(request(1, 1))
    assert policy.ready_at(0.0) is None
    policy.leave(0)
    assert policy.ready_at(0.0) is not None
    assert names(policy.take()) == [(1, 1)]


def test_lanes_run_side_by_side_and_one_group_at_a_time() -> None:
    scheduler: Scheduler[None] = Scheduler(lambda lane: Continuous(1, 100))
    for batch in range(2):
        for lane in range(3):
            scheduler.add(request(lane, batch, lane=lane))
    assert [names(scheduler.next(0.0)) for _ in range(4)] == [[(0, 0)], [(1, 0)], [(2, 0)], None]
    scheduler.done(1)
    assert names(scheduler.next(0.0)) == [(1, 1)]
    assert scheduler.next(0.0) is None


def test_scheduler_says_when_to_ask_again() -> None:
    scheduler: Scheduler[None] = Scheduler(lambda lane: Continuous(4, 100, wait_s=1.0))
    assert scheduler.wake_at(0.0) is None
    scheduler.add(request(0, arrived=2.0))
    assert scheduler.next(2.0) is None
    assert scheduler.wake_at(2.0) == 3.0
    assert names(scheduler.next(3.0)) == [(0, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=40), st.randoms())
def test_every_request_runs_once(arrivals: list[tuple[int, int]], order: random.Random) -> None:
    scheduler: Scheduler[None] = Scheduler(lambda lane: Continuous(3, 100))
    running: list[list[Request[None]]] = []
    ran: list[int] = []
    pending = [request(client, index, lane=lane) for index, (lane, client) in enumerate(arrivals)]
    while pending or running or (not ran and arrivals):
        if pending and order.random() < 0.6:
            scheduler.add(pending.pop(0))
        group = scheduler.next(0.0)
        if group is not None:
            assert group[0].lane not in [one[0].lane for one in running]
            running.append(group)
        if running and (group is None or order.random() < 0.5):
            done = running.pop(order.randrange(len(running)))
            ran += [one.batch for one in done]
            scheduler.done(done[0].lane)
        if not pending and not running and (group := scheduler.next(0.0)) is not None:
            running.append(group)
    assert sorted(ran) == list(range(len(arrivals)))
