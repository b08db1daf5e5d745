"""Links as their receivers see them: chunks, exchanges of one chunk, uploads that are overdue, heartbeats."""

import math
import random
from dataclasses import dataclass

import pytest

from dynsl_app.telemetry.link import LinkEstimate, Rtt, Throughput
from dynsl_app.wire.base import Transfer

CHUNK = 1 << 20


def transfer(size: int, Bps: float, *, start: float = 50.0) -> Transfer:
    """How a frame comes in over a link of ``Bps``: the first chunk is there after its own time."""
    chunks = -(-size // CHUNK)
    first = start + min(size, CHUNK) / Bps
    return Transfer(first, start + size / Bps, size, chunks)


class TestThroughput:
    @pytest.mark.parametrize("size", [2 * CHUNK, 5 * CHUNK + 17, 10 * CHUNK - 1])
    def test_the_first_chunk_does_not_count(self, size: int):
        """When it was sent, and how long it queued, the receiver cannot know."""
        link = Throughput("client 1: upload", 3e6, CHUNK)
        assert link.add(transfer(size, 3.1e6), 0)
        for batch in range(1, 40):
            link.add(transfer(size, 3.1e6), batch)
        assert link.value == pytest.approx(3.1e6, rel=1e-2)

    def test_one_chunk_or_hardly_more_is_no_sample(self):
        link = Throughput("client 1: upload", 3e6, CHUNK)
        assert not link.add(transfer(CHUNK, 1e6), 0)
        assert not link.add(transfer(CHUNK + CHUNK // 4, 1e6), 1)
        assert link.reading(1).samples == link.level.refused == 0

    @pytest.mark.parametrize("factor", [0.1, 0.25, 4.0])
    def test_a_link_that_changes_is_seen_after_two_frames(self, factor: float):
        """Cut to a tenth, to a quarter, or back."""
        link = Throughput("client 1: upload", 1e6, CHUNK)
        for batch in range(12):
            link.add(transfer(4 * CHUNK, 1e6), batch)
        link.add(transfer(4 * CHUNK, factor * 1e6), 12)
        assert link.value == pytest.approx(1e6, rel=0.05)
        link.add(transfer(4 * CHUNK, factor * 1e6), 13)
        assert link.value == pytest.approx(factor * 1e6)
        assert link.jumps == 1

    def test_an_overdue_frame_is_evidence_before_it_ends(self):
        """A link cut to a tenth at a frame's start: noticed when two frames' time has passed, believed at its end."""
        link = Throughput("client 1: upload", 1e6, CHUNK)
        for batch in range(12):
            link.add(transfer(8 * CHUNK, 1e6), batch)
        late = transfer(8 * CHUNK, 1e5)
        seen = None
        for tick in range(1, 700):
            seconds = tick * 0.1
            came = int(seconds * 1e5) // CHUNK * CHUNK
            if link.overdue(came, seconds) and seen is None:
                seen = seconds
        assert seen == pytest.approx(2 * CHUNK / 1e6, abs=0.2)
        assert 1e5 <= link.value < 1.3e5
        assert link.jumps == 3, "at a half, a quarter, an eighth"
        assert link.reading(12).value == link.value
        link.add(late, 12)
        assert link.value == pytest.approx(1e5)
        link.add(late, 13)
        assert link.value == pytest.approx(1e5)

    def test_a_hiccup_within_a_frame_is_forgotten(self):
        link = Throughput("client 1: upload", 1e6, CHUNK)
        for batch in range(12):
            link.add(transfer(8 * CHUNK, 1e6), batch)
        assert link.overdue(CHUNK, 5.0)
        assert link.value < 5e5
        link.add(transfer(8 * CHUNK, 0.9e6), 12)
        assert link.value == pytest.approx(1e6, rel=0.05)
        link.add(transfer(8 * CHUNK, 0.5e6), 13)
        assert link.value == pytest.approx(1e6, rel=0.05)

    def test_a_frame_in_time_is_not_overdue(self):
        link = Throughput("client 1: upload", 1e6, CHUNK)
        for tick in range(1, 100):
            seconds = tick * 0.1
            assert not link.overdue(int(seconds * 0.8e6) // CHUNK * CHUNK, seconds)
        assert link.value == 1e6

    def test_looks_that_are_nonsense_change_nothing(self):
        link = Throughput("client 1: upload", 1e6, CHUNK)
        assert not any(link.overdue(*look) for look in ((-1, 9.0), (0, math.nan), (0, math.inf), (0, 0.0), (0, -5.0)))
        assert link.value == 1e6

    @pytest.mark.parametrize("last", [50.0, 49.0, math.nan, 50.0 + 1e-13, 1e12])
    def test_nonsense_is_refused_by_name(self, last: float):
        link = Throughput("client 1: upload", 1e6, CHUNK)
        assert not link.add(Transfer(50.0, last, 4 * CHUNK, 4), 0)
        assert link.value == 1e6
        assert link.level.complaint is not None
        assert link.level.complaint.startswith("client 1: upload in B/s: a measurement was ignored")


class TestRtt:
    def test_the_least_of_the_window_and_what_usually_comes_on_top(self):
        draw = random.Random(0)
        rtt = Rtt("client 1: heartbeat", 0.5, window=1000)
        for _ in range(2000):
            assert rtt.add(0.02 + draw.expovariate(1 / 0.004))
        assert rtt.value == pytest.approx(0.02, abs=0.001)
        assert rtt.spread == pytest.approx(0.004 * math.log(2), rel=0.1)

    def test_a_longer_way_is_seen_once_the_window_has_passed(self):
        rtt = Rtt("client 1: heartbeat", 0.5, window=4)
        for seconds in [0.01] * 4 + [0.05] * 4:
            rtt.add(seconds)
        assert rtt.value == 0.05

    def test_before_heartbeats_the_prior_is_all_that_is_known(self):
        rtt = Rtt("client 1: heartbeat", 0.03)
        assert (rtt.value, rtt.spread, rtt.samples) == (0.03, 0.03, 0)

    def test_the_first_heartbeats_may_be_held_up(self):
        """Everybody starts then: a link must not seem to be far away, nor its round trips to vary."""
        rtt = Rtt("client 1: heartbeat", 0.002)
        for seconds in (0.4, 0.01, 0.01):
            rtt.add(seconds)
            assert (rtt.value, rtt.spread) == (0.002, 0.002)
        rtt.add(0.011)
        assert rtt.value == 0.01
        assert rtt.spread == pytest.approx(0.0005)

    @pytest.mark.parametrize("nonsense", [math.nan, math.inf, -0.001, 1e9])
    def test_nonsense_is_refused_by_name(self, nonsense: float):
        rtt = Rtt("client 1: heartbeat", 0.03)
        assert not rtt.add(nonsense)
        assert rtt.value == 0.03
        assert rtt.complaint == f"client 1: heartbeat: a round trip of {nonsense!r} s was ignored: it is not in 0..600"


@dataclass(frozen=True)
class Truth:
    up: float
    down: float
    rtt: float = 0.02


def exchange(link: LinkEstimate, truth: Truth, up: int, down: int, batch: int, jitter: float = 0.0) -> bool:
    away = up / truth.up + down / truth.down + truth.rtt + jitter
    return link.exchange(transfer(up, truth.up), transfer(down, truth.down), away, batch)


def link_to(client: int = 1, up: float = 1e6, down: float = 1e6, jitter: float = 0.001) -> LinkEstimate:
    link = LinkEstimate(client, up, down, 0.02, CHUNK)
    for k in range(8):
        link.rtt.add(0.02 + jitter * (k % 2))
    return link


class TestLink:
    def test_frames_of_several_chunks_tell_each_way_apart(self):
        """From priors that are both wrong."""
        link, truth = link_to(up=1e6, down=1e6), Truth(up=2e5, down=5e6)
        for batch in range(3):
            assert exchange(link, truth, 4 * CHUNK, 4 * CHUNK, batch)
        assert link.up.value == pytest.approx(2e5)
        assert link.down.value == pytest.approx(5e6)

    @pytest.mark.parametrize("factor", [0.1, 0.3, 3.0])
    def test_frames_of_one_chunk_tell_their_sum(self, factor: float):
        """A thin link with small activations: after two exchanges a plan's transfer time is right, at every cut."""
        truth = Truth(up=1e5 * factor, down=1e5 * factor)
        link = link_to(up=1e5, down=1e5)
        for batch in range(2):
            assert exchange(link, truth, 16_000, 15_000, batch)
        for scale in (0.25, 1.0, 4.0):
            estimated = scale * (16_000 / link.up.value + 15_000 / link.down.value)
            assert estimated == pytest.approx(scale * (16_000 / truth.up + 15_000 / truth.down), rel=1e-6)

    def test_a_slow_upload_is_found_although_the_other_way_is_innocent(self):
        """With gradients as large as activations only their sum can be seen, and it is right."""
        truth = Truth(up=2e4, down=1e6)
        link = link_to(up=1e5, down=1e6)
        for batch in range(6):
            exchange(link, truth, 16_000, 15_000, batch)
        assert 16_000 / link.up.value + 15_000 / link.down.value == pytest.approx(16_000 / 2e4 + 15_000 / 1e6, rel=0.01)

    def test_one_way_in_chunks_is_taken_off_the_other(self):
        """Quantised gradients, say, fit one chunk; the activation does not."""
        truth = Truth(up=1e6, down=2e5)
        link = link_to(up=1e6, down=1e6)
        for batch in range(4):
            assert exchange(link, truth, 4 * CHUNK, 500_000, batch)
        assert link.up.value == pytest.approx(1e6, rel=1e-6)
        assert link.down.value == pytest.approx(2e5, rel=1e-6)

    def test_what_is_lost_in_the_round_trips_noise_is_no_sample(self):
        """Estimated and seen below twice the spread: nothing can be said."""
        link = link_to(up=1e8, down=1e8, jitter=0.01)
        for batch in range(20):
            assert not exchange(link, Truth(up=2e7, down=2e7), 10_000, 10_000, batch)
        assert link.up.value == link.down.value == 1e8
        assert link.up.reading(0).samples == 0

    def test_a_prior_that_is_too_low_does_not_stay(self):
        """Faster than can be told apart from a round trip: then at least so fast that it cannot."""
        link = link_to(up=1e4, down=1e4, jitter=0.004)
        for batch in range(4):
            exchange(link, Truth(up=1e9, down=1e9), 16_000, 15_000, batch)
        spent = 16_000 / link.up.value + 15_000 / link.down.value
        assert spent == pytest.approx(2 * link.rtt.spread, rel=0.01)

    def test_jitter_in_one_exchange_moves_little(self):
        link, truth = link_to(up=1e5, down=1e5), Truth(up=1e5, down=1e5)
        for batch in range(12):
            exchange(link, truth, 16_000, 15_000, batch)
        exchange(link, truth, 16_000, 15_000, 12, jitter=3.0)
        assert link.up.value == pytest.approx(1e5, rel=0.05)
        assert link.jumps == 0

    @pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
    def test_nonsense_is_refused_by_name_and_harms_no_chunks(self, nonsense: float):
        link = link_to(client=7)
        small = transfer(1000, 1e6)
        assert not link.exchange(small, small, nonsense, 0)
        assert link.exchange(transfer(4 * CHUNK, 1e6), small, nonsense, 1)
        assert link.up.value == pytest.approx(1e6)
        assert link.complaints == [f"client 7: upload in B/s: a measurement was ignored: an exchange of {nonsense!r} s"]

    def test_a_transport_within_one_process_reports_no_time_at_all(self):
        """Its frames are there at once, in one chunk: no division by zero, and a link that is not in the way."""
        link = link_to(up=1e6, down=1e6, jitter=0.0)
        now = Transfer(5.0, 5.0, 400_000, 1)
        for batch in range(4):
            link.exchange(now, now, 0.02, batch)
        assert link.up.value > 1e9

    def test_an_upload_counts_once_when_it_is_there(self):
        """Told again with the rest of its exchange, a batch later, it only says what was left for the other way."""
        early, late = link_to(up=1e6, down=1e6), link_to(up=1e6, down=1e6)
        up, down = transfer(4 * CHUNK, 5e5), transfer(500_000, 2e5)
        away_s = up.bytes / 5e5 + down.bytes / 2e5 + 0.02
        for batch in range(3):
            assert early.uploaded(up, batch)
            assert early.exchange(up, down, away_s, batch)
            assert late.exchange(up, down, away_s, batch)
        assert early.up.reading(2) == late.up.reading(2)
        assert early.down.value == pytest.approx(late.down.value)

    def test_an_upload_that_hangs_is_believed_whatever_is_told_of_the_one_before(self):
        """Its frame brings the report of the batch before, when the link was still as good as ever."""
        link, good = link_to(up=1e6), Truth(up=1e6, down=1e6)
        down = transfer(1000, 1e6)
        before = transfer(8 * CHUNK, good.up)
        for batch in range(6):
            before = transfer(8 * CHUNK, good.up)
            link.uploaded(before, batch)
        hangs = transfer(8 * CHUNK, 1e5, start=before.last + 0.1)
        assert link.coming(Transfer(hangs.first, hangs.first + 9, 2 * CHUNK, 2), 20.0)
        assert link.up.value == pytest.approx(2 * CHUNK / 20)
        link.exchange(before, down, before.bytes / good.up + 0.021, 6)
        assert link.up.value == pytest.approx(2 * CHUNK / 20)
        link.uploaded(hangs, 7)
        assert link.up.value == pytest.approx(1e5)
        assert not link.coming(Transfer(hangs.first, hangs.first + 9, CHUNK, 1), 1000.0), "it is there by now"
        assert link.up.value == pytest.approx(1e5)
