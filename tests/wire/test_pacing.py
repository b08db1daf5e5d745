"""Links through an emulated network, over every transport: what either end sees."""

import threading
import time

import pytest
import torch
from half_way import HalfWay

from dynsl_app.errors import LinkClosed
from dynsl_app.settings import WireSettings
from dynsl_app.telemetry.link import Throughput
from dynsl_app.wire.base import Accept, Frame, Kind, Link, Pacer, Transfer
from dynsl_app.wire.pacing import paced
from dynsl_app.wire.transport import make_transport

MB = 10**6


class Network:
    """A line each way; see ``base.Pacer``."""

    def __init__(self, up_Bps: float, down_Bps: float, rtt_s: float) -> None:
        self.rtt_s = rtt_s
        self._rates = {"up": up_Bps, "down": down_Bps}
        self._free = {"up": 0.0, "down": 0.0}

    def up(self, size: int, ready: float) -> float:
        return self._sent("up", size, ready)

    def down(self, size: int, ready: float) -> float:
        return self._sent("down", size, ready)

    def _sent(self, way: str, size: int, ready: float) -> float:
        self._free[way] = max(ready, self._free[way]) + size / self._rates[way]
        return self._free[way] + self.rtt_s / 2


class Behind:
    """A client behind a network, and a server that answers each frame with half a megabyte."""

    def __init__(self, settings: WireSettings, network: Pacer, accept: Accept | None = None) -> None:
        self.at_server: list[Transfer] = []
        self.server: Link | None = None
        self._listener = make_transport(settings).listen(accept or self._serve)
        self.link = make_transport(settings).connect(self._listener.endpoint, network)

    def __enter__(self) -> "Behind":
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._listener.close()

    def _serve(self, link: Link) -> None:
        self.server = link
        link.trust()
        while True:
            frame = link.receive()
            assert frame.received is not None
            self.at_server.append(frame.received)
            link.send(Frame(Kind.GRADIENT, 0, 0, frame.batch, tensors={"x": torch.zeros(MB // 2, dtype=torch.uint8)}))


def sent(batch: int = 0, size: int = MB) -> Frame:
    return Frame(Kind.ACTIVATION, 0, 0, batch, tensors={"x": torch.zeros(size, dtype=torch.uint8)})


def test_each_receiver_measures_its_direction(settings: WireSettings) -> None:
    """The estimators see the emulated rates from the chunks that came, and are not told."""
    with Behind(settings, Network(up_Bps=10 * MB, down_Bps=5 * MB, rtt_s=0.02)) as behind:
        behind.link.send(sent(size=10))
        behind.link.receive(20)
        began = time.monotonic()
        behind.link.send(sent())
        answer = behind.link.receive(20)
        took = time.monotonic() - began
    assert answer.received is not None
    up, down = Throughput("up", 1e9, settings.chunk_bytes), Throughput("down", 1e9, settings.chunk_bytes)
    for _ in range(3):  # a change is believed when it has come twice
        assert up.add(behind.at_server[1], 0)
        assert down.add(answer.received, 0)
    assert up.value == pytest.approx(10 * MB, rel=0.25)
    assert down.value == pytest.approx(5 * MB, rel=0.25)
    assert behind.at_server[1].chunks == 16
    assert took == pytest.approx(0.1 + 0.1 + 0.02, rel=0.25)


def test_latency_is_once_a_frame(settings: WireSettings) -> None:
    """Frames that are sent together, and their chunks, are under way together."""
    with Behind(settings, Network(up_Bps=1e9, down_Bps=1e9, rtt_s=0.2)) as behind:
        began = time.monotonic()
        for batch in range(10):
            behind.link.send(sent(batch, size=MB // 4))
        assert [behind.link.receive(20).batch for _ in range(10)] == list(range(10))
        assert 0.2 <= time.monotonic() - began < 0.6


def test_both_ends_know_the_round_trip(settings: WireSettings) -> None:
    quick = WireSettings(name=settings.name, tls=settings.tls, heartbeat_s=0.3)
    with Behind(quick, Network(up_Bps=1e9, down_Bps=1e9, rtt_s=0.1)) as behind:
        behind.link.send(sent())
        behind.link.receive(20)
        with pytest.raises(TimeoutError):
            behind.link.receive(0.8)
        assert behind.server is not None
        for rtt in (behind.link.rtt, behind.server.rtt):
            assert rtt is not None
            assert 0.1 <= rtt < 0.2


def test_sending_does_not_wait_for_the_network(settings: WireSettings) -> None:
    with Behind(settings, Network(up_Bps=2 * MB, down_Bps=1e9, rtt_s=0.0)) as behind:
        began = time.monotonic()
        behind.link.send(sent())
        assert time.monotonic() - began < 0.3
        behind.link.receive(20)
        assert time.monotonic() - began >= 0.5


def test_close_sends_what_is_under_way(settings: WireSettings) -> None:
    got: list[int] = []
    ended = threading.Event()

    def accept(link: Link) -> None:
        link.trust()
        try:
            while True:
                got.append(link.receive(20).batch)
        except LinkClosed:
            ended.set()

    with Behind(settings, Network(up_Bps=10 * MB, down_Bps=1e9, rtt_s=0.1), accept) as behind:
        for batch in range(5):
            behind.link.send(sent(batch, size=MB // 10))
        behind.link.close()
        assert ended.wait(20)
        with pytest.raises(LinkClosed, match="cannot send the ACTIVATION frame of client 0"):
            behind.link.send(sent())
    assert got == list(range(5))


def test_the_end_of_a_stream_comes_after_its_chunks() -> None:
    def chunks():
        yield b"one"
        yield b"two"
        raise LinkClosed("broken")

    arriving = paced(chunks(), lambda size, ready: ready + 0.01)
    assert [next(arriving), next(arriving)] == [b"one", b"two"]
    with pytest.raises(LinkClosed, match="broken"):
        next(arriving)


def test_a_frame_under_way_is_seen_by_its_receiver(settings: WireSettings) -> None:
    """What has come of it, since when; nothing before and after."""
    network = HalfWay(settings.chunk_bytes)
    with Behind(settings, network) as behind:
        behind.link.send(sent(size=10))
        behind.link.receive(20)
        server = behind.server
        assert server is not None
        assert server.incoming is None
        network.stop("up")
        began = time.monotonic()
        behind.link.send(sent(1))
        assert network.reached.wait(20)
        while (part := server.incoming) is None:  # the chunk may still be on its real way
            assert time.monotonic() < began + 20
            time.sleep(0.001)
        assert (part.bytes, part.chunks) == (settings.chunk_bytes, 1)
        assert began <= part.first == part.last <= time.monotonic()
        network.released.set()
        behind.link.receive(20)
        assert server.incoming is None
