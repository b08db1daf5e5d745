"""Links over virtual time: when bytes have passed, against integration in small steps; walks; classes."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynsl_app.testbed import links
from dynsl_app.testbed.classes import LTE_DOWN, LTE_UP, class_link
from dynsl_app.testbed.links import Constant, Looped, Walk, WalkLaw, finish, passes
from dynsl_app.testbed.world import RatePath

LAW = WalkLaw(1e6, sigma=0.8, phi=0.7, low_Bps=1e4, high_Bps=1e7, step_s=0.5)

lengths = st.lists(st.floats(0.01, 5), min_size=1, max_size=6)


@st.composite
def loops(draw: st.DrawFn) -> Looped:
    pieces = draw(lengths)
    rates = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0]), min_size=len(pieces), max_size=len(pieces)))
    assume(max(rates) > 0)
    return Looped(np.cumsum(pieces).tolist(), rates).shifted(draw(st.floats(0, 20)))


paths = st.one_of(st.floats(0.1, 50).map(Constant), loops(), st.integers(0, 99).map(lambda seed: Walk(LAW, seed)))
sizes = st.floats(0, 200)
starts = st.floats(0, 50)


@st.composite
def scales(draw: st.DrawFn, *, ends_dead: bool = True) -> list[tuple[float, float]]:
    times = sorted(draw(st.lists(st.floats(0, 60), max_size=5, unique=True)))
    scale = [(time, draw(st.sampled_from([0.0, 0.1, 1.0, 2.5]))) for time in times]
    if scale and not ends_dead and scale[-1][1] == 0:
        scale[-1] = (scale[-1][0], 1.0)
    return scale


def passed(path: RatePath, scale: list[tuple[float, float]], start: float, end: float) -> float:
    """Bytes from start to end, piece by piece."""
    cuts = {start, end, *(time for time, _ in scale if start < time < end)}
    for until, _ in path.segments(start):
        if until >= end:
            break
        cuts.add(until)
    total = 0.0
    for low, high in pairwise(sorted(cuts)):
        middle = (low + high) / 2
        factor = next((factor for time, factor in reversed(scale) if time <= middle), 1.0)
        total += next(path.segments(middle))[1] * factor * (high - low)
    return total


@given(path=paths, scale=scales(ends_dead=False), start=starts, size=sizes)
def test_exactly_the_bytes_have_passed_at_the_end(path, scale, start, size):
    end = finish(path, scale, start, size)
    assert start <= end < math.inf
    assert passed(path, scale, start, end) == pytest.approx(size, rel=1e-6, abs=1e-6)


@given(path=paths, scale=scales(), start=starts, first=sizes, second=sizes)
def test_one_after_the_other_ends_as_both_together(path, scale, start, first, second):
    between = finish(path, scale, start, first)
    both = finish(path, scale, start, first + second)
    if between == math.inf:
        assert both == math.inf
        return
    after = finish(path, scale, between, second)
    if after == both:
        return
    # Where nothing passes, bytes that are rounded end before or after the dead time: compare what passed.
    late = min(max(after, both), min(after, both) + 100)
    assert passed(path, scale, min(after, both), late) == pytest.approx(0, abs=1e-5)


@given(path=paths, scale=scales(), start=starts, later=st.floats(0, 20), size=sizes)
def test_who_begins_later_does_not_end_sooner(path, scale, start, later, size):
    soon, late = finish(path, scale, start, size), finish(path, scale, start + later, size)
    if late < soon:
        assert passed(path, scale, late, min(soon, late + 100)) == pytest.approx(0, abs=1e-5)


@given(path=loops(), scale=scales(), start=starts, size=sizes)
def test_loops_are_reckoned_as_others_are_walked_through(path, scale, start, size):
    class Plain:
        def segments(self, start_s: float) -> Iterator[tuple[float, float]]:
            return path.segments(start_s)

    fast, slow = finish(path, scale, start, size), finish(Plain(), scale, start, size)
    if fast != pytest.approx(slow, rel=1e-9, abs=1e-6):
        low, high = sorted((fast, slow))
        assert passed(path, scale, low, min(high, low + 100)) == pytest.approx(0, abs=1e-5)


def test_a_dead_link_never_ends_and_one_that_comes_back_does():
    path = Constant(10.0)
    assert finish(path, [(1.0, 0.0)], 0.5, 100) == math.inf
    assert finish(path, [(0.0, 0.0)], 3.0, 1e-9) == math.inf
    assert finish(path, [(1.0, 0.0), (4.0, 0.5)], 0.5, 10) == 0.5 + 0.5 + 3 + 1
    assert finish(path, [(1.0, 0.0)], 0.5, 5) == 1.0
    assert finish(path, [(0.0, 0.0)], 3.0, 0) == 3.0


def test_a_link_that_is_dead_for_too_long_ends_what_it_carries():
    path = Constant(10.0)
    scale = [(1.0, 0.0), (4.0, 0.5)]
    assert passes(path, scale, 0.5, 10, patience_s=3.0) == 5.0
    assert passes(path, scale, 0.5, 10, patience_s=2.9) == math.inf
    assert passes(path, scale, 2.0, 10, patience_s=2.9) == finish(path, scale, 2.0, 10)  # of the time before it began
    assert passes(path, scale, 0.5, 4, patience_s=0.1) == finish(path, scale, 0.5, 4) == 0.9
    assert passes(path, [(1.0, 0.1)], 0.5, 100, patience_s=2.9) == finish(path, [(1.0, 0.1)], 0.5, 100)


@pytest.mark.parametrize(("patience_s", "dead"), [(4.9, True), (5.1, False)])
def test_a_gap_and_a_dead_time_beside_it_are_one(patience_s, dead):
    """Nothing passes from 7 to 10 s and, across the period's end, to 11; the link is dead from 11 to 12."""
    path = Looped([1.0, 7.0, 10.0], [0.0, 5.0, 0.0])
    assert path.silence_s == path.shifted(2.0).silence_s == 4.0
    assert (passes(path, [(11.0, 0.0), (12.0, 1.0)], 6.0, 20, patience_s) == math.inf) == dead


