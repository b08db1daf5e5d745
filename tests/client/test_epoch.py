"""A client's round against a server that a test plays: what it sends, and what it does not put up with."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dynsl_app.client import epoch, introduce
from dynsl_app.client.epoch import train
from dynsl_app.data.load import client_data, load_source
from dynsl_app.errors import ClientLost, DataError, LinkClosed, ModelError, WireError
from dynsl_app.model.build import build_chain
from dynsl_app.model.state import block_weights
from dynsl_app.orders import TrainOrder
from dynsl_app.settings import (
    AlgorithmSettings,
    DataSettings,
    FaultSettings,
    ModelSettings,
    NodeSettings,
    OptimizerSettings,
    Settings,
    WireSettings,
)
from dynsl_app.telemetry.report import reported
from dynsl_app.wire.base import Frame, Kind, Link
from dynsl_app.wire.transport import make_transport

NODE = NodeSettings(partition_id=1, num_partitions=3)
BATCHES = 4

Answer = Callable[[Frame], Frame]


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "clients": 3,
        "algorithm": AlgorithmSettings(name="splitfed_v1"),
        "model": ModelSettings(name="mlp"),
        "data": DataSettings(name="synthetic", shape=(1, 4, 4), samples=100, limit=36, batch=3),
        "optimizer": OptimizerSettings(name="sgd", lr=0.1),
        "wire": WireSettings(name="inprocess"),
        "faults": FaultSettings(connect_s=1, reconnect_s=1, batch_s=5),
    }
    return Settings(**given | changes)


class Played:
    """A server that answers by a function and keeps what came."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.frames: list[Frame] = []
        self._listener = make_transport(WireSettings(name="inprocess")).listen(self._serve)

    def order(self, cut: int, run: Settings | None = None, **changes: Any) -> TrainOrder:
        """Client 1's order."""
        run = run or settings()
        source = load_source(run.data)
        chain = build_chain(run.model, source.spec, run.seed)
        weights = {name: value for block in chain.span(0, cut) for name, value in block_weights(block).items()}
        given: dict[str, Any] = {"weights": weights, "optimizer": {}, "token": "secret"}
        return TrainOrder(
            client=1,
            round=1,
            cut=cut,
            boundary=len(chain),
            endpoint=self._listener.endpoint,
            settings=run,
            **given | changes,
        )

    def close(self) -> None:
        self._listener.close()

    def _serve(self, link: Link) -> None:
        with suppress(LinkClosed):
            while True:
                self.frames.append(link.receive())
                link.send(self._answer(self.frames[-1]))


@pytest.fixture
def play() -> Iterator[Callable[[Answer], Played]]:
    started: list[Played] = []

    def start(answer: Answer) -> Played:
        started.append(Played(answer))
        return started[-1]

    yield start
    for server in started:
        server.close()


def reply(frame: Frame, change: Callable[[Tensor], Tensor] = torch.zeros_like, **meta: int) -> Frame:
    """What a server answers; the gradient is made of the activation."""
    match frame.kind:
        case Kind.HELLO:
            return Frame(Kind.WELCOME, 1, 1, meta={"next": 0})
        case Kind.ACTIVATION:
            tensors = {"gradient": change(frame.tensors["activation"])}
            return Frame(Kind.GRADIENT, 1, 1, frame.batch, meta=meta, tensors=tensors)
        case _:
            return Frame(Kind.ACK, 1, 1, frame.batch, meta=meta)


def test_sends_its_batches_in_order_and_then_the_end(play) -> None:
    """User case 9; labels go with their samples."""
    server = play(reply)
    done = train(server.order(2), NODE)
    expected = [(Kind.HELLO, 0), *[(Kind.ACTIVATION, batch) for batch in range(BATCHES)], (Kind.END, BATCHES)]
    assert [(frame.kind, frame.batch) for frame in server.frames] == expected
    assert {(frame.client, frame.round) for frame in server.frames} == {(1, 1)}
    run = settings()
    data = client_data(load_source(run.data), run.data, client=1, clients=3, seed=run.seed)
    targets = [y for _, y in data.epoch(1, 0)]
    assert all(f.tensors["target"].equal(y) for f, y in zip(server.frames[1:-1], targets, strict=True))
    assert (done.samples, done.cut) == (12, 2)


