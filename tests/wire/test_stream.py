"""A stream link on hand-made streams: heartbeats, silence, refusals, without any transport."""

import contextlib
import queue
import struct
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.inbox import CAPACITY
from dynsl_app.wire.protocol import Decoder, encode
from dynsl_app.wire.stream import MAX_MESSAGE, UNTRUSTED_FRAME_BYTES, StreamLink

QUICK = WireSettings(heartbeat_s=0.05)


class Peer:
    """The other end of a stream link, played by the test: what it sends, and what it gets."""

    def __init__(self, settings: WireSettings = QUICK, *, trusted: bool = True) -> None:
        self.cancelled = threading.Event()
        self.link = StreamLink("client 7", settings, trusted=trusted, cancel=self.cancelled.set)
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self.link.read, args=(iter(self._chunks.get, None),), daemon=True)
        self._reader.start()

    def send(self, frame: Frame) -> None:
        for chunk in encode(frame, 4096):
            self._chunks.put(chunk)

    def send_bytes(self, chunk: bytes) -> None:
        self._chunks.put(chunk)

    def hang_up(self) -> None:
        self._chunks.put(None)

    def frames(self) -> Iterator[Frame]:
        """What the link sends, to its end."""
        decoder = Decoder(2**30)
        for chunk in self.link.outgoing():
            frame = decoder.feed(chunk)
            if frame is not None:
                yield frame


def beat(kind: Kind, number: int, **meta: float) -> Frame:
    return Frame(kind, -1, -1, number, meta=meta)


def test_idle_links_send_pings() -> None:
    """User case 27: a sign of life every heartbeat, from the start, and between frames too."""
    peer = Peer()
    frames = peer.frames()
    begin = time.monotonic()
    assert [(frame.kind, frame.batch) for frame, _ in zip(frames, range(4), strict=False)] == [
        (Kind.PING, number) for number in (1, 2, 3, 4)
    ]
    assert time.monotonic() - begin >= 3 * QUICK.heartbeat_s
    peer.link.send(Frame(Kind.ACK, 7, 0))
    assert next(frames).kind is Kind.ACK


def test_pings_are_answered_with_the_time_they_were_held() -> None:
    peer = Peer(WireSettings(heartbeat_s=60))
    frames = peer.frames()
    assert next(frames).kind is Kind.PING
    peer.send(beat(Kind.PING, 41))
    peer.send(beat(Kind.PING, 42))
    peer.send(Frame(Kind.ACK, 7, 0))
    peer.link.receive(20)
    time.sleep(0.05)
    pong = next(frames)
    assert (pong.kind, pong.batch) == (Kind.PONG, 42), "only the newest PING counts: PONGs cannot pile up"
    held = pong.meta["held"]
    assert isinstance(held, float)
    assert 0.05 <= held < 20
    assert peer.link.bytes_received == encode(Frame(Kind.ACK, 7, 0), 4096).size, "heartbeats are not counted"


def test_rtt_is_the_least_without_the_hold_time() -> None:
    peer = Peer()
    rtts = []
    for frame, held in zip(peer.frames(), (0.0, 1e6, 0.0), strict=False):
        peer.send(beat(Kind.PONG, 999, held=0.0))
        peer.send(beat(Kind.PONG, frame.batch, held=held))
        peer.send(Frame(Kind.ACK, 7, 0))
        peer.link.receive(20)
        rtts.append(peer.link.rtt)
    assert rtts[0] is not None
    assert 0 < rtts[0] < 20
    assert rtts[1:] == [0.0, 0.0]


def test_a_pong_without_its_time_is_refused() -> None:
    peer = Peer()
    peer.send(beat(Kind.PONG, 1, held=float("nan")))
    with pytest.raises(WireError, match="PONG"):
        peer.link.receive(20)


def test_silence_closes_the_link() -> None:
    """User case 27: three missed heartbeats, however short the waits in which they are missed."""
    begin = time.monotonic()
    peer = Peer()

    def poll() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                peer.link.receive(0.02)

    with pytest.raises(LinkClosed, match="client 7 gave no sign of life for"):
        poll()
    assert 3 * QUICK.heartbeat_s <= time.monotonic() - begin < 20
    assert peer.cancelled.is_set()
    with pytest.raises(LinkClosed, match="no sign of life"):
        peer.link.send(Frame(Kind.ACK, 7, 0))


