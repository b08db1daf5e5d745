"""The reference rules on cases worked by hand."""

import numpy as np
import pytest

from dynsl_app.allocation.rules import dtfl, dtfl_times, each_alone
from dynsl_app.cost.model import Costs


def costs_from(compute: list[list[float]], transfer: list[list[float]], server: list[float]) -> Costs:
    rows = len(compute)
    return Costs(
        names=tuple(f"c{i}" for i in range(rows)),
        batches=np.full(rows, 10, dtype=np.int64),
        compute_s=np.array(compute),
        transfer_s=np.array(transfer),
        server_s=np.array(server),
        allowed=np.ones((rows, len(server)), dtype=bool),
        current=np.zeros(rows, dtype=np.int64),
        workers=1,
    )


FAST_AND_SLOW = costs_from(
    compute=[[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]], transfer=[[0.5, 0.4, 0.0], [0.5, 0.4, 0.0]], server=[0.4, 0.2, 0.0]
)


def test_each_alone_ignores_the_others() -> None:
    # Fast: 1.0, 0.8, 0.3; slow: 1.9, 2.6, 3.0.
    assert each_alone(FAST_AND_SLOW).tolist() == [3, 1]


def test_each_alone_takes_the_lowest_cut_on_ties() -> None:
    assert each_alone(costs_from([[1.0, 2.0]], [[0.5, 0.0]], [0.5, 0.0])).tolist() == [1]


def test_dtfl_times_take_the_slower_side() -> None:
    np.testing.assert_allclose(dtfl_times(FAST_AND_SLOW), [[9, 6, 3], [15, 24, 30]])


def test_dtfl_takes_the_most_client_blocks_within_the_slowest_clients_best() -> None:
    # T_max = max(3, 15) = 15: the fast client stays local, the slow one has only cut 1.
    assert dtfl(FAST_AND_SLOW).tolist() == [3, 1]
    assert dtfl(FAST_AND_SLOW, limit_s=25.0).tolist() == [3, 2]


def test_dtfl_takes_the_fewest_blocks_when_nothing_fits() -> None:
    assert dtfl(FAST_AND_SLOW, limit_s=5.0).tolist() == [3, 1]
    assert dtfl(FAST_AND_SLOW, limit_s=1.0).tolist() == [1, 1]


@pytest.mark.parametrize("rule", [each_alone, dtfl])
def test_rules_stay_within_what_is_allowed(rule: object) -> None:
    barred = Costs(
        names=("a", "b"),
        batches=FAST_AND_SLOW.batches,
        compute_s=FAST_AND_SLOW.compute_s,
        transfer_s=FAST_AND_SLOW.transfer_s,
        server_s=FAST_AND_SLOW.server_s,
        allowed=np.array([[False, True, False], [False, False, True]]),
        current=FAST_AND_SLOW.current,
        workers=1,
    )
    assert rule(barred).tolist() == [2, 3]  # type: ignore[operator]
    assert dtfl(barred, limit_s=0.0).tolist() == [2, 3]
