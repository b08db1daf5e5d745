"""Devices that die half-way through a move: lost by name, and the others train and are aggregated without them."""

import threading

import pytest
from half_way import HalfWay

from dynsl_app.client import epoch
from dynsl_app.errors import DataError, LinkClosed
from dynsl_app.model.segment import is_state
from dynsl_app.server import rounds
from dynsl_app.server.director import Stay
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Endpoint, Frame, Kind, Link, Pacer
from dynsl_app.wire.transport import make_transport

VICTIM, CHUNK = 1, 4096
COMMANDED = 1
"""The batch whose reply commands the move."""

GIVES_UP = {"to the server": 1, "to the client": 3}
"""The victim's new cut, from 2."""


class OneMove(Stay):
    """Every round, the reply to the victim's second batch commands a cut."""

    def __init__(self, cut: int) -> None:
        self._cut, self._batch = cut, 0

    def opened(self, client: int, batches: int, *told: object) -> None:
        if client == VICTIM:
            self._batch = -1

    def done(self, client: int) -> None:
        self._batch += client == VICTIM

    def command(self, client: int, cut: int) -> int | None:
        return self._cut if (client, self._batch) == (VICTIM, COMMANDED) else None


class Mortal:
    """One client's transport. The victim's device dies when half of a frame with state has come."""

    def __init__(self, settings: WireSettings) -> None:
        self._transport = make_transport(settings)
        self.network = HalfWay(settings.chunk_bytes, self._die)
        self._link: Link | None = None

    def connect(self, endpoint: Endpoint, pacer: Pacer | None = None) -> "MortalLink":
        if self.network.reached.is_set():
            raise DataError("the device is gone")
        self._link = self._transport.connect(endpoint, self.network)
        return MortalLink(self._link, self.network)

    def _die(self) -> None:
        assert self._link is not None
        threading.Thread(target=self._link.close, daemon=True).start()
        raise LinkClosed("the device is gone")


class MortalLink:
    """Its link: says when the frame that matters comes next."""

    def __init__(self, link: Link, network: HalfWay) -> None:
        self._link, self._network = link, network

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)

    def send(self, frame: Frame) -> None:
        if (frame.client, frame.round, frame.kind) == (VICTIM, 1, Kind.ACTIVATION):
            if any(map(is_state, frame.tensors)):
                self._network.stop("up")
            elif frame.batch == COMMANDED:
                self._network.stop("down")
        self._link.send(frame)


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
@pytest.mark.parametrize("direction", GIVES_UP)
def test_a_device_that_dies_half_way(trial, tamper, monkeypatch: pytest.MonkeyPatch, direction: str, wire: str) -> None:
    def absent(frame: Frame, link: Link) -> Frame:
        if (frame.client, frame.round, frame.kind) == (VICTIM, 1, Kind.ACTIVATION):
            raise DataError("the device is gone")
        return frame

    settings = [f"wire={wire}", f"wire.chunk_bytes={CHUNK}", "rounds=2"]
    monkeypatch.setattr(rounds, "Stay", lambda: OneMove(GIVES_UP[direction]))
    with monkeypatch.context():
        tamper(out=absent)
        without = trial(*settings)
    monkeypatch.setattr(epoch, "make_transport", Mortal)
    outcome = trial(*settings)
    watch = outcome.watch
    (lost,) = watch.named("client_lost")
    assert (lost["client"], lost["round"]) == (VICTIM, 1)
    assert "the device is gone" in lost["reason"]
    assert watch.batches(VICTIM) == list(range(COMMANDED + 1))
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]
    first, second = watch.named("round_end")
    assert (first["clients"], first["lost"], first["moves"]) == (2, [VICTIM], 0)
    assert (second["clients"], second["lost"], second["moves"]) == (3, [], 1), "it is back, and moves"
    assert outcome.model == without.model
