"""The queueing simulation on cases worked by hand, and its laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynsl_app.cost.instance import ClientCosts, Instance
from dynsl_app.cost.model import Costs, Floats, costs_of
from dynsl_app.cost.queueing import _serve, requests, simulate


def fleet(
    away: list[float],
    service: float,
    batches: list[int],
    workers: int = 1,
    shared: float = 0.0,
    move_s: Floats | None = None,
) -> Costs:
    """Nothing on the links; at cut 1 a batch costs ``away`` on its client, ``service`` + ``shared`` at the server."""
    server = (0.0, service, shared) if shared else (0.0, service)
    nothing = (0.0,) * len(server)
    clients = tuple(
        ClientCosts(name=f"c{i}", batches=r, block_s=(z, *nothing[1:]), up_Bps=1.0, down_Bps=1.0, rtt_s=0.0)
        for i, (z, r) in enumerate(zip(away, batches, strict=True))
    )
    instance = Instance(
        workers=workers, boundary=2, server_block_s=server, up_bytes=nothing, down_bytes=nothing, clients=clients
    )
    return costs_of(instance, move_s=move_s)


def ends(costs: Costs) -> list[float]:
    return simulate(costs, np.ones(len(costs.c), dtype=np.int64)).end_s.tolist()


def test_two_clients_take_turns_at_one_worker() -> None:
    # Both arrive at 1; served 1–3 and 3–5; the first is back at 4 and waits until 5.
    assert ends(fleet([1.0, 1.0], 2.0, [2, 2])) == [7.0, 9.0]


def test_a_worker_for_each_means_no_waiting() -> None:
    costs = fleet([1.0, 1.0], 2.0, [2, 2], workers=2)
    timeline = simulate(costs, np.array([1, 1]))
    assert timeline.end_s.tolist() == [6.0, 6.0]
    assert timeline.wait_s.tolist() == [0.0, 0.0]


def test_requests_are_served_in_order_of_arrival() -> None:
    # The second arrives at 1, the first at 2 while 1–5 is served, the third at 3.
    assert ends(fleet([2.0, 1.0, 3.0], 4.0, [1, 1, 1])) == [9.0, 5.0, 13.0]


def test_nobody_waits_for_a_finished_client() -> None:
    """User case 20: unequal batch counts."""
    assert ends(fleet([1.0, 1.0], 2.0, [1, 3])) == [3.0, 11.0]


def test_fully_local_clients_do_not_queue() -> None:
    costs = fleet([1.0, 1.0], 2.0, [2, 2])
    timeline = simulate(costs, np.array([2, 1]))
    assert timeline.end_s.tolist() == [2.0, 6.0]
    assert requests(costs, np.array([2, 1])) == 2


def test_a_move_delays_the_first_request_only() -> None:
    costs = fleet([1.0], 2.0, [3], move_s=np.array([[10.0, 0.0]]))
    assert ends(costs) == [10.0 + 3 * 3.0]
    # The second client moves for 1 s, so it arrives at 2 and is served 3–5; the first is back at 4, served 5–7.
    assert ends(fleet([1.0, 1.0], 2.0, [2, 1], move_s=np.array([[0.0, 0.0], [1.0, 0.0]]))) == [7.0, 5.0]
    # It moves for 4 s: the first is served 1–3 and 4–6, the second, there at 5, 6–8.
    assert ends(fleet([1.0, 1.0], 2.0, [2, 1], move_s=np.array([[0.0, 0.0], [4.0, 0.0]]))) == [6.0, 8.0]


def test_a_clients_wait_is_told_apart() -> None:
    timeline = simulate(fleet([1.0, 1.0], 2.0, [1, 1]), np.array([1, 1]))
    assert timeline.wait_s.tolist() == [0.0, 2.0]
    assert timeline.epoch_s == 5.0


def test_a_shared_head_is_serial_whatever_the_workers() -> None:
    # Private part 1 s on a worker each, in parallel; then 2 s each at the head, one after the other.
    costs = fleet([1.0, 1.0], 1.0, [1, 1], workers=2, shared=2.0)
    assert costs.shared_s == 2.0
    assert ends(costs) == [4.0, 6.0]


@given(
    away=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    service=st.integers(1, 5),
    batches=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    workers=st.integers(1, 3),
    shared=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_time_lies_between_the_bound_and_one_after_the_other(
    away: list[int], service: int, batches: list[int], workers: int, shared: float
) -> None:
    costs = fleet([float(z) for z in away], float(service), batches[: len(away)], workers, shared)
    cuts = np.ones(len(away), dtype=np.int64)
    timeline = simulate(costs, cuts)
    alone = costs.c[:, 0]
    assert timeline.epoch_s >= max(costs.bound(cuts), costs.shared_floor_s) - 1e-9
    assert timeline.epoch_s <= alone.sum() + 1e-9
    assert timeline.end_s - alone == pytest.approx(timeline.wait_s)
    assert (timeline.wait_s >= 0).all()


@given(data=st.data())
@settings(max_examples=60)
def test_one_worker_alone_is_the_general_case_to_the_bit(data: st.DataObject) -> None:
    """A shared part so short that it changes nothing takes the general way."""
    clients = data.draw(st.integers(2, 6))
    seconds = st.floats(0.01, 10.0)
    away = [data.draw(seconds) for _ in range(clients)]
    service = [data.draw(seconds) for _ in range(clients)]
    batches = [data.draw(st.integers(1, 9)) for _ in range(clients)]
    alone = _serve(away, away, service, list(batches), 1, 0.0)
    assert alone == _serve(away, away, service, list(batches), 1, 5e-324)
