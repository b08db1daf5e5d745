"""Cost arrays against the formulas of ALGORITHMS §5, written out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dynsl_app.cost.breakdown import breakdown
from dynsl_app.cost.instance import ClientCosts, Instance
from dynsl_app.cost.model import NoFeasibleCut, costs_of, server_times
from dynsl_app.errors import SettingsError

CLIENT = ClientCosts(name="pi", batches=10, block_s=(1.0, 2.0, 4.0), up_Bps=100.0, down_Bps=50.0, rtt_s=0.5)
INSTANCE = Instance(
    workers=2,
    boundary=3,
    server_call_s=0.25,
    server_block_s=(0.1, 0.2, 0.4),
    up_bytes=(300.0, 200.0, 0.0),
    down_bytes=(100.0, 50.0, 0.0),
    clients=(CLIENT,),
)


def with_client(boundary: int = 3, **changes: object) -> Instance:
    return replace(INSTANCE, boundary=boundary, clients=(replace(CLIENT, **changes),))


def test_every_cut_costs_what_the_formulas_say() -> None:
    costs = costs_of(INSTANCE)
    np.testing.assert_allclose(costs.compute_s, [[1, 3, 7]])
    np.testing.assert_allclose(costs.transfer_s, [[3 + 2 + 0.5, 2 + 1 + 0.5, 0]])
    np.testing.assert_allclose(costs.server_s, [0.25 + 0.6, 0.25 + 0.4, 0])
    np.testing.assert_allclose(costs.c, [[10 * (1 + 5.5 + 0.85), 10 * (3 + 3.5 + 0.65), 70]])
    np.testing.assert_allclose(costs.v, [[8.5, 6.5, 0]])
    assert costs.bound(np.array([2])) == pytest.approx(71.5)


def test_full_cut_has_no_server_or_link_time() -> None:
    assert server_times(np.array([0.5]), 1.0).tolist() == [0.0]
    costs = costs_of(INSTANCE)
    assert costs.transfer_s[0, -1] == costs.server_s[-1] == 0.0


def test_floor_ceiling_and_boundary_bar_cuts() -> None:
    barred = costs_of(with_client(min_cut=2, max_cut=2))
    assert np.isfinite(barred.c).tolist() == np.isfinite(barred.v).tolist() == [[False, True, False]]
    assert np.isfinite(costs_of(with_client(boundary=2)).c).tolist() == [[True, True, False]]


def test_shared_head_is_serial_and_sets_a_floor() -> None:
    costs = costs_of(with_client(boundary=2))
    assert costs.shared_s == pytest.approx(0.25 + 0.4)
    assert costs.shared_floor_s == pytest.approx(10 * 0.4 + 10 * 0.25)
    assert costs_of(INSTANCE).shared_s == costs_of(INSTANCE).shared_floor_s == 0.0


def test_moves_add_to_a_clients_own_time_only() -> None:
    moves = np.array([[0.0, 7.0, 9.0]])
    moved, still = costs_of(INSTANCE, move_s=moves), costs_of(INSTANCE)
    np.testing.assert_allclose(moved.c - still.c, moves)
    np.testing.assert_array_equal(moved.v, still.v)


@pytest.mark.parametrize(("cut", "kept"), [(3, 3), (None, 2), (1, 1)])
def test_client_without_batches_keeps_its_cut_or_takes_its_floor(cut: int | None, kept: int) -> None:
    costs = costs_of(with_client(batches=0, min_cut=2, cut=cut), move_s=np.full((1, 3), 5.0))
    assert (np.flatnonzero(np.isfinite(costs.c[0])) + 1).tolist() == [kept]
    assert costs.c[0, kept - 1] == costs.v[0, kept - 1] == 0.0


def test_no_feasible_cut_names_the_client() -> None:
    with pytest.raises(NoFeasibleCut, match=r"'pi'.*min_cut"):
        costs_of(with_client(boundary=2, min_cut=3))


def test_times_that_overflow_leave_the_other_cuts() -> None:
    costs = costs_of(with_client(up_Bps=5e-324))
    assert np.isfinite(costs.c).tolist() == [[False, False, True]]
    with pytest.raises(NoFeasibleCut, match="'pi'"):
        costs_of(with_client(up_Bps=5e-324, max_cut=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boundary": 4}, "boundary=4 is outside 1..3"),
        ({"up_bytes": (1.0, 0.0)}, "up_bytes has 2 entries"),
        ({"down_bytes": (1.0, 1.0, 1.0)}, "down_bytes ends with 1"),
        ({"clients": (CLIENT, CLIENT)}, "two clients are named 'pi'"),
        ({"clients": (replace(CLIENT, block_s=(1.0,)),)}, "client 'pi': block_s has 1 entries"),
        ({"clients": (replace(CLIENT, max_cut=4),)}, "client 'pi': max_cut=4"),
        ({"clients": (replace(CLIENT, min_cut=3, max_cut=2),)}, "client 'pi': min_cut=3 is above max_cut=2"),
        ({"boundary": 2, "clients": (replace(CLIENT, cut=3),)}, "client 'pi': cut=3 is outside 1..2"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        replace(INSTANCE, **changes)


def test_breakdown_adds_up_to_the_clients_own_time() -> None:
    costs = costs_of(INSTANCE)
    for cut in (1, 2, 3):
        parts = breakdown(INSTANCE, np.array([cut]))
        assert parts.total_s[0] == pytest.approx(costs.c[0, cut - 1])
    local = breakdown(INSTANCE, np.array([3]))
    assert math.fsum((local.up_s[0], local.down_s[0], local.rtt_s[0], local.server_s[0])) == 0.0
    assert breakdown(INSTANCE, np.array([1])).up_s[0] == pytest.approx(30.0)
