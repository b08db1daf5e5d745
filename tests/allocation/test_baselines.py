"""Baselines decide what their rules say: every expectation here was computed by hand."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dynsl_app.allocation.ares import AresAllocator
from dynsl_app.allocation.base import Report
from dynsl_app.allocation.dtfl import DtflAllocator
from dynsl_app.allocation.sfsl import SfslAllocator
from dynsl_app.cost.model import Costs, energies, transfer_times
from dynsl_app.errors import SettingsError
from dynsl_app.plan import Power

NOBODY = (None,)


def costs(
    compute_s, transfer_s, server_s, *, batches: int = 10, barred: tuple[tuple[int, int], ...] = (), energy_J=None
) -> Costs:
    """One row a client, one column a cut; ``barred``: pairs of row and cut."""
    compute = np.array(compute_s, dtype=float)
    allowed = np.ones(compute.shape, dtype=bool)
    for row, cut in barred:
        allowed[row, cut - 1] = False
    return Costs(
        names=tuple(f"c{row}" for row in range(len(compute))),
        batches=np.full(len(compute), batches, dtype=np.int64),
        compute_s=compute,
        transfer_s=np.array(transfer_s, dtype=float),
        server_s=np.array(server_s, dtype=float),
        allowed=allowed,
        current=np.zeros(len(compute), dtype=np.int64),
        workers=1,
        energy_J=None if energy_J is None else np.array(energy_J, dtype=float),
    )


class TestAres:
    def test_all_weight_on_time_takes_the_fastest_cut_of_each_client_alone(self):
        """Sums of the three: 9, 7, 8 and 6, 8, 10; that both would keep one worker busy does not count."""
        one = costs([[1, 3, 8], [1, 5, 10]], [[3, 1, 0], [0, 0, 0]], [5, 3, 0])
        assert AresAllocator(1.0).initial(one, [None, None]).tolist() == [2, 1]

    def test_ties_go_to_the_lowest_cut(self):
        """Times 4, 3, 3."""
        assert AresAllocator().initial(costs([[1, 2, 3]], [[1, 0, 0]], [2, 1, 0]), NOBODY).tolist() == [2]

    def test_time_and_energy_are_weighed_after_their_norms(self):
        """T = (3, 4, 12), norm 13; E = (12, 4, 3), norm 13: with λ 0.5 the sums are 15, 8, 15 over 26.

        λ 0.9: 3.9, 4, 11.1 over 13; λ 0.1: 11.1, 4, 3.9 over 13.
        """
        one = costs([[3, 4, 12]], [[0, 0, 0]], [0, 0, 0], energy_J=[[12, 4, 3]])
        chosen = {weight: AresAllocator(weight).initial(one, NOBODY).tolist()[0] for weight in (1.0, 0.9, 0.5, 0.1, 0)}
        assert chosen == {1.0: 1, 0.9: 1, 0.5: 2, 0.1: 3, 0: 3}

    def test_the_norms_matter(self):
        """T = (6, 8), E = (20, 15): unweighted sums 26 and 23; normed .6 + .8 and .8 + .6 tie: the lowest."""
        assert AresAllocator(0.5).initial(costs([[6, 8]], [[0, 0]], [0, 0], energy_J=[[20, 15]]), NOBODY) == [1]

    @pytest.mark.parametrize("weight", [1.0, 0.5])
    def test_barred_cuts_are_not_taken_and_not_in_the_norms(self, weight):
        """Cut 1 would be best. Of the others T = (6, 8), E = (8, 6) tie at λ 0.5, and 6 is the sooner."""
        one = costs([[1, 6, 8]], [[0, 0, 0]], [0, 0, 0], barred=((0, 1),), energy_J=[[1, 8, 6]])
        assert AresAllocator(weight).initial(one, NOBODY).tolist() == [2]

    def test_energy_that_nobody_knows_is_asked_for(self):
        with pytest.raises(SettingsError, match=re.escape("algorithm.time_weight=0.5 weighs energy")):
            AresAllocator(0.5).initial(costs([[1, 2]], [[0, 0]], [0, 0]), NOBODY)

    def test_energy_is_power_by_time(self):
        """5 W·(2, 4) s + 3 W·(60/20, 0) s + 2 W·(40/10, 0) s."""
        joules = energies(
            [Power(5, 3, 2)],
            np.array([[2.0, 4.0]]),
            np.array([60.0, 0.0]),
            np.array([40.0, 0.0]),
            np.array([[20.0]]),
            np.array([[10.0]]),
        )
        assert joules.tolist() == [[10 + 9 + 8, 20]]


MEASURED_S = {
    "nano": {73.5: (0.470, 0.261, 0.243, 0.117)},
    "pi": {40.0: (1.93, 3.19, 4.00, 3.57), 15.5: (3.03, 3.73, 4.59, 3.58)},
}
"""Seconds an iteration of VGG-5 at cuts 1, 3, 4 and local, by device and Mbit/s, as others measured (ALGORITHMS §9)."""


def vgg5(device: str, mbit: float) -> Costs:
    """What the rule would be told: bytes at a cut from the Pi's two bandwidths, the rest of the time computing."""
    slow, fast = (np.array(MEASURED_S["pi"][rate]) for rate in (15.5, 40.0))
    size = np.append(((slow - fast) * 1e6 / 8 / (1 / 15.5 - 1 / 40.0))[:3], 0.0)
    Bps = np.array([[mbit * 1e6 / 8]])
    transfer = transfer_times(size / 2, size / 2, Bps, Bps, np.zeros((1, 1)))
    compute = np.array([MEASURED_S[device][mbit]]) - transfer
    assert (compute > 0).all()
    return costs(compute, transfer, [0, 0, 0, 0], batches=500)


