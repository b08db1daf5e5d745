"""Worlds of a few clients, and what playing a round in them gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynsl_app.plan import Plan
from dynsl_app.server.batching import Continuous, Lockstep, Policy
from dynsl_app.server.director import Measured, Stay
from dynsl_app.server.steering import Steering
from dynsl_app.telemetry.events import Event, EventStream
from dynsl_app.testbed.links import Constant
from dynsl_app.testbed.oracle import Oracle
from dynsl_app.testbed.simulate import Clock, Simulation
from dynsl_app.testbed.world import Client, Happening, Power, RatePath, Server, World
from dynsl_app.wire.base import Scalar, Transfer

UP, DOWN, STATE = (400.0, 200.0, 100.0, 0.0), (400.0, 200.0, 100.0, 0.0), (10.0, 20.0, 30.0, 40.0)
"""Bytes at cuts 1 to 4, the last being fully local, and of a block's state."""


def device(
    block_s: Sequence[float] = (1.0, 2.0, 3.0, 4.0),
    *,
    up: float | RatePath = 100.0,
    down: float | RatePath = 200.0,
    rtt_s: float = 0.5,
    batches: int = 3,
    **other: Any,
) -> Client:
    """One device; its rates in bytes a second."""
    paths = [Constant(path) if isinstance(path, float) else path for path in (up, down)]
    return Client("c", "device", tuple(block_s), paths[0], paths[1], rtt_s, batches, Power(1.0, 1.0, 1.0), **other)


def world_of(
    *clients: Client,
    server: Sequence[float] = (0.1, 0.2, 0.3, 0.4),
    call_s: float = 0.05,
    workers: int = 1,
    access_Bps: float | None = None,
    happenings: Sequence[Happening] = (),
    jitter: float = 0.0,
) -> World:
    """A world without jitter unless said otherwise."""
    return World(
        clients,
        Server(tuple(server), call_s, workers, access_Bps),
        UP,
        DOWN,
        STATE,
        happenings=tuple(happenings),
        compute_jitter=jitter,
        link_jitter=jitter,
    )


@dataclass
class Recorder(Stay):
    """Keeps all that a director is told, and commands what it was given: by client, batches done to a cut."""

    commands: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    _done: dict[int, int] = field(default_factory=dict)

    def opened(
        self, client: int, batches: int, profile_s: tuple[float, ...] | None, memory_bytes: Scalar = None
    ) -> None:
        self.told.append(("opened", client, batches, profile_s, memory_bytes))

    def measured(self, client: int, measured: Measured) -> None:
        self.told.append(("measured", client, measured))

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        self.told.append(("served", head, tuple(entries), service_s, wait_s))

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        self.told.append(("coming", client, part, seconds))

    def done(self, client: int) -> None:
        self._done[client] = self._done.get(client, 0) + 1
        self.told.append(("done", client))

    def command(self, client: int, cut: int) -> int | None:
        return self.commands.get(client, {}).get(self._done[client])

    def moved(self, client: int, cut: int) -> None:
        self.told.append(("moved", client, cut))

    def left(self, client: int) -> None:
        self.told.append(("left", client))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """What was told of one kind, without its name."""
        return [one[1:] for one in self.told if one[0] == name]


class Joiner:
    """Clients join with the plan's own cuts."""

    def join(self, plan: Plan, clients: Sequence[int]) -> dict[int, int]:
        return {client: plan.cuts[client] for client in clients}


@dataclass
class Played:
    """A round that was played."""

    simulation: Simulation
    events: list[Event]
    clock: Clock

    @property
    def epoch_s(self) -> float:
        return self.simulation.epoch_s

    @property
    def ends(self) -> list[float | None]:
        """When each client ended."""
        return [course.ended_s for course in self.simulation.courses.values()]

    @property
    def lost(self) -> dict[int, str]:
        """Why clients were lost."""
        courses = self.simulation.courses.items()
        return {client: course.lost for client, course in courses if course.lost is not None}

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def separate(lane: int) -> Policy[int]:
    return Continuous(32, 2**30)


def sequential(lane: int) -> Policy[int]:
    return Continuous(1, 2**30)


def lockstep(*clients: int) -> Callable[[int], Policy[int]]:
    return lambda lane: Lockstep(clients)


def led(
    world: World, driver: Oracle | Steering, plan: Plan, clock: Clock, events: EventStream
) -> tuple[Plan, Simulation]:
    """A round of all clients as a driver plans and revises it: its plan for the start, and the round played."""
    begun = driver.initial(plan)
    driver.begin(1, begun)
    simulation = Simulation(
        world,
        begun,
        range(len(world.clients)),
        driver,
        driver,
        sequential,
        clock,
        events,
        seed=0,
        round_=1,
        chunk_bytes=2**20,
        batch_samples=8,
    )
    simulation.run()
    driver.end()
    return begun, simulation


def play(
    world: World,
    *cuts: int,
    director: Stay | None = None,
    boundary: int = 4,
    heads: int = 0,
    policy: Callable[[int], Policy[int]] = separate,
    absent: Sequence[int] = (),
    chunk_bytes: int = 2**20,
    patience_s: float = 50.0,
    seed: int = 0,
) -> Played:
    """Play a round of clients 0, 1, … with these cuts."""
    clock, plan = Clock(), Plan(4, boundary, dict(enumerate(cuts)), heads)
    events: list[Event] = []
    played = Played.__new__(Played)
    played.events, played.clock = events, clock
    played.simulation = Simulation(
        world,
        plan,
        [client for client in plan.cuts if client not in absent],
        director or Stay(),
        Joiner(),
        policy,
        clock,
        EventStream([played], clock=clock),
        seed=seed,
        round_=1,
        chunk_bytes=chunk_bytes,
        batch_samples=8,
        patience_s=patience_s,
    )
    played.simulation.run()
    return played
