"""A run in virtual time, from settings to summary (ALGORITHMS §10)."""

import copy
import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from dynsl_app.algorithms import ALGORITHMS, check, make_plan
from dynsl_app.allocation.choose import make_allocator
from dynsl_app.allocation.limits import Memory, cut_limits
from dynsl_app.allocation.refine import EVENTS, refine
from dynsl_app.data.load import client_data, load_source
from dynsl_app.data.source import DataSpec, Source
from dynsl_app.dynamics import Dynamics
from dynsl_app.errors import DynslError, SettingsError
from dynsl_app.model.build import build_chain
from dynsl_app.model.evaluate import score
from dynsl_app.model.local_head import local_heads
from dynsl_app.model.probe import probe
from dynsl_app.plan import Plan
from dynsl_app.seeds import derive_seed
from dynsl_app.server.book import Book, Sizes
from dynsl_app.server.director import Director, Stay
from dynsl_app.server.folder import RunFolder
from dynsl_app.server.heads import Heads
from dynsl_app.server.policies import policy_maker
from dynsl_app.server.rounds import nobody_finished
from dynsl_app.server.standing import Standing
from dynsl_app.server.steering import Steering
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.targets import named_packages
from dynsl_app.telemetry.events import EventStream, Sink
from dynsl_app.telemetry.profile import load_profile
from dynsl_app.telemetry.profiling import from_flops
from dynsl_app.telemetry.sinks.factory import make_sinks
from dynsl_app.testbed.compute import RealCompute
from dynsl_app.testbed.dynamics import with_happenings
from dynsl_app.testbed.local_loss import LocalLoss, classifier_shares, without_gradients
from dynsl_app.testbed.make_world import make_world
from dynsl_app.testbed.oracle import Oracle, true_costs
from dynsl_app.testbed.simulate import Clock, Course, Simulation
from dynsl_app.testbed.world import World
from dynsl_app.validate import to_plain, to_yaml


class Driver(Director, Protocol):
    """A director that also plans rounds."""

    def initial(self, plan: Plan) -> Plan:
        """The cuts to begin a round with."""
        ...

    def join(self, plan: Plan, clients: Sequence[int]) -> Mapping[int, int]:
        """Cuts of clients that come later."""
        ...

    def wants_profile(self, client: int) -> bool:
        """Whether the client shall measure all its blocks first."""
        ...

    def begin(self, round_: int, plan: Plan) -> None:
        """A round begins."""
        ...

    def end(self) -> None:
        """It has ended."""
        ...


class Fixed(Stay):
    """Cuts that never change."""

    def initial(self, plan: Plan) -> Plan:
        """The plan's own."""
        return plan

    def join(self, plan: Plan, clients: Sequence[int]) -> Mapping[int, int]:
        """The plan's own."""
        return {client: plan.cuts[client] for client in clients}

    def wants_profile(self, client: int) -> bool:
        """No."""
        return False

    def begin(self, round_: int, plan: Plan) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""


def run_testbed(settings: Settings, default_base: Path = Path("runs")) -> Summary:
    """Simulate ``settings.rounds`` rounds and leave everything in the run folder.

    Raises
    ------
    DynslError
        Settings, fleet or dynamics do not fit, or a round ended with no client.
    """
    settings = check(settings)
    trainer = Testbed(settings)  # before there is a folder: what is refused leaves nothing
    folder = RunFolder.create(settings, default_base)
    folder.write_config(to_yaml(settings))
    clock = Clock()
    events = EventStream(make_sinks(settings, folder), clock=clock)
    try:
        summary = trainer.run(folder, events, clock)
    except DynslError as error:
        error.run_dir = folder.path
        raise
    finally:
        events.close()
    if settings.logging.console != "off":
        print(f"run folder  {folder.path}", flush=True)
    return summary


def simulate_rounds(settings: Settings, sinks: Sequence[Sink] = ()) -> list[float]:
    """Epoch times of a phantom run in virtual seconds, one a round, without a folder."""
    return Testbed(check(settings)).epochs(sinks)