class TestMeasuredDevices:
    """Cut 2 was not measured: column 1 is cut 1, columns 2 and 3 are cuts 3 and 4, column 4 is local."""

    @pytest.mark.parametrize(("device", "mbit", "best"), [("nano", 73.5, 4), ("pi", 40.0, 1), ("pi", 15.5, 1)])
    def test_ares_takes_the_cut_that_was_measured_to_be_best(self, device, mbit, best):
        assert AresAllocator().initial(vgg5(device, mbit), NOBODY).tolist() == [best]

    def test_both_devices_together_too(self):
        """Each alone: who else is there changes nothing."""
        nano, pi = vgg5("nano", 73.5), vgg5("pi", 40.0)
        both = costs(
            np.vstack([nano.compute_s, pi.compute_s]), np.vstack([nano.transfer_s, pi.transfer_s]), nano.server_s
        )
        assert AresAllocator().initial(both, [None, None]).tolist() == [4, 1]

    def test_the_fact_holds_between_the_bandwidths(self):
        """At the Pi's compute, from 15 to 43 Mbit/s cut 1 stays best: bytes over the rate, the rest as measured."""
        base = vgg5("pi", 40.0)
        for mbit in (15.0, 20.0, 30.0, 43.0):
            one = replace(base, transfer_s=base.transfer_s * 40.0 / mbit)
            assert AresAllocator().initial(one, NOBODY).tolist() == [1]


class TestDtfl:
    """Two clients, three cuts, ten batches, nothing to transfer and a fast server: T[q] is compute alone."""

    STEADY = costs([[1, 2, 3], [2, 4, 6]], [[0] * 3] * 2, [0.1, 0.1, 0])

    def test_the_first_round_is_judged_by_itself(self):
        """Best times 10 and 20 s, so T_max = 20: c0 has (10, 20, 30), two blocks; c1 (20, 40, 60), one."""
        assert DtflAllocator().initial(self.STEADY, [None, None]).tolist() == [2, 1]

    def test_t_max_is_of_the_round_before(self):
        """c1 was measured twice as fast: its T is (10, 20, 30). T_max = 20 of the round before: two blocks each.

        In the round after, T_max is 10, by the times of the second: one block each.
        """
        allocator = DtflAllocator()
        allocator.initial(self.STEADY, [None, None])
        faster = replace(self.STEADY, compute_s=np.array([[1.0, 2, 3], [1, 2, 3]]))
        assert allocator.initial(faster, [None, None]).tolist() == [2, 2]
        assert allocator.initial(faster, [None, None]).tolist() == [1, 1]

    def test_who_cannot_keep_within_t_max_takes_the_fewest_blocks(self):
        """T_max = 20 of the first round; then c1 is three times slower, (60, 120, 180), and none fits."""
        allocator = DtflAllocator()
        allocator.initial(self.STEADY, [None, None])
        slower = replace(self.STEADY, compute_s=self.STEADY.compute_s * [[1], [3]])
        assert allocator.initial(slower, [None, None]).tolist() == [2, 1]

    def test_the_measured_time_is_a_mean_over_rounds_with_span_2(self):
        """c0 at cut 2, seconds a batch: 2 first, then 5: 2 + 2/3·3 = 4, twice its profile, so (20, 40, 60).

        T_max of the round before is c1's best: with 40 c0 takes two blocks, with 39 one. By the newest time alone,
        (25, 50, 75), it would be one at 40 too; by a plain mean, (17.5, 35, 52.5), two at 39 too.
        """
        for c1, expected in ((4.0, 2), (3.9, 1), (4.1, 2)):
            one = costs([[1, 2, 3], [c1, 2 * c1, 3 * c1]], [[0] * 3] * 2, [0.1, 0.1, 0])
            allocator = DtflAllocator()
            allocator.initial(one, [Report(2, 10, 20.0, 25.0), None])
            assert allocator.initial(one, [Report(2, 10, 50.0, 60.0), None])[0] == expected, c1

    def test_a_mean_is_carried_over_to_the_cut_that_is_measured_next(self):
        """At cut 2, 4 s a batch: by the profile 2 at cut 1. There 5 is measured: 2 + 2/3·3 = 4, so (40, 80, 120)."""
        for c1, expected in ((8.0, 2), (7.9, 1)):
            one = costs([[1, 2, 3], [c1, 2 * c1, 3 * c1]], [[0] * 3] * 2, [0.1, 0.1, 0])
            allocator = DtflAllocator()
            allocator.initial(one, [Report(2, 10, 40.0, 40.0), None])
            assert allocator.initial(one, [Report(1, 10, 50.0, 50.0), None])[0] == expected, c1

    def test_a_slow_server_counts_for_one_client_at_a_time(self):
        """T = 10·max(compute, server): (50, 40, 30), so T_max is 30: three blocks.

        Forty clients whose server is faster than they are get what one would, though together they swamp it.
        """
        one = costs([[1, 2, 3]], [[0, 0, 0]], [5, 4, 0])
        assert DtflAllocator().initial(one, NOBODY).tolist() == [3]
        crowd = costs([[1, 2, 3]] * 40, [[0, 0, 0]] * 40, [0.5, 0.4, 0])
        assert set(DtflAllocator().initial(crowd, [None] * 40).tolist()) == {1}

    def test_barred_cuts_are_not_taken(self):
        one = costs([[1, 2, 3], [2, 4, 6]], [[0] * 3] * 2, [0.1, 0.1, 0], barred=((0, 2), (1, 1)))
        # c1's best is 40 s at cut 2: c0 has three blocks within it.
        assert DtflAllocator().initial(one, [None, None]).tolist() == [3, 2]

    def test_a_round_without_batches_tells_nothing(self):
        allocator = DtflAllocator()
        assert allocator.initial(self.STEADY, [Report(1, 0, 0.0, 0.0), None]).tolist() == [2, 1]


