"""The round loop: sample, plan, train, aggregate, evaluate, save (ALGORITHMS §1, 8)."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynsl_app.algorithms import ALGORITHMS, check, make_plan
from dynsl_app.data.load import client_data, load_source
from dynsl_app.data.source import Source
from dynsl_app.errors import RoundFailed, SettingsError, named
from dynsl_app.model.build import build_chain
from dynsl_app.model.evaluate import Score, score
from dynsl_app.model.local_head import local_heads
from dynsl_app.model.probe import probe
from dynsl_app.model.segment import CALM_DOWN
from dynsl_app.orders import EvaluateOrder, EvaluateReply, Failure, TrainOrder, TrainReply
from dynsl_app.plan import Plan
from dynsl_app.seeds import derive_seed
from dynsl_app.server.checkpoint import Checkpoint, save
from dynsl_app.server.control import ControlPlane
from dynsl_app.server.controller import Controller
from dynsl_app.server.director import Director, Stay
from dynsl_app.server.folder import RunFolder
from dynsl_app.server.heads import Heads
from dynsl_app.server.plane import DataPlane
from dynsl_app.server.policies import policy_maker
from dynsl_app.server.session import State
from dynsl_app.server.standing import Standing
from dynsl_app.server.steering import Steering, make_steering
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.targets import named_packages
from dynsl_app.telemetry.device import believable
from dynsl_app.telemetry.events import EventStream
from dynsl_app.validate import to_plain, to_yaml
from dynsl_app.wire.security import new_token
from dynsl_app.wire.transport import make_transport

_POLL_S = 0.1
"""How long one look for replies may take, between looks at the deadlines, seconds."""


def run(
    settings: Settings,
    control: ControlPlane,
    *,
    folder: RunFolder,
    events: EventStream,
    start: Checkpoint | None = None,
) -> Summary:
    """Train ``settings.rounds`` rounds and leave everything in the run folder.

    Parameters
    ----------
    start
        Where an earlier run of the same folder left off.

    Raises
    ------
    DynslError
        The run cannot go on; clients that are lost on the way are named in events and do not end it.
    """
    settings = check(settings)
    torch.set_num_threads(settings.server.threads)
    if start is not None and start.round > settings.rounds:
        raise SettingsError(
            f"resume={folder.path}: the run has done {start.round} rounds, more than rounds={settings.rounds}; "
            f"raise rounds, or leave it out"
        )
    began = time.monotonic() - folder.elapsed()
    trainer = _Trainer(settings, control, folder, events, start)
    try:
        for round_ in range(trainer.standing.round + 1, settings.rounds + 1):
            trainer.round(round_)
    finally:
        trainer.close()
    summary = trainer.standing.summary(settings, folder, total_s=time.monotonic() - began)
    folder.write_model(trainer.standing.chain.merged_state())
    folder.write_summary(summary)
    events.emit("run_end", **summary.fields())
    return summary


def _refuse_early(settings: Settings, source: Source, blocks: int) -> dict[int, int]:
    """Refuse, before anybody joins, what every client would fail on.

    Returns
    -------
    dict
        R_i, batches in a round, by client; empty where only the clients know.
    """
    make_plan(settings, blocks, range(settings.clients))
    device = settings.server.device
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"server.device={device} cannot be used here ({reason}); use server.device=cpu") from None
    # With data of its own a node may have more than the server.
    if settings.data.partition == "local" or not len(source.train):
        return {}
    data = (
        client_data(source, settings.data, client=client, clients=settings.clients, seed=settings.seed)
        for client in range(settings.clients)
    )
    return {client: own.batches_per_epoch * settings.local_epochs for client, own in enumerate(data)}


def nobody_finished(round_: int, reasons: Mapping[int, str]) -> RoundFailed:
    """The error of a round that lost all clients, who are named together where their reasons are the same.

    A client's own name in its reason, which it tells its node, is left out: it is named before it.
    """
    clients_by_reason: dict[str, list[int]] = {}
    for client, reason in reasons.items():
        clients_by_reason.setdefault(reason.replace(f"client {client}: ", ""), []).append(client)
    told = "; ".join(f"{named(clients)}: {reason}" for reason, clients in clients_by_reason.items())
    return RoundFailed(f"round {round_}: no client finished, so there is nothing to aggregate. {told}")


class _Trainer:
    """What stays the same for all rounds of a run."""

    def __init__(
        self,
        settings: Settings,
        control: ControlPlane,
        folder: RunFolder,
        events: EventStream,
        start: Checkpoint | None,
    ) -> None:
        self._settings, self._control, self._folder, self._events = settings, control, folder, events
        folder.write_config(to_yaml(settings))
        allow = named_packages(settings)
        source = load_source(settings.data, allow=allow)
        self._spec, self._held_out = source.spec, source.test
        chain = build_chain(settings.model, source.spec, settings.seed, allow)
        self._cut_shapes = probe(chain, source.spec)
        batches = _refuse_early(settings, source, len(chain))
        self.standing = Standing(chain)
        if ALGORITHMS[settings.algorithm.name].local_loss:
            self.standing.local_heads = local_heads(self._cut_shapes, source.spec.classes, settings.seed)
        if start is not None:
            self.standing.restore(start)
        self._director: Director = Stay()
        self._steering: Steering | None = None
        if ALGORITHMS[settings.algorithm.name].adaptive:
            self._steering = make_steering(settings, chain, source.spec, self._cut_shapes, batches, events)
            self._director = self._steering
        self._busy: set[int] = set()
        """Clients whose order has not been answered yet; they get no other one."""
        self._plane = DataPlane(make_transport(settings.wire), events)
        try:
            nodes = control.join(settings.clients, settings.faults.join_s)
        except BaseException:
            self._plane.close()
            raise
        self._clients = sorted(nodes)
        events.emit(
            "run_start",
            settings=to_plain(settings),
            nodes={str(client): node for client, node in nodes.items()},
            run_dir=str(folder.path),
            blocks=len(chain),
            parameters=sum(parameter.numel() for parameter in chain.parameters()),
            algorithm=settings.algorithm.name,
            model=settings.model.name,
            data=settings.data.name,
            held_out=len(self._held_out),
        )
        self._counted: set[int] = set()
        """Clients whose number of batches the fleet's changes have been compared to."""
        self._compare_changes(batches)

    def close(self) -> None:
        """Free the port."""
        self._plane.close()

    def round(self, round_: int) -> None:
        """One round, from sampling to the checkpoint.

        Raises
        ------
        RoundFailed
            No client finished.
        """
        settings, began = self._settings, time.monotonic()
        clients = self._sample(round_)
        plan = make_plan(settings, len(self.standing.chain), clients)
        if self._steering is not None:
            plan = self._steering.initial(plan)
        self._check_concurrency(plan)
        cuts = {str(client): cut for client, cut in plan.cuts.items()}
        self._events.emit(
            "round_start", round=round_, clients=list(clients), cuts=cuts, boundary=plan.boundary, heads=plan.heads
        )
        heads = Heads(self.standing.chain, plan, settings, self.standing.head_optimizers)
        controller, replies = self._train(round_, plan, heads)
        opened = [session for session in controller.sessions.values() if session.started_at is not None]
        self._compare_changes({session.client: session.batches for session in opened})
        for client in replies:
            if controller.sessions[client].state is State.DONE and not heads.finite(client):
                controller.fail(client, f"its blocks on the server have NaN or Inf after its last batch; {CALM_DOWN}")
        finished = sorted(client for client in replies if controller.sessions[client].state is State.DONE)
        lost = sorted(set(clients) - set(finished))
        samples = {client: controller.sessions[client].samples for client in finished}
        if not finished:
            raise nobody_finished(round_, {client: controller.sessions[client].reason for client in lost})
        self.standing.aggregate(plan, heads, replies, samples, settings)
        told = self.standing.count(round_, controller.epoch_s, controller.sessions, finished)
        self.standing.score = score(
            self.standing.chain, self._held_out, settings.evaluation.batch, settings.server.device
        )
        fields: dict[str, Any] = {"loss": self.standing.score.loss, "accuracy": self.standing.score.accuracy}
        if settings.evaluation.federated:
            federated = self._evaluate(round_)
            fields |= {"federated_loss": federated.loss, "federated_accuracy": federated.accuracy}
        self._events.emit(
            "round_end",
            round=round_,
            epoch_s=controller.epoch_s,
            **told,
            **fields,
            seconds=time.monotonic() - began,
        )
        path = save(self._folder.checkpoint, self.standing.checkpoint())
        self._events.emit("checkpoint", round=round_, path=str(path.relative_to(self._folder.path)))

    def _compare_changes(self, batches: Mapping[int, int]) -> None:
        """Warn, once for each client, of the fleet's changes that come after its last batch; ``batches``: R_i."""
        new = {client: count for client, count in batches.items() if client not in self._counted}
        self._counted.update(new)
        for message in self._settings.fleet.late_changes(new):
            self._events.emit("warning", message=message)

    def _sample(self, round_: int) -> Sequence[int]:
        """The round's clients, by the seed and the round only, among those that are not busy with an older order."""
        settings = self._settings
        count = settings.clients_per_round or settings.clients
        generator = random.Random(derive_seed("clients", settings.seed, round_))
        order = generator.sample(self._clients, len(self._clients))
        deadline = time.monotonic() + settings.faults.reconnect_s
        while self._busy.issuperset(self._clients) and time.monotonic() < deadline:
            self._collect()
        free = [client for client in order if client not in self._busy]
        if not free:
            raise RoundFailed(f"round {round_}: all clients are still busy with an older order, or gone")
        return sorted(free[:count])

    def _check_concurrency(self, plan: Plan) -> None:
        limit = self._control.concurrency()
        policy = self._settings.server.policy
        # A replayed group may need a client that has no place yet, whichever clients are given one first. The other
        # policies run what is there.
        waits_for_all = policy in ("lockstep", "replay")
        if waits_for_all and limit is not None and limit.clients < len(plan.cuts):
            also = f", or set clients_per_round={limit.clients}" if policy == "lockstep" else ""
            raise SettingsError(
                f"server.policy={policy} waits for all {len(plan.cuts)} clients of a round, but only {limit.clients} "
                f"can run at the same time; {limit.remedy}{also}"
            )

    def _train(self, round_: int, plan: Plan, heads: Heads) -> tuple[Controller, Mapping[int, TrainReply]]:
        """Run the epoch; the replies of all clients that answered in time."""
        settings, standing = self._settings, self.standing
        tokens = {client: new_token() for client in plan.cuts}

        def open_heads(client: int) -> None:
            heads.open(client, standing.batchnorms.get(client, {}), standing.optimizers.get(client, {}))

        controller = Controller(
            round_,
            plan,
            tokens,
            heads,
            open_heads,
            policy_maker(settings, plan, round_),
            self._director,
            self._cut_shapes,
            self._spec.classes,
            settings,
            self._events,
        )
        self._plane.begin(round_, controller)
        if self._steering is not None:
            self._steering.begin(round_, plan)
        try:
            orders = [
                TrainOrder(
                    client=client,
                    round=round_,
                    cut=cut,
                    boundary=plan.boundary,
                    weights=standing.weights(client, 0, cut),
                    optimizer=standing.optimizer(client, 0, cut),
                    endpoint=self._plane.endpoint,
                    token=tokens[client],
                    settings=settings,
                    profile=self._steering is not None and self._steering.wants_profile(client),
                )
                for client, cut in plan.cuts.items()
            ]
            self._busy.update(plan.cuts)
            self._control.push(orders)
            return controller, self._await(round_, controller)
        finally:
            self._plane.end()
            controller.close()
            if self._steering is not None:
                self._steering.end()

    def _await(self, round_: int, controller: Controller) -> dict[int, TrainReply]:
        limit = self._settings.faults.round_s
        deadline = None if limit is None else time.monotonic() + limit
        replies: dict[int, TrainReply] = {}
        while True:
            for reply in self._collect():
                if isinstance(reply, Failure):
                    controller.fail(reply.client, reply.reason)
                elif isinstance(reply, TrainReply) and reply.round == round_:
                    error = self.standing.unfit(reply, controller.sessions[reply.client].cut)
                    if error:
                        controller.fail(reply.client, error)
                    else:
                        replies[reply.client] = reply
                        self._note_device(reply)
            controller.watch(replies.keys())
            if controller.settled(replies.keys()):
                return replies
            if deadline is not None and time.monotonic() > deadline:
                for client in controller.sessions:
                    if client not in replies:
                        controller.fail(client, f"not done within faults.round_s={limit:g} s")

    def _note_device(self, reply: TrainReply) -> None:
        """Write down what a client's device says of itself, as far as it is believed."""
        sample, complaint = believable(reply.client, reply.device)
        if complaint is not None:
            self._events.emit("warning", message=complaint)
        if sample:
            self._events.emit("device", round=reply.round, client=reply.client, **sample)

    def _collect(self) -> list[TrainReply | EvaluateReply | Failure]:
        replies = self._control.poll(_POLL_S)
        self._busy.difference_update(reply.client for reply in replies)
        return replies

    def _evaluate(self, round_: int) -> Score:
        """Federated evaluation on all clients that are free; those that fail are named and left out."""
        settings = self._settings
        orders = [
            EvaluateOrder(client, round_, self.standing.weights(client, 0, len(self.standing.chain)), settings)
            for client in self._clients
            if client not in self._busy
        ]
        awaited = {order.client for order in orders}
        self._busy.update(awaited)
        self._control.push(orders)
        total = Score(0, 0, 0.0)
        deadline = time.monotonic() + settings.faults.batch_s
        while awaited and time.monotonic() < deadline:
            for reply in self._collect():
                if isinstance(reply, Failure):
                    self._events.emit("warning", message=f"client {reply.client} was not evaluated: {reply.reason}")
                elif isinstance(reply, EvaluateReply) and reply.round == round_:
                    total += Score(reply.samples, reply.correct, reply.loss_sum)
                awaited.discard(reply.client)
        if awaited:
            seconds = settings.faults.batch_s
            self._events.emit(
                "warning", message=f"no evaluation from clients {sorted(awaited)} within faults.batch_s={seconds:g} s"
            )
        return total
