"""Clients and servers that die or misbehave on a real wire: named, nobody else harmed, nothing lost on resuming."""

import csv
import dataclasses
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.client.epoch import train
from dynsl_app.client.stream import hello
from dynsl_app.compose import compose
from dynsl_app.inprocess import InProcessControl
from dynsl_app.orders import Failure, Order, Reply, TrainOrder
from dynsl_app.run import run
from dynsl_app.settings import NodeSettings
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.wire.base import Kind
from dynsl_app.wire.stream import StreamLink
from dynsl_app.wire.transport import make_transport

DYNSL = str(Path(sys.executable).parent / "dynsl")

SMALL = [
    "model=mlp",
    "data=synthetic",
    "data.shape=[1,8,8]",
    "data.samples=120",
    "data.batch=4",
    "rounds=2",
    "logging.console=off",
]


def events_of(folder: Path) -> list[Mapping[str, Any]]:
    return list(read_events(folder / "events.jsonl"))


def train_run(folder: Path, control: InProcessControl, *overrides: str) -> list[Mapping[str, Any]]:
    run(compose([*SMALL, *overrides, f"run_dir={folder}"]), control)
    return events_of(folder)


def lost(events: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    return {event["client"]: event["reason"] for event in events if event["event"] == "client_lost"}


def _client_process(pickled: bytes, sender: Connection) -> None:
    order: TrainOrder = pickle.loads(pickled)
    reply = train(order, NodeSettings(partition_id=order.client, num_partitions=order.settings.clients))
    sender.send_bytes(pickle.dumps(reply))


class Processes(InProcessControl):
    """Runs one client in a process of its own; the others are threads."""

    def __init__(self, clients: int, victim: int) -> None:
        super().__init__(clients)
        self._victim = victim
        self.process: multiprocessing.process.BaseProcess | None = None

    def push(self, orders: Sequence[Order]) -> None:
        super().push([order for order in orders if order.client != self._victim])
        for order in orders:
            if order.client == self._victim:
                receiver, sender = multiprocessing.Pipe(duplex=False)
                context = multiprocessing.get_context("spawn")
                self.process = context.Process(target=_client_process, args=(pickle.dumps(order), sender))
                self.process.start()
                sender.close()
                threading.Thread(target=self._collect, args=(order.client, receiver), daemon=True).start()

    def _collect(self, client: int, receiver: Connection) -> None:
        try:
            self._replies.put(pickle.loads(receiver.recv_bytes()))
        except EOFError:
            self._replies.put(Failure(client, "its process is gone"))


@pytest.mark.parametrize("algorithm", ["splitfed_v1", "psl"])
def test_a_client_killed_in_mid_epoch(tmp_path: Path, algorithm: str) -> None:
    """User cases 17, 20: three others train on, with a shared head in lockstep too."""
    control, victim = Processes(4, victim=2), 2

    def kill() -> None:
        path = tmp_path / "run" / "events.jsonl"
        while True:
            if path.exists():
                for event in read_events(path):
                    if event["event"] == "step" and any(c == victim and b >= 2 for c, b, _ in event["members"]):
                        assert control.process is not None
                        assert control.process.pid is not None
                        os.kill(control.process.pid, signal.SIGKILL)
                        return
            time.sleep(0.01)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    events = train_run(
        tmp_path / "run", control, "clients=4", f"algorithm={algorithm}", "rounds=1", "faults.reconnect_s=1"
    )
    killer.join()
    assert control.process is not None
    control.process.join()
    assert control.process.exitcode == -signal.SIGKILL
    assert lost(events).keys() == {victim}
    (end,) = [event for event in events if event["event"] == "round_end"]
    assert (end["clients"], end["lost"]) == (3, [victim])
    done = {event["client"] for event in events if event["event"] == "client_done"}
    assert done == {0, 1, 3}


class Impostor(InProcessControl):
    """Client 1 does something else with its order."""

    def __init__(self, clients: int, act: Callable[[TrainOrder], Reply]) -> None:
        super().__init__(clients)
        self._act = act

    def push(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, TrainOrder) and order.client == 1:
                threading.Thread(target=self._misbehave, args=(order,), daemon=True).start()
            else:
                super().push([order])

    def _misbehave(self, order: TrainOrder) -> None:
        try:
            self._replies.put(self._act(order))
        except Exception as error:
            self._replies.put(Failure(order.client, f"{type(error).__name__}: {error}"))


def node(order: TrainOrder) -> NodeSettings:
    return NodeSettings(partition_id=order.client, num_partitions=order.settings.clients)


def test_a_bad_token_is_refused_and_named(tmp_path: Path) -> None:
    def act(order: TrainOrder) -> Reply:
        return train(dataclasses.replace(order, token="guessed"), node(order))

    events = train_run(tmp_path / "run", Impostor(3, act), "clients=3")
    assert "wrong token" in lost(events)[1]
    assert [(end["clients"], end["lost"]) for end in events if end["event"] == "round_end"] == [(2, [1])] * 2
    assert any("wrong token" in event["message"] for event in events if event["event"] == "warning")


CHUNKS = {
    "garbage": b"\x00" * 64,
    "other version": b"DYSL" + (99).to_bytes(2, "little") + b"\x00" * 60,
    "truncated": b"DYSL\x01\x00\x00\x00",
}


@pytest.mark.parametrize("what", CHUNKS)
def test_a_corrupt_frame_ends_only_its_own_stream(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(order: TrainOrder) -> Reply:
        link = make_transport(order.settings.wire).connect(order.endpoint)
        link.send(hello(order.client, order.round, order.token, 3, 9))
        assert link.receive(20).kind is Kind.WELCOME
        assert isinstance(link, StreamLink)
        send_raw(link, CHUNKS[what])
        answer = link.receive(20)
        assert answer.kind is Kind.ERROR
        link.close()
        return Failure(order.client, f"told: {answer.meta['message']}")

    events = train_run(tmp_path / "run", Impostor(3, act), "clients=3", "rounds=1")
    assert "not acceptable" in lost(events)[1]
    (end,) = [event for event in events if event["event"] == "round_end"]
    assert (end["clients"], end["lost"]) == (2, [1])


def send_raw(link: StreamLink, chunk: bytes) -> None:
    """Put bytes on the wire that no encoder makes: the sender takes whatever iterates over chunks."""
    link._queue.put(Raw([chunk]))  # type: ignore[arg-type]


class Raw(list[bytes]):
    """Chunks as they are."""

    @property
    def size(self) -> int:
        return sum(map(len, self))


def run_command(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [DYNSL, *overrides, f"run_dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def curve(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "metrics.csv").open() as file:
        return [(row["round"], row["train_loss"], row["loss"], row["accuracy"]) for row in csv.DictReader(file)]


def test_a_server_killed_with_9_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    """User cases 13, 38: optimizer state that outlives a round included."""
    settings = [*SMALL, "clients=3", "rounds=4", "optimizer.persist=run", "algorithm=splitfed_v1"]
    assert run_command(tmp_path / "whole", *settings).wait() == 0
    killed = run_command(tmp_path / "killed", *settings)
    log = tmp_path / "killed" / "events.jsonl"
    while not (log.exists() and any(e["event"] == "round_start" and e["round"] == 3 for e in read_events(log))):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resume = [DYNSL, f"resume={tmp_path / 'killed'}", "logging.console=off"]
    assert subprocess.run(resume, check=False).returncode == 0
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
