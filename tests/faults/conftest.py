"""Runs that go wrong on purpose, and what makes them: altered frames, cut connections, client processes to kill."""

import importlib
import multiprocessing
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.client import epoch
from dynsl_app.client.epoch import train
from dynsl_app.compose import compose
from dynsl_app.inprocess import InProcessControl
from dynsl_app.orders import Failure, Order, Reply, TrainOrder
from dynsl_app.server import checkpoint, rounds
from dynsl_app.server.control import Concurrency, ControlPlane
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import NodeSettings, WireSettings
from dynsl_app.telemetry.events import Event, EventStream
from dynsl_app.telemetry.sinks.factory import make_sinks
from dynsl_app.wire.base import Endpoint, Frame, Link, Pacer
from dynsl_app.wire.transport import make_transport

Alter = Callable[[Frame, Link], Frame]
"""What a frame becomes, or LinkClosed."""


class Watch:
    """A sink that keeps all events, and acts when one comes."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._actions: list[tuple[Callable[[Event], bool], Callable[[], object]]] = []

    def when(self, condition: Callable[[Event], bool], action: Callable[[], object]) -> None:
        """Act once, on the first event that fulfils the condition, in the thread that emits it."""
        self._actions.append((condition, action))

    def handle(self, event: Event) -> None:
        self.events.append(event)
        for entry in list(self._actions):
            if entry[0](event):
                self._actions.remove(entry)
                entry[1]()

    def close(self) -> None:
        pass

    def named(self, name: str, **fields: Any) -> list[Event]:
        """Events of a name with these fields, in order."""
        return [e for e in self.events if e["event"] == name and all(e.get(key) == fields[key] for key in fields)]

    def batches(self, client: int, round_: int = 1) -> list[int]:
        """Batches of a client that the server trained on, in order."""
        steps = self.named("step", round=round_)
        return [batch for step in steps for member, batch, _ in step["members"] if member == client]

    @property
    def lost(self) -> dict[int, str]:
        """Why clients were lost."""
        return {event["client"]: event["reason"] for event in self.named("client_lost")}


@dataclass(frozen=True)
class Outcome:
    """What a run left; ``watch`` has its events."""

    folder: RunFolder
    watch: Watch

    @property
    def model(self) -> bytes:
        """The model file."""
        return self.folder.model.read_bytes()


class Trial:
    """Runs by overrides, over any control plane. Three clients with four batches each and cuts that stay, unless said
    otherwise.
    """

    BASE = (
        "algorithm=splitfed_v1",
        "model=mlp",
        "clients=3",
        "rounds=1",
        "data=synthetic",
        "data.shape=[1,8,8]",
        "data.samples=44",
        "data.limit=36",
        "data.batch=3",
        "optimizer=sgd",
        "optimizer.lr=0.05",
        "optimizer.momentum=0.9",
        "wire.heartbeat_s=2",
        "logging.console=off",
    )

    def __init__(self, base: Path) -> None:
        self._base, self._count = base, 0

    def __call__(self, *overrides: str, control: ControlPlane | None = None, watch: Watch | None = None) -> Outcome:
        self._count += 1
        path = self._base / f"run-{self._count}"
        settings = compose([*self.BASE, *overrides, f"run_dir={path}"])
        watch = watch or Watch()
        folder = RunFolder.create(settings, self._base)
        events = EventStream([*make_sinks(settings, folder), watch])
        try:
            rounds.run(settings, control or InProcessControl(settings.clients), folder=folder, events=events)
        finally:
            events.close()
        return Outcome(folder, watch)

    def resume(self, folder: RunFolder, *overrides: str) -> Watch:
        """Go on with a run."""
        settings = compose([f"resume={folder.path}", *overrides])
        start = checkpoint.load(folder.checkpoint)
        reopened, watch = RunFolder.reopen(folder.path, start.round), Watch()
        events = EventStream([*make_sinks(settings, reopened), watch], start=reopened.elapsed())
        try:
            rounds.run(settings, InProcessControl(settings.clients), folder=reopened, events=events, start=start)
        finally:
            events.close()
        return watch


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


@pytest.fixture
def watch() -> Watch:
    return Watch()


class TamperedLink:
    """A client's link, with its frames altered on their way out and in."""

    def __init__(self, link: Link, out: Alter, in_: Alter) -> None:
        self._link, self._out, self._in = link, out, in_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, frame: Frame) -> None:
        self._link.send(self._out(frame, self._link))

    def receive(self, timeout: float | None = None) -> Frame:
        return self._in(self._link.receive(timeout), self._link)