class TestSfsl:
    LIKE = costs([[1, 2, 3]] * 3, [[0, 0, 0]] * 3, [0.1, 0.1, 0])

    @staticmethod
    def reports(cuts, seconds, batches: int = 10) -> list[Report]:
        return [Report(cut, batches, 0.0, each * batches) for cut, each in zip(cuts, seconds, strict=True)]

    def test_warm_up_tries_each_cut_once_then_all_keep_pace(self):
        """Seconds a batch at cuts 1, 2, 3: c0 (1, 2, 3), c1 (2, 4, 6), c2 (3, 6, 9).

        The last warm-up round took 3, 6, 9: median 6. c0's closest is 3, c1's 6, c2's 6.
        """
        allocator = SfslAllocator()
        cuts = allocator.initial(self.LIKE, [None] * 3).tolist()
        tried = [cuts]
        for _ in range(3):
            seconds = [(client + 1) * cut for client, cut in enumerate(cuts)]
            cuts = allocator.initial(self.LIKE, self.reports(cuts, seconds)).tolist()
            tried.append(cuts)
        assert tried == [[1, 1, 1], [2, 2, 2], [3, 3, 3], [3, 3, 2]]

    def test_the_smallest_cut_on_ties(self):
        """All three took 3 s last: c0's 2 and 4 (cuts 1, 2) are as far from it."""
        allocator = SfslAllocator()
        for cut, seconds in ((1, 2.0), (2, 4.0), (3, 9.0)):
            allocator.initial(self.LIKE, self.reports([cut] * 3, [seconds] * 3))
        last = [Report(3, 10, 0.0, 90.0), Report(1, 10, 0.0, 30.0), Report(1, 10, 0.0, 30.0)]
        assert allocator.initial(self.LIKE, last)[0] == 1

    def test_the_newest_time_of_a_cut_counts(self):
        """Cut 1 took 1 s, then 5: with a median of 5 it is the closest, before cut 2's 4."""
        allocator = SfslAllocator()
        for cut, seconds in ((1, 1.0), (2, 4.0), (3, 9.0)):
            allocator.initial(self.LIKE, self.reports([cut] * 3, [seconds] * 3))
        assert allocator.initial(self.LIKE, self.reports([1] * 3, [5.0] * 3)).tolist() == [1, 1, 1]

    def test_times_are_by_the_batch(self):
        """c1 has ten times the data; by the batch all are alike."""
        allocator = SfslAllocator()
        for cut in (1, 2, 3):
            last = [Report(cut, n, 0.0, float(cut * n)) for n in (10, 100, 10)]
            cuts = allocator.initial(self.LIKE, last)
        assert cuts.tolist() == [3, 3, 3]

    def test_barred_cuts_are_neither_tried_nor_taken(self):
        barred = costs([[1, 2, 3]] * 3, [[0, 0, 0]] * 3, [0.1, 0.1, 0], barred=((0, 1), (1, 3)))
        allocator = SfslAllocator()
        first = allocator.initial(barred, [None] * 3).tolist()
        second = allocator.initial(barred, self.reports(first, [1.0] * 3)).tolist()
        third = allocator.initial(barred, self.reports(second, [2.0] * 3)).tolist()
        assert (first, second, third) == ([2, 1, 1], [3, 2, 2], [3, 2, 3])

    def test_a_newcomer_warms_up_when_it_comes(self):
        allocator = SfslAllocator()
        for cut, seconds in ((1, 1.0), (2, 2.0), (3, 3.0)):
            allocator.initial(self.LIKE, [*self.reports([cut] * 2, [seconds] * 2), None])
        assert allocator.initial(self.LIKE, [*self.reports([3, 3], [3.0, 3.0]), None]).tolist() == [3, 3, 1]