@given(path=loops(), scale=scales(ends_dead=False), start=starts, size=sizes, patience=st.floats(0.01, 30))
def test_only_dead_times_longer_than_the_patience_end_a_transfer(path, scale, start, size, patience):
    end, outcome = finish(path, scale, start, size), passes(path, scale, start, size, patience)
    assert outcome in (end, math.inf)
    # What passes in a tenth of the patience tells, for times that are not close to it.
    probes = [
        passed(path, scale, at, at + patience / 10) > 0 for at in np.arange(start, end - patience / 10, patience / 10)
    ]
    longest = max((len(run) for run in "".join(" x"[not alive] for alive in probes).split()), default=0)
    if outcome == end:
        assert longest <= 10
    else:
        assert longest >= 8


def test_an_unlimited_link_takes_no_time_unless_it_is_dead():
    assert finish(Constant(math.inf), [], 2.0, 1e9) == 2.0
    assert finish(Constant(math.inf), [(1.0, 0.0), (5.0, 1.0)], 2.0, 1e9) == 5.0


def test_a_constant_path_asks_for_no_segments(monkeypatch):
    """It is asked twice a batch."""
    monkeypatch.setattr(Constant, "segments", None)
    assert finish(Constant(4.0), [(1.0, 0.5)], 2.0, 10) == 7.0


def test_loops_of_nothing_are_refused():
    for ends, rates in (([1.0], [0.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0], [-1.0])):
        with pytest.raises(ValueError, match="a loop needs"):
            Looped(ends, rates)


@given(seed=st.integers(0, 2**40), times=st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_a_walk_is_the_same_in_any_order_of_asking(seed, times):
    walk = Walk(LAW, seed)
    first = [next(walk.segments(time)) for time in times]
    assert [next(walk.segments(time)) for time in reversed(times)] == first[::-1]
    assert [next(Walk(LAW, seed).segments(time)) for time in times] == first
    for time, (until, Bps) in zip(times, first, strict=True):
        assert time < until <= time + LAW.step_s
        assert LAW.low_Bps <= Bps <= LAW.high_Bps


def test_a_walk_keeps_to_its_law():
    law = WalkLaw(1e6, sigma=0.5, phi=0.8, low_Bps=1.0, high_Bps=1e12)
    logs = np.log([Bps for _, Bps in islice(Walk(law, 3).segments(0), 60_000)])
    away = logs - logs.mean()
    assert logs.mean() == pytest.approx(math.log(1e6), abs=0.03)
    assert logs.std() == pytest.approx(0.5, rel=0.03)
    assert away[1:] @ away[:-1] / (away @ away) == pytest.approx(0.8, abs=0.01)


def test_a_walk_keeps_little_in_memory():
    walk = Walk(LAW, 0)
    for _ in islice(walk.segments(0), 10_000):
        assert len(walk._block) <= links._BLOCK


def test_walks_that_are_none_are_refused():
    for change in ({"phi": 1.0}, {"low_Bps": 0.0}, {"high_Bps": 1.0}, {"sigma": -1.0}, {"step_s": 0.0}):
        with pytest.raises(ValueError, match="a walk needs"):
            WalkLaw(**{"median_Bps": 1e6, "sigma": 1.0, "phi": 0.5, "low_Bps": 1e4, "high_Bps": 1e7} | change)


def test_classes_have_their_figures():
    wired = class_link("wired", 5, seed=0)
    assert (wired.up, wired.down, wired.rtt_s) == (Constant(117.5e6), Constant(117.5e6), 0.5e-3)
    wifi = [class_link("wifi", client, seed=0) for client in range(2000)]
    rates = np.array([link.up.Bps / 125_000 for link in wifi])
    assert np.median(rates) == pytest.approx(100, rel=0.05)
    assert np.log(rates).std() == pytest.approx(0.5, rel=0.06)
    assert (rates.min(), rates.max()) == (20, 300)
    assert all(link.up == link.down and link.rtt_s == 4e-3 for link in wifi)
    lte = class_link("lte", 5, seed=0)
    up, down = (np.array([Bps for _, Bps in islice(path.segments(0), 20_000)]) for path in (lte.up, lte.down))
    assert np.median(up) == pytest.approx(LTE_UP.median_Bps, rel=0.1)
    assert np.median(down) == pytest.approx(LTE_DOWN.median_Bps, rel=0.1)
    assert abs(np.corrcoef(up, down)[0, 1]) < 0.1


def test_a_clients_link_depends_on_seed_and_client_alone():
    assert class_link("wifi", 3, seed=1) == class_link("wifi", 3, seed=1)
    assert class_link("wifi", 3, seed=1) != class_link("wifi", 3, seed=2)
    assert class_link("wifi", 3, seed=1) != class_link("wifi", 4, seed=1)
    first, second = (next(class_link("lte", client, seed=1).up.segments(0)) for client in (0, 1))
    assert first != second