def _as_is(frame: Frame, link: Link) -> Frame:
    return frame


@pytest.fixture
def tamper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``tamper(out=…, in_=…)``: all frames of clients that run in this process go through these."""

    def install(out: Alter = _as_is, in_: Alter = _as_is) -> None:
        class Tampered:
            def __init__(self, settings: WireSettings) -> None:
                self._transport = make_transport(settings)

            def connect(self, endpoint: Endpoint, pacer: Pacer | None = None) -> TamperedLink:
                return TamperedLink(self._transport.connect(endpoint, pacer), out, in_)

        monkeypatch.setattr(epoch, "make_transport", Tampered)

    return install


class Processes:
    """A control plane whose clients are processes.

    Parameters
    ----------
    tells
        Whether it reports a process that died, as Flower does only where the node that started it lives.
    """

    def __init__(self, clients: int, *, tells: bool = True) -> None:
        # A fork server has imported everything once (optimizers would import the second module at their first step);
        # what it forks is as separate as what is started anew.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([epoch.__name__, "torch._dynamo"])
        self._pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(clients)]
        self._tells = tells
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self.pids: dict[int, int] = {}

    def join(self, clients: int, timeout: float) -> Mapping[int, str]:
        starting = [pool.submit(os.getpid) for pool in self._pools[:clients]]
        self.pids = {client: future.result(timeout) for client, future in enumerate(starting)}
        return {client: f"process {pid}" for client, pid in self.pids.items()}

    def push(self, orders: Sequence[Order]) -> None:
        for order in orders:
            assert isinstance(order, TrainOrder)
            node = NodeSettings(partition_id=order.client, num_partitions=len(self._pools))
            client = order.client
            try:
                future = self._pools[client].submit(train, order, node)
            except BrokenProcessPool as error:
                self._answer(client, error)
            else:
                future.add_done_callback(lambda done, client=client: self._finish(client, done))

    def poll(self, timeout: float) -> list[Reply]:
        with suppress(queue.Empty):
            return [self._replies.get(timeout=timeout)]
        return []

    def concurrency(self) -> Concurrency | None:
        return None

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()

    def _finish(self, client: int, done: "Future[Reply]") -> None:
        error = done.exception()
        if error is None:
            self._replies.put(done.result())
        else:
            self._answer(client, error)

    def _answer(self, client: int, error: BaseException) -> None:
        if self._tells or not isinstance(error, BrokenProcessPool):
            self._replies.put(Failure(client, f"{type(error).__name__}: {error}"))


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    """Starts control planes with client processes that end with the test."""
    started: list[Processes] = []

    def start(clients: int = 3, *, tells: bool = True) -> Processes:
        started.append(Processes(clients, tells=tells))
        return started[-1]

    yield start
    for control in started:
        control.close()


class Proxy:
    """Forwards TCP connections to a port of this machine, until told to cut them."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._budget: int | None = None
        self.cuts = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections that are open; new ones are taken."""
        with self._lock:
            self.cuts += 1
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def cut_after(self, up: int) -> None:
        """Cut all connections when so many more bytes have gone up to the server, over all of them."""
        with self._lock:
            self._budget = up

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._open += [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if up and self._spent(len(data)):
                    # Some of a frame has arrived, and the rest never will.
                    sink.sendall(data[: len(data) // 2])
                    self.cut()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _spent(self, size: int) -> bool:
        with self._lock:
            if self._budget is None:
                return False
            self._budget -= size
            if self._budget > 0:
                return False
            self._budget = None
            return True


@pytest.fixture
def proxy() -> Iterator[tuple[Proxy, list[str]]]:
    """A proxy, and the overrides with which clients reach the server through it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Proxy(port)
    yield made, [f"wire.bind=127.0.0.1:{port}", f"wire.advertise=127.0.0.1:{made.port}"]
    made.close()


@pytest.fixture(autouse=True, scope="session")
def imported() -> None:
    """Optimizers import this at their first step, for seconds; the deadlines of these tests are shorter."""
    importlib.import_module("torch._dynamo")