def test_a_zero_gradient_changes_nothing_and_another_one_does(play) -> None:
    server = play(reply)
    order = server.order(2)
    assert all(order.weights[name].equal(value) for name, value in train(order, NODE).weights.items())
    other = play(lambda frame: reply(frame, torch.ones_like))
    trained = train(other.order(2), NODE).weights
    assert not all(order.weights[name].equal(value) for name, value in trained.items())


BAD_GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda a: a[:, 1:],
    "samples": lambda a: a[1:],
    "dtype": lambda a: a.double(),
}


@pytest.mark.parametrize("what", BAD_GRADIENTS)
def test_a_gradient_that_does_not_fit_is_refused(play, what: str) -> None:
    server = play(lambda frame: reply(frame, BAD_GRADIENTS[what] if frame.batch == 2 else torch.zeros_like))
    with pytest.raises(WireError, match=r"client 1, batch 2: the server's gradient does not fit the activation"):
        train(server.order(2), NODE)


def test_an_answer_without_gradient_is_refused(play) -> None:
    server = play(lambda frame: Frame(Kind.ACK, 1, 1, frame.batch) if frame.kind is Kind.ACTIVATION else reply(frame))
    with pytest.raises(WireError, match="client 1, batch 0: the server's gradient does not fit"):
        train(server.order(2), NODE)


@pytest.mark.parametrize("generation", [0, 2])
def test_a_move_out_of_turn_is_refused(play, generation: int) -> None:
    server = play(lambda frame: reply(frame, cut=1, generation=generation))
    with pytest.raises(WireError, match=f"cut 1 of placement {generation} was commanded at placement 0"):
        train(server.order(2), NODE)


def test_a_move_without_the_blocks_is_refused(play) -> None:
    server = play(lambda frame: reply(frame, cut=3, generation=1))
    with pytest.raises(ModelError):
        train(server.order(2), NODE)


def test_a_loss_that_is_not_finite_ends_a_local_client_by_name(play) -> None:
    server = play(reply)
    with pytest.raises(ClientLost, match=r"client 1, batch \d: its loss is not finite; lower optimizer.lr"):
        train(server.order(4, settings(optimizer=OptimizerSettings(name="sgd", lr=1e30))), NODE)


def test_a_local_client_tells_its_progress(play) -> None:
    server = play(reply)
    train(server.order(4), NODE)
    told = [frame for frame in server.frames if frame.kind is Kind.PROGRESS]
    assert [frame.batch for frame in told] == list(range(BATCHES))
    assert all(frame.meta["samples"] == 3 and not frame.tensors for frame in told)


def test_a_local_client_tells_what_it_measured_with_the_batch_itself(play) -> None:
    server = play(reply)
    train(server.order(4, settings(algorithm=AlgorithmSettings(name="dynsl"))), NODE)
    told = [reported(frame) for frame in server.frames if frame.kind is Kind.PROGRESS]
    assert [list(one.block_s) for one in told if one is not None] == [[1, 2, 3, 4]] * BATCHES


@pytest.mark.parametrize(("share", "local"), [(math.inf, 1), (0.0, 2)])
def test_a_local_client_moves_at_once_where_answers_come_soon(
    play, monkeypatch: pytest.MonkeyPatch, share: float, local: int
) -> None:
    """Else with the answer that it reads one batch later. A batch is told of once, wherever it was."""
    monkeypatch.setattr(epoch, "PROMPT", share)

    def answer(frame: Frame) -> Frame:
        commanding = {"cut": 2, "generation": 1} if (frame.kind, frame.batch) == (Kind.PROGRESS, 0) else {}
        return reply(frame, **commanding)

    server = play(answer)
    assert train(server.order(4, settings(algorithm=AlgorithmSettings(name="dynsl"))), NODE).cut == 2
    frames = server.frames[1:-1]
    assert [frame.kind for frame in frames] == [Kind.PROGRESS] * local + [Kind.ACTIVATION] * (BATCHES - local)
    blocks = [len(one.block_s) if (one := reported(frame)) else 0 for frame in frames]
    assert blocks == [4] * local + [0] + [2] * (BATCHES - local - 1)


