"""A move stops nobody else: while one client's state is held half-way, the others train; on a clock set by the test."""

import pytest
import torch
from half_way import HalfWay

from dynsl_app.client.prefix import Prefix
from dynsl_app.model.build import build_chain
from dynsl_app.server import controller
from dynsl_app.server.director import Stay
from dynsl_app.wire.base import Frame, Kind

CHUNK = 4096
BATCHES = 3
TRANSFER_S = 7.0


class Clock:
    """The controller's clock; it stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class OneMove(Stay):
    """The reply to client 0's first batch commands a cut."""

    def __init__(self, cut: int) -> None:
        self._cut: int | None = cut

    def command(self, client: int, cut: int) -> int | None:
        if client:
            return None
        commanded, self._cut = self._cut, None
        return commanded


def activation(server, batch: int, cut: int, generation: int, state=None) -> Frame:
    tensors = {"activation": torch.rand(2, *server.shapes[cut - 1].shape), "target": torch.tensor([1, 2])}
    return Frame(Kind.ACTIVATION, 0, 1, batch, generation=generation, tensors={**tensors, **(state or {})})


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_while_state_is_under_way_the_others_train(rig, monkeypatch: pytest.MonkeyPatch, way: str, wire: str) -> None:
    """Client 0 gives a block up, or gets one back. It loses its own transfer, and the others not a moment."""
    clock, network = Clock(), HalfWay(CHUNK)
    monkeypatch.setattr(controller, "time", clock)
    before, after = 2, (1 if way == "up" else 3)
    server = rig(wire=wire, workers=1, chunk_bytes=CHUNK, director=OneMove(after))
    assert server.plan.cuts[0] == before
    mover = server.join(0, network)
    if way == "down":
        network.stop("down")
    mover.send(activation(server, 0, before, 0))
    state = {}
    if way == "up":
        assert mover.receive(20).meta["cut"] == after
        chain = build_chain(server.settings.model, server.spec, 0)
        state = Prefix(chain, before, server.settings.optimizer).move(after, 1, {})
        network.stop("up")
        mover.send(activation(server, 1, after, 1, state))
    assert network.reached.wait(20)

    for client in (1, 2):
        server.train(server.join(client), client)
    assert not server.sink.named("move")
    clock.now += TRANSFER_S
    network.released.set()

    if way == "down":
        reply = mover.receive(20)
        assert reply.meta["cut"] == after
        assert len(reply.tensors) > 1
        mover.send(activation(server, 1, after, 1))
    assert mover.receive(20).batch == 1
    for batch in range(2, BATCHES):
        mover.send(activation(server, batch, after, 1))
        assert mover.receive(20).batch == batch
    mover.send(Frame(Kind.END, 0, 1, BATCHES))
    assert mover.receive(20).kind is Kind.ACK
    server.settle(0, 1, 2)

    sessions = server.controller.sessions
    lost_s = {client: session.ended_at - session.started_at for client, session in sessions.items()}
    assert lost_s == {0: TRANSFER_S, 1: 0.0, 2: 0.0}
    steps = [member for event in server.sink.named("step") for member in event["members"]]
    assert [batch for client, batch, _ in steps if client == 0] == list(range(BATCHES))
    assert {client: session.samples for client, session in sessions.items()} == {0: 6, 1: 6, 2: 6}
    (move,) = server.sink.named("move")
    assert (move["client"], move["batch"], move["cut"]) == (0, 1, after)
    assert not server.sink.named("client_lost")
