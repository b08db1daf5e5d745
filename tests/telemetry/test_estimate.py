"""The filter on known distributions, steps, drifts, outliers and nonsense.

How many batches a step takes to be seen is stated here: two, for a slowdown of 4× as for a fall to a tenth, from any
age and after the prior alone; a single outlier moves an estimate of a dozen batches by 4 %.
"""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.telemetry.estimate import Level, Slowdown


def settled(value: float = 1.0, batches: int = 12, **options: float) -> Level:
    level = Level("x", value, **options)
    for batch in range(batches):
        assert level.add(value, batch)
    return level


def noisy(sigma: float, seed: int, batches: int = 200) -> Level:
    draw = random.Random(seed)
    level = Level("x", 1.0)
    for batch in range(batches):
        level.add(math.exp(draw.gauss(0.0, sigma)), batch)
    return level


@pytest.mark.parametrize("sigma", [0.05, 0.1])
def test_of_a_noisy_constant_it_finds_the_mean_and_never_jumps(sigma: float):
    """Widths are honest: the errors of 200 estimators are as large as these say."""
    levels = [noisy(sigma, seed) for seed in range(200)]
    errors = [level.value / math.exp(sigma**2 / 2) - 1 for level in levels]
    assert abs(sum(errors) / len(errors)) < 0.25 * sigma
    deviation = math.sqrt(sum(error**2 for error in errors) / len(errors))
    width = sum(level.reading(199).relative_width for level in levels) / len(levels)
    assert deviation < width < 3 * deviation
    assert sum(level.jumps for level in levels) == 0


def test_a_level_noisier_than_the_jump_raises_its_own_limit():
    """30 % noise: measurements are often 35 % off, yet hardly one batch in 200 is taken for a new level."""
    levels = [noisy(0.3, seed) for seed in range(200)]
    assert sum(level.jumps for level in levels) / len(levels) < 2
    assert all(0.6 < level.value < 1.6 for level in levels)


@pytest.mark.parametrize("factor", [4.0, 0.1, 1.4, 0.7])
@pytest.mark.parametrize("batches", [0, 1, 12, 300])
def test_a_step_is_seen_after_two_batches(factor: float, batches: int):
    """A device slowed 4×, a link cut to a tenth, or just over 35 %: the second batch moves the estimate all the way."""
    level = settled(batches=batches)
    level.add(factor, batches)
    first = level.value
    assert level.jumps == 0
    level.add(factor, batches + 1)
    assert level.jumps == 1
    assert level.value == pytest.approx(factor)
    if batches >= 12:
        assert abs(math.log(first)) < 0.045


@pytest.mark.parametrize("factor", [4.0, 0.1])
@pytest.mark.parametrize("sigma", [0.05, 0.15])
def test_a_step_under_noise_is_seen_after_two_batches(factor: float, sigma: float):
    for seed in range(100):
        draw = random.Random(1000 + seed)
        level = noisy(sigma, seed, batches=50)
        before = level.jumps
        for batch in (50, 51):
            level.add(factor * math.exp(draw.gauss(0.0, sigma)), batch)
        assert level.jumps > before
        assert abs(math.log(level.value / factor)) < 4 * sigma


def test_a_chance_outlier_before_the_step_does_not_delay_it():
    """The milder of two is believed, and what the second has beyond it needs one more."""
    level = settled()
    for batch, value in enumerate([1.5, 4.0, 4.0], start=12):
        level.add(value, batch)
    assert level.value == pytest.approx(4.0)
    level = settled()
    for batch, value in enumerate([1.5, 40.0, 1.5], start=12):
        level.add(value, batch)
    assert level.value == pytest.approx(1.5)


def test_a_new_level_is_refined_as_fast_as_it_was_found():
    """Right after a jump two measurements are all there is; the next ones weigh accordingly."""
    level = settled()
    for batch, value in enumerate([4.4, 4.8, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0], start=12):
        level.add(value, batch)
    assert level.value == pytest.approx(4.05, abs=0.03)


