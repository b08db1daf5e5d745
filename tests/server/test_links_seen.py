"""What the controller learns of links beside batches: probes of fully local clients, heartbeats, frames under way."""

from types import SimpleNamespace

import pytest
import torch
from half_way import HalfWay

from dynsl_app.server import controller
from dynsl_app.server.director import Measured, Stay
from dynsl_app.telemetry.report import report
from dynsl_app.wire.base import Frame, Kind, Transfer

CHUNK = 4096
SIZE = 500


class Listener(Stay):
    """Stays, keeps what it is told, and asks for a probe whenever it can."""

    def __init__(self) -> None:
        self.measurements: list[Measured] = []
        self.uploads: list[Transfer] = []
        self.beats: list[tuple[int, float]] = []
        self.looks: list[tuple[int, Transfer, float]] = []

    def probe(self, client: int) -> int:
        return SIZE

    def measured(self, client: int, measured: Measured) -> None:
        self.measurements.append(measured)

    def arrived(self, client: int, up: Transfer) -> None:
        self.uploads.append(up)

    def beat(self, client: int, seconds: float) -> None:
        self.beats.append((client, seconds))

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        self.looks.append((client, part, seconds))


def progress(batch: int, probe: int = 0, *, wait_s: float = 0.0, down: Transfer | None = None) -> Frame:
    told = report({1: 0.5}, wait_s, down)
    meta = {"samples": 2, "loss": 1.5, "correct": 1, **told.meta}
    tensors = {**told.tensors, **({"probe": torch.arange(probe).to(torch.uint8)} if probe else {})}
    return Frame(Kind.PROGRESS, 0, 1, batch, meta=meta, tensors=tensors)


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
def test_a_probe_is_asked_for_sent_back_and_measured(rig, wire: str) -> None:
    director = Listener()
    server = rig(algorithm="fedavg", director=director, wire=wire)
    link = server.join(0)
    link.send(progress(0))
    ask = link.receive(20)
    assert (ask.kind, ask.meta, dict(ask.tensors)) == (Kind.ACK, {"probe": SIZE}, {})
    assert not director.uploads
    link.send(progress(1, SIZE))
    back = link.receive(20)
    assert back.tensors["probe"].equal(torch.arange(SIZE).to(torch.uint8))
    assert "probe" not in back.meta, "what a probe with the last batch would tell comes with no frame"
    assert back.received is not None
    link.send(progress(2, wait_s=10.0, down=back.received))
    link.receive(20)
    link.send(Frame(Kind.END, 0, 1, 3))
    assert link.receive(20).kind is Kind.ACK
    *alone, exchange = director.measurements
    assert alone == [Measured({1: 0.5})] * 2
    assert exchange.block_s == {1: 0.5}
    assert exchange.up is director.uploads[0]
    assert exchange.up.bytes > SIZE
    assert exchange.down is not None
    assert exchange.down.bytes == back.received.bytes
    held_s = 10.0 - exchange.away_s
    assert 0 <= held_s < 10


def test_a_probe_sent_again_is_answered_again(rig) -> None:
    """User case 28, with a probe on its way each way: counted once, and the answer is the same."""
    director = Listener()
    server = rig(algorithm="fedavg", director=director)
    first = server.join(0)
    first.send(progress(0))
    first.receive(20)
    first.send(progress(1, SIZE))
    answer = first.receive(20)
    second = server.join(0)
    second.send(progress(1, SIZE))
    again = second.receive(20)
    assert (again.meta, again.batch) == (answer.meta, answer.batch)
    assert again.tensors["probe"].equal(answer.tensors["probe"])
    assert len(director.uploads) == 1
    second.send(progress(2))
    assert second.receive(20).batch == 2
    assert server.controller.sessions[0].samples == 6


@pytest.mark.parametrize(("batch", "size"), [(1, SIZE + 1), (0, SIZE)])
def test_a_probe_of_another_size_is_lost_by_name(rig, batch: int, size: int) -> None:
    server = rig(algorithm="fedavg", director=Listener())
    link = server.join(0)
    for before in range(batch):
        link.send(progress(before))
        link.receive(20)
    link.send(progress(batch, size))
    reason = server.sink.wait("client_lost", client=0)["reason"]
    assert f"client 0, batch {batch}: its probe is torch.uint8[{size}]" in reason


def test_a_client_that_does_not_know_probes_trains_on(rig) -> None:
    server = rig(algorithm="fedavg", director=Listener())
    link = server.join(0)
    for batch in range(3):
        link.send(progress(batch))
        assert link.receive(20).batch == batch
    link.send(Frame(Kind.END, 0, 1, 3))
    assert link.receive(20).kind is Kind.ACK


def test_the_watch_tells_of_heartbeats_and_frames_under_way(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still between looks."""
    director, network = Listener(), HalfWay(CHUNK)
    server = rig(director=director, chunk_bytes=CHUNK)
    link = server.join(0, network)
    server.controller.watch([])
    assert director.beats == [(0, 0.0)]
    assert not director.looks
    network.stop("up")
    frame = server.batch(0, 0)
    link.send(Frame(frame.kind, 0, 1, 0, tensors={**frame.tensors, "more": torch.zeros(3 * CHUNK)}))
    assert network.reached.wait(20)
    server_end = server.controller.sessions[0].link
    assert server_end is not None
    part = server_end.incoming
    assert part is not None
    for seconds in (0.5, 60.0):
        with monkeypatch.context() as patch:
            patch.setattr(controller, "time", SimpleNamespace(monotonic=lambda s=seconds: part.first + s))
            server.controller.watch([])
    looked = [(client, seen.bytes, pytest.approx(seconds)) for client, seen, seconds in director.looks]
    assert looked == [(0, CHUNK, 0.5), (0, CHUNK, 60.0)]
    network.released.set()
    assert link.receive(20).batch == 0
    server.controller.watch([])
    assert len(director.looks) == 2
    assert [up.chunks for up in director.uploads] == [13]
