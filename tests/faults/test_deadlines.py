"""Clients that never come, fall silent or fail on their own: lost by name, by a deadline; what the watchdog says.

Nothing here sleeps: who must stay silent waits for the event that says that it was given up.
"""

import threading

import pytest

from dynsl_app.client import node
from dynsl_app.data.load import client_data
from dynsl_app.errors import DataError, LinkClosed, RoundFailed
from dynsl_app.inprocess import InProcessControl
from dynsl_app.server import controller
from dynsl_app.wire.base import Frame, Kind, Link


class Deaf(InProcessControl):
    """Client 1 never gets its orders."""

    def push(self, orders) -> None:
        super().push([order for order in orders if order.client != 1])


def is_lost(event) -> bool:
    return event["event"] == "client_lost"


def is_word(event) -> bool:
    return event["event"] == "waiting" and event["for"] == "their next batch"


@pytest.mark.parametrize("algorithm", ["splitfed_v1", "psl"])
def test_a_client_that_never_connects(trial, algorithm: str) -> None:
    watch = trial(f"algorithm={algorithm}", "faults.connect_s=1.5", control=Deaf(3)).watch
    assert watch.lost.keys() == {1}
    assert "its stream did not open within faults.connect_s=1.5 s" in watch.lost[1]
    assert "wire.advertise" in watch.lost[1]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_a_client_that_never_connects_is_not_asked_again(trial) -> None:
    """Its order is still out: the next round is planned without it, so that it costs no second deadline."""
    watch = trial("rounds=3", "faults.connect_s=1.5", control=Deaf(3)).watch
    assert [event["round"] for event in watch.named("client_lost")] == [1]
    assert [event["clients"] for event in watch.named("round_start")] == [[0, 1, 2], [0, 2], [0, 2]]


@pytest.mark.parametrize("algorithm", ["splitfed_v1", "psl"])
def test_a_client_that_falls_silent(trial, tamper, watch, algorithm: str) -> None:
    """User case 31: its stream is alive, its next batch does not come."""
    given_up = threading.Event()
    watch.when(is_lost, given_up.set)

    def out(frame: Frame, link: Link) -> Frame:
        if (frame.client, frame.kind, frame.batch) == (1, Kind.ACTIVATION, 2):
            assert given_up.wait(20)
        return frame

    tamper(out=out)
    trial(f"algorithm={algorithm}", "faults.batch_s=0.5", watch=watch)
    assert watch.lost == {1: "no batch within faults.batch_s=0.5 s after batch 1"}
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]
    assert watch.batches(1) == [0, 1]


def test_a_stream_that_does_not_come_back(trial, tamper, watch) -> None:
    given_up = threading.Event()
    watch.when(is_lost, given_up.set)

    def out(frame: Frame, link: Link) -> Frame:
        if (frame.client, frame.kind, frame.batch) == (1, Kind.ACTIVATION, 2):
            link.close()
            assert given_up.wait(20)
            raise LinkClosed("cut")
        return frame

    tamper(out=out)
    trial("algorithm=psl", "faults.reconnect_s=0.3", watch=watch)
    assert "did not come back within faults.reconnect_s=0.3 s" in watch.lost[1]
    assert [event["client"] for event in watch.named("stream_lost")] == [1]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_a_client_that_keeps_its_blocks(trial) -> None:
    """It has trained to the end, and its reply does not come."""

    class Mute(InProcessControl):
        def poll(self, timeout: float):
            return [reply for reply in super().poll(timeout) if reply.client != 1]

    watch = trial("faults.connect_s=1.5", control=Mute(3)).watch
    assert watch.lost == {1: "its blocks did not come within faults.connect_s=1.5 s after its last batch"}
    (end,) = watch.named("round_end")
    assert (end["clients"], end["samples"]) == (2, 24)


def test_a_round_that_takes_too_long(trial, tamper, watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch comes in time, all of them together do not."""
    monkeypatch.setattr(controller, "_FIRST_WORD_S", 1.0)
    late, given_up = threading.Event(), threading.Event()
    watch.when(is_word, late.set)
    watch.when(is_lost, given_up.set)

    def out(frame: Frame, link: Link) -> Frame:
        if frame.client == 1 and frame.kind is Kind.ACTIVATION and frame.batch > 1:
            assert (late if frame.batch == 2 else given_up).wait(20)
        return frame

    tamper(out=out)
    trial(*[f"faults.{name}=2" for name in ("connect_s", "reconnect_s", "batch_s", "round_s")], watch=watch)
    assert watch.lost == {1: "not done within faults.round_s=2 s"}
    assert watch.batches(1) == [0, 1, 2]


def test_the_watchdog_says_what_it_waits_for(trial, tamper, watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """User case 32: what, for how long and from whom; then again after twice the time."""
    monkeypatch.setattr(controller, "_FIRST_WORD_S", 0.1)
    go = threading.Event()
    # The second word lets the client go on.
    watch.when(is_word, lambda: watch.when(is_word, go.set))

    def out(frame: Frame, link: Link) -> Frame:
        if (frame.client, frame.kind, frame.batch) == (1, Kind.ACTIVATION, 2):
            assert go.wait(20)
        return frame

    tamper(out=out)
    trial("algorithm=psl", watch=watch)
    assert not watch.lost
    words = [word for word in watch.named("waiting", round=1) if word["for"] == "their next batch"]
    assert words[0]["clients"] == [1]
    assert [word["seconds"] for word in words] == sorted(word["seconds"] for word in words)
    assert len(words) >= 2
    assert watch.batches(1) == [0, 1, 2, 3]


def test_a_client_that_fails_before_it_trains(trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """User case 20: the others do not wait for a stream that will never open."""

    def without_samples(source, settings, *, client: int, **rest):
        if client == 1:
            raise DataError("client 1 has no samples; give it some, or lower clients")
        return client_data(source, settings, client=client, **rest)

    monkeypatch.setattr(node, "client_data", without_samples)
    watch = trial("algorithm=psl").watch
    assert watch.lost == {1: "DataError: client 1 has no samples; give it some, or lower clients"}
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_when_all_are_lost_the_run_fails_and_says_why(trial, tamper, watch) -> None:
    def out(frame: Frame, link: Link) -> Frame:
        if frame.kind is Kind.ACTIVATION and frame.batch == 1 + frame.client:
            raise DataError(f"disk {frame.client} is gone")
        return frame

    tamper(out=out)
    with pytest.raises(RoundFailed, match="round 1: no client finished") as failure:
        trial(watch=watch)
    assert all(f"client {client}: DataError: disk {client} is gone" in str(failure.value) for client in range(3))
    assert not watch.named("round_end")