def test_a_device_that_cannot_hold_the_whole_model_counts_instead_of_measuring(
    play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it shall train may fit all the same."""

    def too_large(*_: object, **__: object) -> None:
        raise ModelError("mlp does not fit into this device's memory")

    monkeypatch.setattr(introduce, "measure", too_large)
    server = play(reply)
    assert train(server.order(2, profile=True), NODE).samples == 12
    assert "profile" in server.frames[0].tensors
    assert "its blocks are counted and not measured: mlp does not fit" in caplog.text


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_local_client_probes_its_link_when_it_is_asked(play, batch: int) -> None:
    """With the next frame, waiting for the bytes to come back; what it saw of that goes with the frame after it."""
    size = 5000

    def answer(frame: Frame) -> Frame:
        asking = {"probe": size} if (frame.kind, frame.batch) == (Kind.PROGRESS, batch) else {}
        probe = {name: value for name, value in frame.tensors.items() if name == "probe"}
        return replace(reply(frame, **asking), tensors=probe)

    run = settings(algorithm=AlgorithmSettings(name="dynsl"))
    server = play(answer)
    done = train(server.order(4, run), NODE)
    told = [frame for frame in server.frames if frame.kind is Kind.PROGRESS]
    assert [frame.batch for frame in told if "probe" in frame.tensors] == [batch + 1]
    probe = told[batch + 1].tensors["probe"]
    assert (probe.dtype, probe.shape) == (torch.uint8, (size,))
    assert len(probe.unique()) > 200, "nothing on the way can shorten it"
    heard = [report for frame in told if (report := reported(frame)) is not None and report.down is not None]
    assert len(heard) == (batch + 2 < BATCHES)
    for report in heard:
        assert report.down is not None
        assert report.down.bytes > size
        assert report.wait_s is not None
        assert 0 < report.wait_s <= done.metrics["wait_s"]
    plain = train(play(reply).order(4, run), NODE)
    assert all(plain.weights[name].equal(value) for name, value in done.weights.items())


def test_a_probe_can_ask_for_the_next_and_command_a_move(play) -> None:
    """Its answer is read at once, so what that says holds from the next batch on."""

    def answer(frame: Frame) -> Frame:
        match (frame.kind, frame.batch):
            case (Kind.PROGRESS, 0 | 1):
                return reply(frame, probe=100)
            case (Kind.PROGRESS, 2):
                return reply(frame, cut=2, generation=1)
            case _:
                return reply(frame)

    server = play(answer)
    assert train(server.order(4), NODE).cut == 2
    kinds = [(frame.kind, "probe" in frame.tensors) for frame in server.frames[1:-1]]
    progress, activation = Kind.PROGRESS, Kind.ACTIVATION
    assert kinds == [(progress, False), (progress, True), (progress, True), (activation, False)]


def test_a_probe_of_nonsense_is_refused(play) -> None:
    server = play(lambda frame: reply(frame, probe=2**30))
    with pytest.raises(WireError, match="client 1, batch 0: a probe of 1073741824 bytes was asked for"):
        train(server.order(4), NODE)


def test_weights_that_do_not_fit_are_refused_before_a_stream_is_opened(play) -> None:
    server = play(reply)
    order = server.order(2)
    name = next(iter(order.weights))
    with pytest.raises(ModelError):
        train(server.order(2, weights={**order.weights, name: torch.zeros(1)}), NODE)
    with pytest.raises(ModelError):
        train(server.order(2, weights={}), NODE)
    assert not server.frames


def test_missing_data_are_named_before_a_stream_is_opened(play, tmp_path) -> None:
    server = play(reply)
    order = server.order(2)
    elsewhere = settings(data=DataSettings(name="image_folder", root=str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match="nowhere"):
        train(TrainOrder(**{**vars(order), "settings": elsewhere}), NODE)
    assert not server.frames


def test_the_stream_is_closed_however_the_round_ends(play) -> None:
    ended = threading.Event()

    class Watched(Played):
        def _serve(self, link: Link) -> None:
            super()._serve(link)
            ended.set()

    for change in (torch.zeros_like, lambda a: a[1:]):
        ended.clear()
        server = Watched(lambda frame, change=change: reply(frame, change))
        with suppress(WireError):
            train(server.order(2), NODE)
        assert ended.wait(20)
        server.close()
