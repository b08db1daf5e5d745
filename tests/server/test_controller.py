"""One round on the data plane, with clients played by hand: who waits for whom, and who is lost by what."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from dynsl_app.server import plane
from dynsl_app.server.director import Stay
from dynsl_app.server.heads import Heads
from dynsl_app.server.session import State
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.inprocess import InprocessLink


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.reached.set()
        assert self.opened.wait(20)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> Gate:
    """The head computes client 0's batch 1 until the gate opens."""
    backward = Heads.backward

    def hold(self, works):
        if (works[0].key.client, works[0].key.batch) == (0, 1):
            gate.hold()
        return backward(self, works)

    monkeypatch.setattr(Heads, "backward", hold)
    return gate


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
def test_other_heads_run_while_one_computes(rig, held: Gate, wire: str) -> None:
    server = rig(workers=2, wire=wire)
    slow = server.join(0)
    slow.send(server.batch(0, 0))
    slow.receive(20)
    slow.send(server.batch(0, 1))
    assert held.reached.wait(20)
    for client in (1, 2):
        server.train(server.join(client), client)
    assert not server.controller.settled([1, 2])
    held.opened.set()
    assert slow.receive(20).batch == 1
    server.train(slow, 0, first=2)
    server.settle(0, 1, 2)


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
def test_bytes_move_while_the_only_worker_computes(rig, held: Gate, wire: str) -> None:
    """Streams open, batches arrive and are queued: nothing is computed on the threads that receive."""
    server = rig(workers=1, wire=wire)
    slow = server.join(0)
    slow.send(server.batch(0, 0))
    slow.receive(20)
    slow.send(server.batch(0, 1))
    assert held.reached.wait(20)
    links = {client: server.join(client) for client in (1, 2)}
    for client, link in links.items():
        link.send(server.batch(client, 0))
        link.send(Frame(Kind.ERROR, client, 1, meta={"message": "read after its batch"}))
        # The frame behind it was acted on, so the batch had been received and queued.
        server.sink.wait("client_lost", client=client, reason="read after its batch")
        assert server.controller.sessions[client].pending
    assert not held.opened.is_set()
    held.opened.set()
    assert slow.receive(20).batch == 1


