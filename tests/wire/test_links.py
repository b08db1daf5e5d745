"""What every link does, over gRPC, with and without TLS, and in-process."""

import random
import threading

import pytest
import torch

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Frame, Kind, Link
from dynsl_app.wire.protocol import encode


def drain(link: Link, batches: list[int]) -> None:
    """Receive to the link's end."""
    while True:
        batches.append(link.receive(20).batch)


def activation(client: int = 0, batch: int = 0, values: int = 100_000) -> Frame:
    return Frame(
        Kind.ACTIVATION,
        client,
        1,
        batch,
        meta={"n": values},
        tensors={"activation": torch.rand(values, dtype=torch.float64)},
    )


def test_frames_come_back_as_sent(settings: WireSettings, listen, connect) -> None:
    link: Link = connect(settings, listen(settings))
    for batch, values in enumerate([0, 1, 1000, 100_000, 1]):
        frame = activation(batch=batch, values=values)
        link.send(frame)
        answer = link.receive(20)
        assert (answer.kind, answer.batch, answer.meta) == (Kind.GRADIENT, batch, {"n": values})
        assert torch.equal(answer.tensors["activation"], frame.tensors["activation"])
        received = answer.received
        assert received is not None
        assert received.first <= received.last
        assert received.bytes == encode(frame, settings.chunk_bytes).size


def test_bytes_are_those_of_the_frames(settings: WireSettings, listen, connect) -> None:
    """User case 11: the bytes counted are the bytes sent, the same number over every transport."""
    link: Link = connect(settings, listen(settings))
    before = link.bytes_sent, link.bytes_received
    frame = activation()
    link.send(frame)
    link.receive(20)
    size = encode(frame, settings.chunk_bytes).size
    assert (link.bytes_sent - before[0], link.bytes_received - before[1]) == (size, size)


def test_the_halves_share_no_memory(settings: WireSettings, listen, connect) -> None:
    """User case 11: what one side does to its tensors the other never sees."""
    got: list[torch.Tensor] = []
    changed = threading.Event()

    def accept(link: Link) -> None:
        got.append(link.receive().tensors["x"].add_(1))
        changed.set()

    link: Link = connect(settings, listen(settings, accept), greet=False)
    mine = torch.zeros(10, requires_grad=True)
    link.send(Frame(Kind.ACTIVATION, 0, 0, tensors={"x": mine}))
    assert changed.wait(20)
    assert mine.tolist() == [0.0] * 10
    assert got[0].tolist() == [1.0] * 10
    assert not got[0].requires_grad


def test_nothing_in_time_leaves_the_link_open(settings: WireSettings, listen, connect) -> None:
    link: Link = connect(settings, listen(settings))
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        link.receive(0.01)
    link.send(activation(batch=5))
    assert link.receive(20).batch == 5


def test_close_sends_what_is_queued(settings: WireSettings, listen, connect) -> None:
    """Both ways: the client's frames reach the server, the server's the client, then LinkClosed, every time."""
    got: list[int] = []
    done = threading.Event()

    def accept(link: Link) -> None:
        link.receive(20)
        link.trust()
        for batch in range(20):
            link.send(activation(batch=batch))
        link.close()
        done.set()

    link: Link = connect(settings, listen(settings, accept), greet=False)
    link.send(Frame(Kind.HELLO, 0, 0))
    with pytest.raises(LinkClosed, match="closed the link"):
        drain(link, got)
    assert got == list(range(20))
    assert done.wait(20)
    for _ in range(2):
        with pytest.raises(LinkClosed):
            link.receive(20)
    with pytest.raises(LinkClosed, match="cannot send the ACTIVATION frame of client 0, round 1, batch 9"):
        link.send(activation(batch=9))


def test_a_closing_client_is_heard_to_its_last_frame(settings: WireSettings, listen, connect) -> None:
    got: list[int] = []
    ended = threading.Event()

    def accept(link: Link) -> None:
        link.receive(20)
        link.trust()
        link.send(Frame(Kind.WELCOME, 0, 0))
        try:
            drain(link, got)
        finally:
            ended.set()

    link: Link = connect(settings, listen(settings, accept))
    for batch in range(20):
        link.send(activation(batch=batch))
    link.close()
    link.close()
    assert ended.wait(20)
    assert got == list(range(20))
    with pytest.raises(LinkClosed, match="closed by this side"):
        link.receive(20)
    with pytest.raises(LinkClosed, match="closed by this side"):
        link.send(activation())