def test_any_chunk_is_a_sign_of_life() -> None:
    """A large frame over a slow link takes longer than heartbeats do."""
    peer = Peer()
    frame = Frame(Kind.ACTIVATION, 7, 0, tensors={"x": torch.zeros(10_000)})
    chunks = list(encode(frame, 4096))

    def trickle() -> None:
        for chunk in chunks:
            time.sleep(0.04)
            peer.send_bytes(chunk)

    threading.Thread(target=trickle, daemon=True).start()
    arrived = peer.link.receive(20)
    assert arrived.received is not None
    assert arrived.received.chunks == len(chunks)
    assert arrived.received.last - arrived.received.first > 3 * QUICK.heartbeat_s


def test_a_full_inbox_is_not_silence() -> None:
    """Nobody reads while a head computes for long; the peer's frames and its life are kept."""
    peer = Peer()
    for batch in range(CAPACITY + 10):
        peer.send(Frame(Kind.PROGRESS, 7, 0, batch))
    time.sleep(4 * QUICK.heartbeat_s)
    assert [peer.link.receive(20).batch for _ in range(CAPACITY + 10)] == list(range(CAPACITY + 10))


def test_strangers_may_send_small_frames_only() -> None:
    """A frame's size is bounded by little until the token is shown."""
    large = Frame(Kind.ACTIVATION, 7, 0, tensors={"x": torch.zeros(UNTRUSTED_FRAME_BYTES, dtype=torch.uint8)})
    trusted, stranger = Peer(trusted=False), Peer(trusted=False)
    trusted.link.trust()
    trusted.send(large)
    assert trusted.link.receive(20).kind is Kind.ACTIVATION
    stranger.send(large)
    with pytest.raises(WireError, match=r"oversize: the ACTIVATION frame of client 7.*at most 65536"):
        stranger.link.receive(20)


def test_what_is_refused_is_explained_to_the_peer() -> None:
    """Frames that were queued are dropped; the reason goes out, bounded, and the stream ends."""
    peer = Peer(WireSettings(heartbeat_s=60))
    peer.link.send(Frame(Kind.ACK, 7, 0))
    peer.send(Frame(Kind.PROGRESS, 7, 0))
    tensors = b'[["x","%s",[],[]]]' % (b"y" * 5000)
    head = struct.pack("<4sHHI I5iIIQ", b"DYSL", 1, 0, 0, Kind.HELLO, 7, 0, 0, 0, 0, 2, len(tensors), 0)
    peer.send_bytes(head + b"{}" + tensors)
    assert peer.link.receive(20).kind is Kind.PROGRESS
    for _ in range(2):
        with pytest.raises(WireError, match="refused what the client 7 sent: bad HELLO frame of client 7") as refused:
            peer.link.receive(20)
        assert not isinstance(refused.value, LinkClosed)
    *_, last = peer.frames()
    assert last.kind is Kind.ERROR
    message = last.meta["message"]
    assert isinstance(message, str)
    assert str(refused.value).startswith(message)
    assert len(message) == MAX_MESSAGE


def test_a_stream_that_breaks_in_mid_frame_says_where() -> None:
    """User case 30: half a frame is no frame; the reason names it."""
    peer = Peer()
    first = next(iter(encode(Frame(Kind.ACTIVATION, 7, 2, 5, tensors={"x": torch.zeros(2000)}), 4096)))
    peer.send_bytes(first)
    peer.hang_up()
    with pytest.raises(
        LinkClosed, match=r"in the middle of the ACTIVATION frame of client 7, round 2, batch 5 \(\d+ of 8000"
    ):
        peer.link.receive(20)


def test_closing_does_not_wait_for_a_peer_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynsl_app.wire.stream.LINGER_S", 0.05)
    peer = Peer(WireSettings(heartbeat_s=60))
    peer.link.send(Frame(Kind.ACK, 7, 0))
    peer.link.close()
    assert peer.cancelled.is_set()


def test_every_round_trip_is_told_once() -> None:
    peer = Peer()
    told = []
    for frame, held in zip(peer.frames(), (0.0, 1e6, 0.0), strict=False):
        peer.send(beat(Kind.PONG, 999, held=0.0))
        peer.send(beat(Kind.PONG, frame.batch, held=held))
        peer.send(Frame(Kind.ACK, 7, 0))
        peer.link.receive(20)
        told.append(peer.link.round_trips())
    assert [len(trips) for trips in told] == [1, 1, 1]
    assert told[0][0] > 0
    assert told[1] == [0.0]
    assert peer.link.round_trips() == []