class Testbed:
    """What stays the same for all rounds of a run.

    Attributes
    ----------
    standing
        The model, and what was measured so far.
    t0_s
        T₀, seconds.
    world
        The truth.
    book
        What an adaptive algorithm has learnt of it; None before the first round, and for others.
    """

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._settings = settings
        self._real = settings.testbed.compute == "real"
        allow = named_packages(settings)
        source: Source | None = None
        if self._real:
            torch.set_num_threads(settings.server.threads)
            source = load_source(settings.data, allow=allow)
            spec, batch = source.spec, settings.data.batch
            self._held_out = source.test
        else:
            spec, batch = DataSpec(settings.testbed.shape, settings.testbed.classes), settings.testbed.batch
        self._batch = batch
        chain = build_chain(settings.model, spec, settings.seed, allow)
        label = settings.model.label
        self._peak_bytes = from_flops(chain, spec, batch, settings.optimizer, 1e9, model=label).peak_bytes()
        self.standing = Standing(chain)
        batches: int | list[int] = settings.testbed.batches
        if source is not None:
            batches = []
            for client in range(settings.clients):
                data = client_data(source, settings.data, client=client, clients=settings.clients, seed=settings.seed)
                batches.append(data.batches_per_epoch * settings.local_epochs)
        world = make_world(
            settings.fleet,
            chain,
            spec,
            batch,
            batches,
            settings.optimizer,
            settings.seed,
            model=label,
            profiles={kind: load_profile(path) for kind, path in settings.testbed.profiles.items()},
        )
        world = dataclasses.replace(
            world, compute_jitter=settings.testbed.compute_jitter, link_jitter=settings.testbed.link_jitter
        )
        happens = settings.dynamics.rounds
        if happens is not None and not any(round_ <= settings.rounds for round_ in happens):
            raise SettingsError(
                f"dynamics.rounds={happens}: there are only {settings.rounds} rounds, so that nothing would happen; "
                f"choose of 1..{settings.rounds}, or raise rounds"
            )
        self._present = range(len(world.clients))
        make_plan(settings, world.blocks, self._present)  # refuses cuts that the model has not
        limits = self._limits(world)
        self.t0_s = best_static_s(world, limits)
        self._truth = with_happenings(world, settings.fleet, settings.dynamics, self.t0_s, settings.seed)
        self._quiet = with_happenings(world, settings.fleet, Dynamics(), self.t0_s, settings.seed)
        newcomers = len(self._truth.clients) - len(world.clients)
        if self._real and newcomers:
            raise SettingsError(
                f"dynamics={settings.dynamics.name}: there are no data for {newcomers} clients that come beyond the "
                f"fleet's {len(world.clients)}; set testbed.compute=phantom, or let clients of the fleet join"
            )
        self._spec = spec
        self._begin(settings)

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self._classifiers: tuple[float, ...] = ()
        if ALGORITHMS[settings.algorithm.name].local_loss:
            if self._real:
                shapes = probe(self.standing.chain, self._spec)
                self.standing.local_heads = local_heads(shapes, self._spec.classes, settings.seed)
            self._classifiers = classifier_shares(self.standing.chain, self._spec, self._batch)
        self.world, self._calm = _as_seen_by(settings, self._truth), _as_seen_by(settings, self._quiet)
        self.book: Book | None = None
        self._driver: Driver | None = None

    def alike(self, settings: Settings) -> "Testbed":
        """The same at its beginning for another algorithm, allocator, or rounds (dynamics' too); phantom runs only.

        Raises
        ------
        ValueError
            The settings differ in something else.
        """
        own = self._settings
        limits = settings.allocator.min_cut, settings.allocator.max_cut  # on which T₀ depends
        same = dataclasses.replace(
            settings,
            algorithm=own.algorithm,
            allocator=own.allocator,
            rounds=own.rounds,
            dynamics=dataclasses.replace(settings.dynamics, rounds=own.dynamics.rounds),
            server=dataclasses.replace(settings.server, policy=own.server.policy),
        )
        if self._real or same != own or limits != (own.allocator.min_cut, own.allocator.max_cut):
            raise ValueError("only phantom runs that differ in algorithm, allocator and rounds share a world")
        other = copy.copy(self)
        other.standing = Standing(self.standing.chain)
        other._begin(settings)
        return other

    def _limits(self, world: World) -> dict[int, tuple[int, int]]:
        return cut_limits(self._settings.allocator, len(world.clients), world.blocks)

    def epochs(self, sinks: Sequence[Sink] = ()) -> list[float]:
        """All rounds of a phantom run without a folder: virtual seconds of each."""
        clock = Clock()
        events = EventStream(sinks, clock=clock)
        for round_ in range(1, self._settings.rounds + 1):
            self.round(round_, events, clock)
        return self.standing.epoch_s

    def run(self, folder: RunFolder, events: EventStream, clock: Clock) -> Summary:
        """All rounds."""
        settings, chain = self._settings, self.standing.chain
        events.emit(
            "run_start",
            settings=to_plain(dataclasses.replace(settings, run_dir=None)),
            nodes={str(client): one.name for client, one in enumerate(self.world.clients)},
            blocks=len(chain),
            parameters=sum(parameter.numel() for parameter in chain.parameters()),
            algorithm=settings.algorithm.name,
            model=settings.model.name,
            data=settings.data.name if self._real else "nothing",
            held_out=len(self._held_out) if self._real else 0,
            t0_s=self.t0_s,
        )
        for message in settings.fleet.late_changes(
            {client: self.world.clients[client].batches for client in self._present}
        ):
            events.emit("warning", message=message)
        for round_ in range(1, settings.rounds + 1):
            self.round(round_, events, clock)
        summary = self.standing.summary(settings, folder, total_s=clock.now)
        if self._real:
            folder.write_model(chain.merged_state())
        folder.write_summary(summary)
        fields = summary.fields()
        del fields["run_dir"], fields["versions"]
        events.emit("run_end", **fields)
        return summary

    def round(self, round_: int, events: EventStream, clock: Clock) -> None:
        """One round.

        Raises
        ------
        RoundFailed
            No client finished.
        """
        settings = self._settings
        world = self.world if settings.dynamics.happens_in(round_) else self._calm
        if settings.algorithm.name == "oracle_bound":
            self._bound(round_, world, events, clock)
            return
        if self._driver is None:
            self._driver = self._make_driver(events, clock)
        driver = self._driver
        if isinstance(driver, Oracle):
            driver.world = world
        everybody = make_plan(settings, world.blocks, range(len(world.clients)))
        present = self._present_in(world)
        began = {client: everybody.cuts[client] for client in present}
        first = driver.initial(dataclasses.replace(everybody, cuts=began))
        plan = dataclasses.replace(everybody, cuts={**everybody.cuts, **first.cuts})
        cuts = {str(client): cut for client, cut in first.cuts.items()}
        events.emit(
            "round_start",
            round=round_,
            clients=present,
            cuts=cuts,
            boundary=plan.boundary,
            heads=plan.heads,
        )
        heads = compute = None
        if self._real:
            heads = Heads(self.standing.chain, plan, settings, self.standing.head_optimizers)
            compute = RealCompute(settings, plan, round_, self.standing, heads)
        start = clock.now
        driver.begin(round_, plan)
        kind = LocalLoss if self._classifiers else Simulation
        simulation = kind(
            world,
            plan,
            present,
            driver,
            driver,
            policy_maker(settings, plan, round_),
            clock,
            events,
            seed=settings.seed,
            round_=round_,
            chunk_bytes=settings.wire.chunk_bytes,
            batch_samples=self._batch,
            wants_profile=driver.wants_profile,
            heartbeat_s=settings.wire.heartbeat_s,
            noise=settings.testbed.noise,
            patience_s=settings.faults.batch_s,
            compute=compute,
        )
        if isinstance(simulation, LocalLoss):
            simulation.classifiers = self._classifiers
        simulation.run()
        driver.end()
        courses = simulation.courses
        finished = [client for client, course in courses.items() if course.ended_s is not None]
        lost = [client for client, course in courses.items() if course.lost is not None]
        if not finished:
            raise nobody_finished(round_, {client: str(courses[client].lost) for client in lost})
        samples = {client: courses[client].samples for client in finished}
        if compute is not None and heads is not None:
            self.standing.aggregate(plan, heads, compute.replies(finished, samples), samples, settings)
            self.standing.score = score(self.standing.chain, self._held_out, settings.evaluation.batch, "cpu")
        taking_part = {client: course for client, course in courses.items() if course.started_s is not None}
        self._end(round_, simulation.epoch_s, taking_part, finished, events, seconds=clock.now - start)

    def _end(
        self,
        round_: int,
        epoch_s: float,
        courses: Mapping[int, Course],
        finished: Sequence[int],
        events: EventStream,
        *,
        seconds: float,
    ) -> None:
        told = self.standing.count(round_, epoch_s, courses, finished)
        held_out = self.standing.score if self._real else None
        events.emit(
            "round_end",
            round=round_,
            epoch_s=epoch_s,
            **told,
            loss=held_out and held_out.loss,
            accuracy=held_out and held_out.accuracy,
            seconds=seconds,
        )

    def _present_in(self, world: World) -> list[int]:
        """Clients that are there when a round begins: those whose first coming or going is no joining."""
        first: dict[int, str] = {}
        for happening in sorted(world.happenings, key=lambda one: one.at_s):
            if happening.client is not None and happening.kind in ("join", "leave", "crash"):
                first.setdefault(happening.client, happening.kind)
        return [client for client in self._present if first.get(client) != "join"]

    def _bound(self, round_: int, world: World, events: EventStream, clock: Clock) -> None:
        """A round that nobody trains: its epoch is as long as the bound says."""
        # Only here is scipy needed.
        from dynsl_app.testbed.bound import bound_s

        events.emit("round_start", round=round_, clients=[], cuts={}, boundary=world.blocks, heads=0)
        epoch_s = bound_s(world, self._present_in(world), self._limits(world), self.t0_s, clock.now)
        clock.now += epoch_s
        self._end(round_, epoch_s, {}, [], events, seconds=epoch_s)

    def _make_driver(self, events: EventStream, clock: Clock) -> Driver:
        settings, world = self._settings, self.world
        name, limits = settings.algorithm.name, self._limits(self.world)
        if name.startswith("oracle"):
            return Oracle(world, clock, limits, static=name == "oracle_static")
        if not ALGORITHMS[name].adaptive:
            return Fixed()
        sizes = Sizes(
            tuple(map(int, world.up_bytes)), tuple(map(int, world.down_bytes)), tuple(map(int, world.state_bytes))
        )
        powers = {client: one.power for client, one in enumerate(world.clients)}
        book = self.book = Book(world.server.block_s, self._batch, sizes, settings.wire.chunk_bytes, powers)
        expected = None
        if ALGORITHMS[name].profiled:
            # Measured on each device before the run, like a file of `dynsl-profile`.
            draws = random.Random(derive_seed("profiles", settings.seed))
            for client, one in enumerate(world.clients):
                factor = math.exp(world.compute_jitter * draws.gauss(0.0, 1.0))
                book.introduce(client, [factor * seconds for seconds in one.block_s])
            expected = {client: one.batches for client, one in enumerate(world.clients)}
        return Steering(
            make_allocator(settings),
            book,
            limits,
            world.server.workers,
            events,
            memory=Memory(self._peak_bytes, settings.allocator.memory_share),
            expected=expected,
            mid_epoch=settings.allocator.mid_epoch,
            clock=clock,
            threaded=False,
        )


