"""The client's end of its stream, over links that a test plays."""

from collections.abc import Callable, Sequence

import pytest
import torch

from dynsl_app.client.stream import Stream, hello
from dynsl_app.errors import ClientLost, LinkClosed, WireError
from dynsl_app.settings import FaultSettings
from dynsl_app.wire.base import Frame, Kind

WELCOME = Frame(Kind.WELCOME, 3, 1, meta={"next": 0})
DOWN = LinkClosed("the server is gone")
FAULTS = FaultSettings(connect_s=0.05, reconnect_s=0.05, batch_s=0.02)


def activation(batch: int) -> Frame:
    return Frame(Kind.ACTIVATION, 3, 1, batch, tensors={"activation": torch.full((1,), float(batch))})


def gradient(batch: int) -> Frame:
    return Frame(Kind.GRADIENT, 3, 1, batch)


def ack(batch: int) -> Frame:
    return Frame(Kind.ACK, 3, 1, batch)


def refusal(reason: str) -> Frame:
    return Frame(Kind.ERROR, 3, 1, meta={"message": reason})


class PlayedLink:
    """Gives frames (or raises) in order, then nothing; fails to send from the ``sends``-th frame on."""

    def __init__(self, *script: Frame | Exception, sends: int = 1000) -> None:
        self._script, self._sends = list(script), sends
        self.sent: list[Frame] = []
        self.closed = False

    def send(self, frame: Frame) -> None:
        if len(self.sent) >= self._sends:
            raise DOWN
        self.sent.append(frame)

    def receive(self, timeout: float | None = None) -> Frame:
        if not self._script:
            raise TimeoutError
        step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self.closed = True


def connecting(links: Sequence[PlayedLink]) -> Callable[[], PlayedLink]:
    """Hands out the links in order, then nobody answers."""
    left = list(links)

    def connect() -> PlayedLink:
        if not left:
            raise LinkClosed("nobody answered")
        return left.pop(0)

    return connect


def opened(*links: PlayedLink) -> Stream:
    return Stream(connecting(links), hello(3, 1, "secret", 4, 8), FAULTS)


def kinds(link: PlayedLink) -> list[tuple[Kind, int]]:
    return [(frame.kind, frame.batch) for frame in link.sent]


def test_says_who_it_is_and_exchanges_frames() -> None:
    link = PlayedLink(WELCOME, gradient(0))
    stream = opened(link)
    stream.send(activation(0))
    assert stream.answer(0) == gradient(0)
    assert kinds(link) == [(Kind.HELLO, 0), (Kind.ACTIVATION, 0)]
    assert link.sent[0].meta == {"token": "secret", "batches": 4, "samples": 8}
    stream.close()
    assert link.closed


def test_what_is_not_answered_is_sent_again_and_nothing_else() -> None:
    """User cases 28, 30: batch 0 was answered, 1 may or may not have arrived."""
    first, second = PlayedLink(WELCOME, gradient(0), DOWN), PlayedLink(WELCOME, gradient(1))
    stream = opened(first, second)
    stream.send(activation(0))
    stream.answer(0)
    stream.send(activation(1))
    assert stream.answer(1) == gradient(1)
    assert first.closed
    assert kinds(second) == [(Kind.HELLO, 0), (Kind.ACTIVATION, 1)]
    assert second.sent[1].tensors["activation"].equal(torch.tensor([1.0]))


def test_a_frame_that_cannot_be_sent_goes_over_the_next_link() -> None:
    first, second = PlayedLink(WELCOME, sends=1), PlayedLink(WELCOME, gradient(0))
    stream = opened(first, second)
    stream.send(activation(0))
    assert stream.answer(0) == gradient(0)
    assert kinds(second) == [(Kind.HELLO, 0), (Kind.ACTIVATION, 0)]


def test_unanswered_frames_keep_their_order() -> None:
    """A fully local client reads an answer one batch later, so two may be on their way."""
    first, second = PlayedLink(WELCOME, DOWN), PlayedLink(WELCOME, ack(0), ack(1))
    stream = opened(first, second)
    for batch in (0, 1):
        stream.send(Frame(Kind.PROGRESS, 3, 1, batch))
    assert (stream.answer(0).batch, stream.answer(1).batch) == (0, 1)
    assert kinds(second) == [(Kind.HELLO, 0), (Kind.PROGRESS, 0), (Kind.PROGRESS, 1)]


def test_an_answer_that_comes_twice_is_read_once() -> None:
    link = PlayedLink(WELCOME, gradient(0), gradient(0), gradient(1))
    stream = opened(link)
    for batch in (0, 1):
        stream.send(activation(batch))
        assert stream.answer(batch).batch == batch


def test_links_that_break_while_opening_are_closed_and_tried_again() -> None:
    broken = [PlayedLink(sends=0), PlayedLink(DOWN), PlayedLink(WELCOME, sends=1)]
    first, last = PlayedLink(WELCOME, DOWN), PlayedLink(WELCOME, gradient(0))
    faults = FaultSettings(connect_s=5, reconnect_s=5, batch_s=1)
    stream = Stream(connecting([broken[0], first, broken[1], broken[2], last]), hello(3, 1, "secret", 4, 8), faults)
    stream.send(activation(0))
    assert stream.answer(0) == gradient(0)
    assert all(link.closed for link in [*broken, first])
    assert not last.closed


def test_gives_up_when_nobody_answers() -> None:
    with pytest.raises(ClientLost, match=r"client 3: no stream to the server within 0.05 s: nobody answered"):
        opened()
    stream = opened(PlayedLink(WELCOME, DOWN))
    stream.send(activation(0))
    with pytest.raises(ClientLost, match=r"client 3: no stream to the server within 0.05 s"):
        stream.answer(0)


def test_gives_up_when_the_server_is_stuck() -> None:
    stream = opened(PlayedLink(WELCOME))
    stream.send(activation(0))
    with pytest.raises(ClientLost, match=r"client 3: no answer to batch 0 for 0.04 s; .*faults.batch_s=0.02"):
        stream.answer(0)


def test_the_servers_reason_is_passed_on() -> None:
    with pytest.raises(ClientLost, match=r"^client 3: wrong token$"):
        opened(PlayedLink(refusal("client 3: wrong token")))
    stream = opened(PlayedLink(WELCOME, refusal("client 3: its activation has NaN")))
    stream.send(activation(0))
    with pytest.raises(ClientLost, match=r"^client 3: its activation has NaN$"):
        stream.answer(0)
    # Lost in the meantime: the reason comes when it tries to come back.
    stream = opened(PlayedLink(WELCOME, DOWN), PlayedLink(refusal("client 3: no longer part of round 1")))
    stream.send(activation(0))
    with pytest.raises(ClientLost, match="no longer part"):
        stream.answer(0)


def test_what_is_no_welcome_is_refused() -> None:
    odd = PlayedLink(gradient(0))
    with pytest.raises(WireError, match="answered with GRADIENT instead of WELCOME"):
        opened(odd)
    assert odd.closed