@given(outlier=st.floats(1e-6, 1e6), at=st.integers(8, 40))
def test_one_outlier_hardly_moves_it(outlier: float, at: int):
    """Whatever its size; and the next ordinary batch forgets that it was suspected."""
    level = settled(batches=at)
    level.add(outlier, at)
    assert abs(level.value - 1) < 0.06
    level.add(1.0, at + 1)
    level.add(outlier, at + 2)
    assert level.jumps == 0
    assert abs(level.value - 1) < 0.1


def test_outliers_on_either_side_are_no_new_level():
    """Between 3 and 1/3 in turn it goes towards their mean, 1.67, and stays there."""
    level = settled()
    for batch in range(12, 40):
        level.add(3.0 if batch % 2 else 1 / 3, batch)
    assert level.jumps == 0
    assert 1.2 < level.value < 2.0


def test_small_steps_and_drifts_are_followed_without_jumps():
    """A rise of 30 % is half seen after about a half-life; one of 1 % a batch stays within 20 %."""
    level = settled(batches=60, half_life=8.0)
    for batch in range(60, 69):
        level.add(1.3, batch)
    assert 1.15 < level.value < 1.2
    level = settled(batches=60)
    for batch in range(60, 160):
        level.add(1.01 ** (batch - 60), batch)
        assert level.value > 1.01 ** (batch - 60) / 1.2
    assert level.jumps == 0


def test_it_starts_at_the_prior_and_forgets_it():
    level = Level("x", 5.0, prior_width=0.7)
    reading = level.reading(3)
    assert (reading.value, reading.samples, reading.age) == (5.0, 0, math.inf)
    assert reading.relative_width == pytest.approx(0.7)
    level.add(6.0, 0)
    assert level.value == pytest.approx(5.5)
    for batch in range(1, 60):
        level.add(6.0, batch)
    assert level.value == pytest.approx(6.0, rel=1e-3)


def test_it_widens_with_age_up_to_the_prior():
    level = settled(prior_width=0.8)
    widths = [level.reading(11 + age).relative_width for age in (0, 8, 16, 32, 64, 1000)]
    assert widths == sorted(widths)
    assert widths[0] < 0.02
    assert widths[-1] == pytest.approx(0.8)
    assert [level.reading(11 + age).age for age in (0, 8)] == [0.0, 8.0]


def test_old_measurements_weigh_less_than_their_number():
    """After a long gap (a fully local client's link) one new measurement counts more than twelve old ones."""
    fresh, stale = settled(), settled()
    fresh.add(1.3, 12)
    stale.add(1.3, 120)
    assert fresh.value < 1.05
    assert stale.value > 1.25


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 1e-300])
def test_nonsense_is_refused_by_name_and_changes_nothing(nonsense: float):
    level = settled()
    before = (level.value, level.samples, level.reading(11))
    assert not level.add(nonsense, 12)
    assert not level.add(nonsense, 13)
    assert (level.value, level.samples, level.reading(11)) == before
    assert level.refused == 2
    assert level.complaint == f"x: a measurement was ignored: {nonsense!r} is not in 1e-09..1e+12"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.floats(1e-6, 1e9))
def test_whatever_is_reported_the_estimate_stays_a_sane_number(values: list[float], prior: float):
    level = Level("x", prior)
    for batch, value in enumerate(values):
        level.add(value, batch)
    sane = [prior, *(value for value in values if 1e-9 <= value <= 1e12)]
    assert min(sane) * (1 - 1e-9) <= level.value <= max(sane) * (1 + 1e-9)
    assert level.samples + level.refused == len(values)
    assert 0 < level.reading(len(values)).relative_width <= 1.0


def test_a_count_that_goes_back_is_no_age():
    """A resumed client may repeat batches."""
    level = settled()
    assert level.add(1.0, 3)
    assert level.reading(11).age == 0.0