def test_no_reply_overtakes_the_welcome(rig, held: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes back while its batch is computed is welcomed first, then answered."""
    server = rig()
    first = server.join(0)
    first.send(server.batch(0, 0))
    first.receive(20)
    first.send(server.batch(0, 1))
    assert held.reached.wait(20)
    first.close()
    server.sink.wait("stream_lost", client=0)

    def finish_the_batch(link: InprocessLink) -> None:
        held.opened.set()
        server.sink.wait("step", members=[[0, 1, 2]])

    # Called when the server is about to take the new link.
    monkeypatch.setattr(InprocessLink, "trust", finish_the_batch)
    again = server.greet(0)
    assert again.receive(20).kind is Kind.WELCOME
    again.send(server.batch(0, 1))
    answer = again.receive(20)
    assert (answer.kind, answer.batch) == (Kind.GRADIENT, 1)
    server.train(again, 0, first=2)
    assert server.controller.sessions[0].samples == 6


def test_heads_are_made_once_for_a_client_that_tries_twice(rig, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Its first try is still being admitted when the second comes: the second must not make its blocks anew."""
    server = rig()
    made: list[int] = []

    def open_heads(client: int) -> None:
        made.append(client)
        gate.hold()
        server.open_heads(client)

    monkeypatch.setattr(server.controller, "_open_heads", open_heads)
    server.greet(0)
    assert gate.reached.wait(20)
    second = server.greet(0)
    gate.opened.set()
    welcome = second.receive(20)
    assert welcome.kind is Kind.WELCOME
    server.train(second, 0)
    assert made == [0]


def test_a_client_given_up_while_it_is_admitted_stays_lost(rig, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    server = rig()

    def open_heads(client: int) -> None:
        gate.hold()
        server.open_heads(client)

    monkeypatch.setattr(server.controller, "_open_heads", open_heads)
    server.greet(0)
    assert gate.reached.wait(20)
    server.controller.fail(0, "its process is gone")
    gate.opened.set()
    refused = server.greet(0).receive(20)
    assert refused.kind is Kind.ERROR
    assert refused.meta["message"] == "client 0: no longer part of round 1: its process is gone"
    assert server.controller.sessions[0].state is State.LOST
    assert not server.sink.named("stream_open")


def test_a_fault_while_a_client_is_admitted_is_its_own(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig()

    def broken(client: int) -> None:
        raise KeyError("block 3")

    with monkeypatch.context() as patch:
        patch.setattr(server.controller, "_open_heads", broken)
        server.greet(0)
        reason = server.sink.wait("client_lost", client=0)["reason"]
    assert reason == "the server failed on what it sent: KeyError: 'block 3'"
    server.train(server.join(1), 1)


def test_a_fault_in_a_step_loses_its_group_and_not_the_worker(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig()
    step = Heads.step

    def broken(self, works) -> None:
        if works[0].key.client == 0:
            raise RuntimeError("out of memory")
        step(self, works)

    monkeypatch.setattr(Heads, "step", broken)
    server.join(0).send(server.batch(0, 0))
    reason = server.sink.wait("client_lost", client=0)["reason"]
    assert reason == "batch 0: the server failed on it: RuntimeError: out of memory"
    for client in (1, 2):
        server.train(server.join(client), client)
    server.settle(1, 2)


def test_nobody_waits_for_a_lost_client_to_hang_up(rig, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Closing a link waits until its peer has read the reason, and a stuck peer never does."""
    server = rig()
    stuck = server.join(0)
    close = InprocessLink.close

    def slow_close(link: InprocessLink) -> None:
        if link.other is stuck:
            gate.hold()
        close(link)

    with monkeypatch.context() as patch:
        patch.setattr(InprocessLink, "close", slow_close)
        stuck.send(server.batch(0, 1))  # out of order: it is lost by that, in its link's own thread
        server.sink.wait("client_lost", client=0)
        silent = server.join(1)
        stuck = silent
        server.controller.fail(1, "silent")  # by whoever watches the deadlines
        assert gate.reached.wait(20)
        server.train(server.join(2), 2)
        gate.opened.set()


def test_strangers_are_refused_and_harm_nobody(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig()
    own = server.join(0)
    for frame, reason in [
        (server.batch(0, 0), "began with ACTIVATION; HELLO with a token comes first"),
        (Frame(Kind.HELLO, 7, 1, meta={"token": "token 0", "batches": 3}), "client 7: wrong token for round 1"),
        (Frame(Kind.HELLO, 0, 1, meta={"token": "token 1", "batches": 3}), "client 0: wrong token for round 1"),
        (Frame(Kind.HELLO, 0, 1, meta={"batches": 3}), "client 0: wrong token for round 1"),
        (Frame(Kind.HELLO, 0, 2, meta={"token": "token 0", "batches": 3}), "client 0: round 2 is not running"),
        (Frame(Kind.HELLO, 1, 1, meta={"token": "token 1", "batches": 0}), "client 1: it has no batches in round 1"),
        (Frame(Kind.HELLO, 1, 1, meta={"token": "token 1", "batches": "3"}), "client 1: it has no batches in round 1"),
    ]:
        stranger = server.connect()
        stranger.send(frame)
        answer = stranger.receive(20)
        assert answer.kind is Kind.ERROR
        assert reason in str(answer.meta["message"])
    assert len(server.sink.named("warning")) == 7
    monkeypatch.setattr(plane, "_HELLO_S", 0.1)
    assert "said nothing for 0.1 s" in str(server.connect().receive(20).meta["message"])
    server.train(own, 0)
    assert not server.sink.named("client_lost")


def test_a_second_stream_takes_the_place_of_the_first(rig) -> None:
    """User case 28: the server may not have noticed yet that the first is gone."""
    server = rig()
    first = server.join(0)
    first.send(server.batch(0, 0))
    gradient = first.receive(20).tensors["gradient"]
    second = server.join(0)
    server.sink.wait("stream_resumed", client=0, next=1)
    assert server.sink.named("stream_lost", client=0)
    second.send(server.batch(0, 0))
    assert second.receive(20).tensors["gradient"].equal(gradient)
    server.train(second, 0, first=1)
    assert server.controller.sessions[0].samples == 6


def test_traffic_counts_all_links_of_a_client(rig) -> None:
    server = rig()
    first = server.join(0)
    first.send(server.batch(0, 0))
    first.receive(20)
    second = server.join(0)
    server.train(second, 0, first=1)
    up, down = server.controller.sessions[0].traffic
    assert up == first.bytes_sent + second.bytes_sent
    assert down == first.bytes_received + second.bytes_received


class Clerk(Stay):
    """Stays, and keeps what was served."""

    def __init__(self) -> None:
        self.groups: list[tuple[int | None, list[tuple[int, int]]]] = []

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        assert 0 < service_s < 20
        assert 0 <= wait_s < 20
        self.groups.append((head, list(entries)))


@pytest.mark.parametrize(("algorithm", "group"), [("psl", (0, [(2, 2)] * 3)), ("splitfed_v1", (None, [(2, 2)]))])
def test_service_times_are_told_of_shared_and_private_heads(rig, algorithm: str, group: tuple) -> None:
    """Each member of a group as its cut and its samples."""
    director = Clerk()
    server = rig(algorithm=algorithm, director=director)
    links = {client: server.join(client) for client in range(3)}
    for client, link in links.items():
        link.send(server.batch(client, 0))
    for link in links.values():
        assert link.receive(20).batch == 0
    server.sink.wait("step")
    server.controller.close()  # the workers have told all there is to tell
    assert director.groups == [group] * (3 // len(group[1]))