def _check(settings: Settings) -> None:
    """Refuse what has no meaning in virtual time, or is not simulated."""
    if settings.resume is not None:
        raise SettingsError("resume is for runs in real time; a run in virtual time is soon done again")
    if settings.clients_per_round is not None:
        raise SettingsError(
            f"clients_per_round={settings.clients_per_round}: runtime=testbed trains all clients that are there; "
            f"leave it out, or let dynamics say who is there"
        )
    if settings.evaluation.federated:
        raise SettingsError(
            "evaluation.federated=true: runtime=testbed evaluates on the server's held-out data only; leave it out, or "
            "use runtime=local"
        )


def _as_seen_by(settings: Settings, world: World) -> World:
    """What an algorithm has instead of the truth by its very definition."""
    name = settings.algorithm.name
    if name == "oracle":
        return dataclasses.replace(world, state_bytes=(0.0,) * world.blocks)
    return without_gradients(world) if ALGORITHMS[name].local_loss else world


def best_static_s(world: World, limits: Mapping[int, tuple[int, int]]) -> float:
    """T₀: the epoch that ``oracle_static`` expects, seconds."""
    batches = {client: one.batches for client, one in enumerate(world.clients)}
    cuts = dict.fromkeys(batches, 0)
    costs = true_costs(world, 0.0, 0.0, batches, cuts, limits, boundary=world.blocks, moving=False)
    return refine(costs, events=4 * EVENTS).epoch_s