def test_returning_from_accept_closes_the_link(settings: WireSettings, listen, connect) -> None:
    link: Link = connect(settings, listen(settings, lambda link: None), greet=False)
    with pytest.raises(LinkClosed):
        link.receive(20)


def test_a_failing_accept_ends_its_own_link_only(settings: WireSettings, listen, connect, caplog) -> None:
    def accept(link: Link) -> None:
        frame = link.receive()
        if frame.client == 1:
            raise RuntimeError("this head is broken")
        link.send(frame)
        link.receive()

    listener = listen(settings, accept)
    good: Link = connect(settings, listener, greet=False)
    bad: Link = connect(settings, listener, greet=False)
    bad.send(Frame(Kind.HELLO, 1, 0))
    with pytest.raises(LinkClosed):
        bad.receive(20)
    good.send(Frame(Kind.HELLO, 2, 0))
    assert good.receive(20).client == 2
    assert "this head is broken" in caplog.text


def test_closing_the_listener_ends_all_links(settings: WireSettings, listen, connect) -> None:
    listener = listen(settings)
    links: list[Link] = [connect(settings, listener) for _ in range(3)]
    listener.close()
    for link in links:
        with pytest.raises(LinkClosed):
            link.receive(20)


def test_refused_frames_leave_the_link_open(settings: WireSettings, listen, connect) -> None:
    """User case 26: too large is said before anything is sent; the sender may go on."""
    small = WireSettings(name=settings.name, tls=settings.tls, max_frame_bytes=2**17)
    link: Link = connect(small, listen(small))
    with pytest.raises(WireError, match=r"wire\.max_frame_bytes"):
        link.send(activation(values=20_000))
    with pytest.raises(WireError, match="'x'"):
        link.send(Frame(Kind.ACTIVATION, 0, 0, tensors={"x": torch.eye(2).to_sparse()}))
    link.send(activation(values=1, batch=3))
    assert link.receive(20).batch == 3


def test_three_clients_in_random_order(settings: WireSettings, listen, connect) -> None:
    """User cases 9, 10 and 17: answers carry the batch they belong to, whoever comes first."""
    listener = listen(settings)
    links: list[Link] = [connect(settings, listener) for _ in range(3)]
    generator = random.Random(0)
    sends = [(client, batch) for client in range(3) for batch in range(10)]
    generator.shuffle(sends)
    sent = {}
    for client, batch in sends:
        frame = sent[client, batch] = activation(client, batch, values=100 + batch)
        links[client].send(frame)
    for client in (2, 0, 1):
        for _ in range(10):
            answer = links[client].receive(20)
            assert answer.client == client
            expected = sent.pop((client, answer.batch))
            assert torch.equal(answer.tensors["activation"], expected.tensors["activation"])
    assert not sent


def test_many_links_at_once(settings: WireSettings, listen, connect) -> None:
    """User case 17, and more than any pool's default: 64 links, all open, all answered."""
    listener = listen(settings)
    links: list[Link] = [connect(settings, listener) for _ in range(64)]
    for client, link in enumerate(links):
        link.send(activation(client, values=1000))
    assert [link.receive(20).client for link in reversed(links)] == list(reversed(range(64)))


def test_send_from_many_threads(settings: WireSettings, listen, connect) -> None:
    link: Link = connect(settings, listen(settings))
    threads = [
        threading.Thread(target=lambda start=start: [link.send(activation(batch=start + k)) for k in range(5)])
        for start in range(0, 40, 5)
    ]
    for thread in threads:
        thread.start()
    assert sorted(link.receive(20).batch for _ in range(40)) == list(range(40))
    for thread in threads:
        thread.join()


def test_round_trip_time_is_known(settings: WireSettings, listen, connect) -> None:
    quick = WireSettings(name=settings.name, tls=settings.tls, heartbeat_s=0.05)
    link: Link = connect(quick, listen(quick))
    with pytest.raises(TimeoutError):
        link.receive(0.3)
    assert link.rtt is not None
    assert 0 <= link.rtt < 0.3
