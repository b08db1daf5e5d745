"""The server's service time h0 + h1·B, by head and entry block, and its queue wait."""

import math
import random

import pytest

from dynsl_app.telemetry.service import Service, ServiceTime


def test_both_parts_are_found_when_batches_differ_in_size():
    """Merged batches of 1 to 6 members, 5 % noise, from a prior that is wrong in both."""
    draw = random.Random(0)
    time = ServiceTime("server", 0.010, 0.0001)
    for _ in range(200):
        size = 8 * draw.randint(1, 6)
        assert time.add(size, (0.004 + 0.0007 * size) * draw.gauss(1.0, 0.05))
    assert time.call_s == pytest.approx(0.004, abs=0.0015)
    assert time.sample_s == pytest.approx(0.0007, rel=0.1)


def test_batches_of_one_size_keep_the_priors_proportion():
    time = ServiceTime("server", 0.001, 0.001)
    for _ in range(20):
        time.add(8, 0.018)
    assert (time.call_s, time.sample_s) == pytest.approx((0.002, 0.002))
    assert time.slowdown == pytest.approx(2.0)


@pytest.mark.parametrize("factor", [4.0, 0.1])
def test_a_step_is_seen_after_two_batches(factor: float):
    time = ServiceTime("server", 0.004, 0.0007)
    for size in [8, 16, 24] * 10:
        time.add(size, 0.004 + 0.0007 * size)
    for size in (16, 8):
        time.add(size, factor * (0.004 + 0.0007 * size))
    assert time.jumps == 1
    assert time.at(24) == pytest.approx(factor * (0.004 + 0.0007 * 24), rel=1e-6)


def test_one_outlier_moves_it_little():
    time = ServiceTime("server", 0.004, 0.0007)
    for size in [8, 16, 24] * 10:
        time.add(size, 0.004 + 0.0007 * size)
    time.add(16, 5.0)
    time.add(16, 0.004 + 0.0007 * 16)
    assert time.jumps == 0
    for size in (8, 16, 24):
        assert time.at(size) == pytest.approx(0.004 + 0.0007 * size, rel=0.05)


@pytest.mark.parametrize("line", [(0.0, 0.001), (0.02, 0.0)])
def test_neither_part_is_ever_negative(line: tuple[float, float]):
    draw = random.Random(1)
    time = ServiceTime("server", 0.01, 0.0005)
    for _ in range(100):
        size = draw.randint(1, 64)
        time.add(size, (line[0] + line[1] * size) * draw.gauss(1.0, 0.2))
        assert time.call_s >= 0
        assert time.sample_s >= 0
        assert time.at(1) > 0


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 0.1), (-3, 0.1), (8, 0.0), (8, -1.0), (8, math.nan), (8, math.inf), (8, 1e9)]
)
def test_nonsense_is_refused_by_name(size: int, seconds: float):
    time = ServiceTime("server, shared head 0", 0.01, 0.001)
    assert not time.add(size, seconds)
    assert time.at(8) == pytest.approx(0.018)
    assert time.refused == 1
    assert time.complaint == (
        f"server, shared head 0: a measurement was ignored: {seconds!r} s for a batch of {size!r} samples"
    )


class TestService:
    BLOCKS = (0.08, 0.04, 0.02, 0.02)

    def make(self) -> Service:
        return Service(0.004, self.BLOCKS, batch=8)

    def test_the_prior_is_the_profile_above_the_cut(self):
        service = self.make()
        assert service.at(None, 1, 8) == pytest.approx(0.004 + 0.08)
        assert service.at(0, 3, 16) == pytest.approx(0.004 + 2 * 0.02)
        assert (service.slowdown, service.wait_s, service.jumps) == (1.0, 0.0, 0)

    def test_heads_and_entries_are_apart_and_others_follow_the_slowdown(self):
        service = self.make()
        for _ in range(10):
            assert service.add(0, 2, 8, 0.088, 0.5)
        assert service.at(0, 2, 8) == pytest.approx(0.088)
        assert service.slowdown == pytest.approx(2.0)
        assert service.at(0, 1, 8) == pytest.approx(2 * 0.084)
        assert service.at(1, 3, 8) == pytest.approx(2 * 0.024)
        service.add(1, 3, 8, 0.024, 0.0)
        assert service.at(1, 3, 8) == pytest.approx(0.024)
        assert service.at(0, 2, 8) == pytest.approx(0.088)

    def test_waiting_is_never_service(self):
        """Else load would be counted twice."""
        service = self.make()
        for wait in (0.0, 30.0, 0.0, 30.0):
            service.add(None, 1, 8, 0.084, wait)
        assert service.at(None, 1, 8) == pytest.approx(0.084)
        assert service.wait_s == pytest.approx(15.0, rel=0.05)

    def test_a_jump_of_any_head_is_counted(self):
        service = self.make()
        for _ in range(2):
            service.add(None, 1, 8, 0.5, 0.0)
        assert service.jumps == 1

    def test_nonsense_is_named_and_harms_nothing(self):
        service = self.make()
        assert not service.add(1, 3, 8, math.nan, 0.0)
        assert not service.add(None, 2, 8, -1.0, 0.0)
        assert service.slowdown == 1.0
        assert [text.split(":")[0] for text in service.complaints] == [
            "server, shared head 1 from cut 3",
            "server, private copies from cut 2",
        ]
        assert service.add(None, 2, 8, 0.044, math.nan)
        assert service.wait_s == 0.0
