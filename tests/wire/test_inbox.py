"""The receiving queue: bounded, and its end comes after what is in it."""

import threading
from concurrent import futures

import pytest

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.inbox import CAPACITY, Inbox


def frame(batch: int) -> Frame:
    return Frame(Kind.ACK, 0, 0, batch)


def test_the_first_error_comes_after_the_frames_and_stays() -> None:
    inbox = Inbox()
    inbox.put(frame(1))
    inbox.fail(WireError("first"))
    inbox.fail(LinkClosed("second"))
    assert inbox.get(20).batch == 1
    for _ in range(3):
        with pytest.raises(WireError, match="first"):
            inbox.get(20)
    with pytest.raises(WireError, match="first"):
        inbox.put(frame(2))


def test_discarding_drops_the_frames() -> None:
    inbox = Inbox()
    inbox.put(frame(1))
    inbox.fail(LinkClosed("closed"), discard=True)
    with pytest.raises(LinkClosed, match="closed"):
        inbox.get(20)


def test_an_error_wakes_who_waits_for_a_frame() -> None:
    inbox = Inbox()
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.get, None)
        inbox.fail(LinkClosed("closed"))
        assert isinstance(waiting.exception(20), LinkClosed)


@pytest.mark.parametrize("end", ["taken", "failed"])
def test_a_full_inbox_holds_its_sender_back(end: str) -> None:
    inbox = Inbox()
    for batch in range(CAPACITY):
        inbox.put(frame(batch))
    done = threading.Event()

    def put() -> None:
        try:
            inbox.put(frame(CAPACITY))
        except LinkClosed:
            assert end == "failed"
        done.set()

    threading.Thread(target=put, daemon=True).start()
    assert not done.wait(0.1)
    if end == "taken":
        assert [inbox.get(20).batch for _ in range(CAPACITY + 1)] == list(range(CAPACITY + 1))
    else:
        inbox.fail(LinkClosed("closed"))
    assert done.wait(20)


def test_frames_pass_in_order_between_threads() -> None:
    inbox = Inbox()
    count = 20 * CAPACITY
    sender = threading.Thread(target=lambda: [inbox.put(frame(batch)) for batch in range(count)])
    sender.start()
    assert [inbox.get(20).batch for _ in range(count)] == list(range(count))
    sender.join()
