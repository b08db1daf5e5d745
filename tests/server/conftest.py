"""A round's server with real heads and links, and clients that are played by hand, frame by frame."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dynsl_app.algorithms import check, make_plan
from dynsl_app.client.stream import hello
from dynsl_app.data.source import DataSpec
from dynsl_app.model.build import build_chain
from dynsl_app.model.probe import probe
from dynsl_app.server.controller import Controller
from dynsl_app.server.director import Director, Stay
from dynsl_app.server.heads import Heads
from dynsl_app.server.plane import DataPlane
from dynsl_app.server.policies import policy_maker
from dynsl_app.settings import AlgorithmSettings, DataSettings, ModelSettings, ServerSettings, Settings, WireSettings
from dynsl_app.telemetry.events import Event, EventStream
from dynsl_app.wire.base import Frame, Kind, Link, Pacer
from dynsl_app.wire.transport import make_transport

SPEC = DataSpec((1, 4, 4), 10)
BATCHES = 3


class Events:
    """A sink that keeps events and lets a test wait for one."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def close(self) -> None:
        pass

    def named(self, name: str, **fields: Any) -> list[Event]:
        """Events of a name with these fields, in order."""
        return [e for e in self.events if e["event"] == name and all(e.get(key) == fields[key] for key in fields)]

    def wait(self, name: str, **fields: Any) -> Event:
        """The first such event, when it comes."""
        with self._news:
            assert self._news.wait_for(lambda: self.named(name, **fields), 20), f"no {name} {fields} in {self.events}"
        return self.named(name, **fields)[0]


class Rig:
    """The server's side of round 1 with clients 0, 1 and 2, each of three batches of two samples."""

    def __init__(
        self,
        *,
        algorithm: str = "splitfed_v1",
        wire: str = "inprocess",
        workers: int = 1,
        chunk_bytes: int = 2**20,
        director: Director | None = None,
    ) -> None:
        self.settings = check(
            Settings(
                clients=3,
                algorithm=AlgorithmSettings(name=algorithm),
                model=ModelSettings(name="mlp"),
                data=DataSettings(name="synthetic", shape=SPEC.shape, batch=2),
                server=ServerSettings(workers=workers),
                wire=WireSettings(name=wire, chunk_bytes=chunk_bytes),
            )
        )
        self.spec = SPEC
        chain = build_chain(self.settings.model, SPEC, 0)
        self.shapes = probe(chain, SPEC)
        self.plan = make_plan(self.settings, len(chain), range(3))
        self.heads = Heads(chain, self.plan, self.settings, {})
        self.sink = Events()
        self.events = EventStream([self.sink])
        transport = make_transport(self.settings.wire)
        self.plane = DataPlane(transport, self.events)
        self.controller = Controller(
            1,
            self.plan,
            {client: f"token {client}" for client in range(3)},
            self.heads,
            self.open_heads,
            policy_maker(self.settings, self.plan, 1),
            director or Stay(),
            self.shapes,
            SPEC.classes,
            self.settings,
            self.events,
        )
        self.plane.begin(1, self.controller)
        self._transport = transport
        self._links: list[Link] = []

    def open_heads(self, client: int) -> None:
        self.heads.open(client, {}, {})

    def connect(self, pacer: Pacer | None = None) -> Link:
        """A link on which nothing has been said."""
        self._links.append(self._transport.connect(self.plane.endpoint, pacer))
        return self._links[-1]

    def greet(self, client: int, pacer: Pacer | None = None) -> Link:
        """A link on which a client has said who it is."""
        link = self.connect(pacer)
        link.send(hello(client, 1, f"token {client}", BATCHES, 2 * BATCHES))
        return link

    def join(self, client: int, pacer: Pacer | None = None) -> Link:
        """A link that is its client's."""
        link = self.greet(client, pacer)
        assert link.receive(20).kind is Kind.WELCOME
        return link

    def batch(self, client: int, batch: int) -> Frame:
        """A client's activation."""
        shape = self.shapes[self.plan.cuts[client] - 1].shape
        generator = torch.Generator().manual_seed(10 * client + batch)
        tensors = {"activation": torch.rand(2, *shape, generator=generator), "target": torch.tensor([client, batch])}
        return Frame(Kind.ACTIVATION, client, 1, batch, tensors=tensors)

    def train(self, link: Link, client: int, first: int = 0) -> None:
        """All batches of a client from ``first`` on, and the end."""
        for batch in range(first, BATCHES):
            link.send(self.batch(client, batch))
            answer = link.receive(20)
            assert (answer.kind, answer.batch) == (Kind.GRADIENT, batch)
        link.send(Frame(Kind.END, client, 1, BATCHES))
        assert link.receive(20).kind is Kind.ACK

    def settle(self, *replied: int) -> None:
        """Wait until the round is over."""
        news = self.controller._news
        with news:
            assert news.wait_for(lambda: self.controller.settled(replied), 20)

    def close(self) -> None:
        self.plane.end()
        self.controller.close()
        for link in self._links:
            link.close()
        self.plane.close()
        self.events.close()


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Starts servers that end with the test."""
    started: list[Rig] = []

    def start(**settings: Any) -> Rig:
        started.append(Rig(**settings))
        return started[-1]

    yield start
    for each in started:
        each.close()