class TestSlowdown:
    PROFILE = (0.1, 0.2, 0.3, 0.4)

    def test_one_measurement_rescales_the_whole_curve(self):
        """Measured at cut 1 only, known at all cuts."""
        slowdown = Slowdown("client 3", self.PROFILE)
        assert slowdown.block_s == self.PROFILE
        for batch in range(2):
            assert slowdown.add({1: 0.4}, batch)
        assert slowdown.alpha == pytest.approx(4.0)
        assert slowdown.block_s == pytest.approx((0.4, 0.8, 1.2, 1.6))

    def test_a_move_is_no_change_of_speed(self):
        slowdown = Slowdown("client 3", self.PROFILE)
        for batch in range(40):
            held = range(1, 2 + batch % 4)
            slowdown.add({block: 1.2 * self.PROFILE[block - 1] for block in held}, batch)
        assert slowdown.alpha == pytest.approx(1.2, rel=1e-3)
        assert slowdown.level.jumps == 0

    def test_a_profile_from_flops_at_a_wild_guess_is_right_after_two_batches(self):
        slowdown = Slowdown("client 3", [seconds * 1e3 for seconds in self.PROFILE])
        for batch in range(2):
            slowdown.add({1: 0.1, 2: 0.2}, batch)
        assert slowdown.block_s == pytest.approx(self.PROFILE)

    @pytest.mark.parametrize(
        ("batches", "factors", "seen"),
        [
            (3, (3, 3, 3, 3), 1),
            (3, (1.3, 3, 3, 1), 1),
            (3, (1, 1, 1, 9), 2),  # one block alone: something else happened meanwhile
            (3, (1.5, 1.5, 1.5, 1.5), 2),  # half a second: as long as a device may halt
            (2, (3, 3, 3, 3), 2),  # hardly known yet
            (3, (1 / 3, 1 / 3, 1 / 3, 1 / 3), 2),
        ],
        ids=["seconds longer", "in some blocks", "in one block", "too little", "too early", "faster"],
    )
    def test_a_batch_that_takes_seconds_longer_is_seen_at_once(
        self, batches: int, factors: tuple[float, ...], seen: int
    ):
        """With ALGORITHMS §4 a change is seen twice: here in two blocks of one batch."""
        slowdown = Slowdown("client 3", self.PROFILE)
        for batch in range(batches):
            slowdown.add(dict(enumerate(self.PROFILE, start=1)), batch)
        changed = {block: factor * s for block, (factor, s) in enumerate(zip(factors, self.PROFILE, strict=True), 1)}
        jumps = []
        for batch in range(batches, batches + 3):
            slowdown.add(changed, batch)
            jumps.append(slowdown.level.jumps)
        assert jumps.index(1) + 1 == seen == slowdown.level.sightings
        assert slowdown.alpha == pytest.approx(sum(changed.values()) / sum(self.PROFILE))

    @pytest.mark.parametrize(
        ("block_s", "says"),
        [
            ({0: 0.1}, "0.1 s for block 0 of 4"),
            ({4: 0.1, 5: 0.1}, "0.1 s for block 5 of 4"),
            ({}, "it has no block"),
            ({1: math.nan}, "nan s for block 1 of 4"),
            ({1: -1.0, 2: 5.0}, "-1.0 s for block 1 of 4"),
            ({1: math.inf}, "inf s for block 1 of 4"),
            ({1: 0.0}, "0.0 is not in"),
            ({1: 1e9}, "is not in"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, block_s: dict[int, float], says: str):
        slowdown = Slowdown("client 3", self.PROFILE)
        assert not slowdown.add(block_s, 0)
        assert slowdown.alpha == 1.0
        assert slowdown.level.complaint is not None
        assert slowdown.level.complaint.startswith("client 3: slowdown")
        assert says in slowdown.level.complaint
