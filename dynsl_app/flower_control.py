"""The control plane over Flower's Grid: simulation, deployment and the local way alike."""

import logging
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dynsl_app.errors import ClientLost, DynslError
from dynsl_app.flower_messages import pack, unpack
from dynsl_app.orders import EvaluateReply, Failure, Order, Reply, TrainOrder, TrainReply
from dynsl_app.server.control import Concurrency

_log = logging.getLogger(__name__)

_NODE_UNAVAILABLE = 5
"""Flower's code for a node that stopped reporting; its process may come back under another node id."""

_REASON_LENGTH = 400
"""Characters of Flower's own words that are passed on; a lost Ray actor takes pages."""

_NEWCOMERS_S = 1.0
"""How often to look for nodes that registered since."""


class GridControlPlane:
    """Orders and replies as Flower messages, pushed and pulled one by one.

    Clients are known by their partition id; each node is asked for its own once. A node that registers in mid-run
    with the id of a client (a SuperNode that was restarted) takes that client's place from the next order on.

    For use by one thread.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._nodes: dict[int, int] = {}
        """Node id by client."""
        self._names: dict[int, str] = {}
        """What people call a node, by client."""
        self._asked: set[int] = set()
        """Node ids that have been asked who they are."""
        self._queries: dict[str, int] = {}
        """Node id by the id of the question that it has not answered."""
        self._orders: dict[str, int] = {}
        """Client by the id of the order that it has not answered."""
        self._replies: list[Reply] = []
        self._problems: list[str] = []
        self._joined = False
        self._active = self._looked = time.monotonic() - _NEWCOMERS_S

    def join(self, clients: int, timeout: float) -> Mapping[int, str]:
        """See :meth:`dynsl_app.server.control.ControlPlane.join`."""
        deadline = time.monotonic() + timeout
        self._active = time.monotonic()
        while True:
            registered = self._greet()
            self._collect()
            if self._problems:
                raise ClientLost("; ".join(self._problems))
            missing = [client for client in range(clients) if client not in self._nodes]
            if not missing:
                self._joined = True
                return {client: self._names[client] for client in range(clients)}
            if registered < clients and _simulation_slots():  # a simulation's nodes are all there from the start
                raise ClientLost(
                    f"clients={clients}, but the simulation has {registered} nodes; add "
                    f'--federation-config "num-supernodes={clients}"'
                )
            if time.monotonic() >= deadline:
                raise ClientLost(self._who_is_missing(clients, missing, timeout))
            self._pause(deadline)

    def push(self, orders: Sequence[Order]) -> None:
        """See :meth:`dynsl_app.server.control.ControlPlane.push`."""
        for order in orders:
            kind = MessageType.TRAIN if isinstance(order, TrainOrder) else MessageType.EVALUATE
            node = self._nodes[order.client]
            if (message := self._send(node, kind, pack(order), group=str(order.round))) is not None:
                self._orders[message] = order.client
            else:
                self._replies.append(Failure(order.client, f"Flower does not take messages for node {node} any more"))
        self._active = time.monotonic()

    def poll(self, timeout: float) -> list[Reply]:
        """See :meth:`dynsl_app.server.control.ControlPlane.poll`."""
        deadline = time.monotonic() + timeout
        while True:
            if time.monotonic() - self._looked >= _NEWCOMERS_S:
                self._greet()
            self._collect()
            for problem in self._problems:
                _log.warning("a node that registered in mid-run is not used: %s", problem)
            self._problems.clear()
            if self._replies or time.monotonic() >= deadline:
                replies, self._replies = self._replies, []
                return replies
            self._pause(deadline)

    def concurrency(self) -> Concurrency | None:
        """See :meth:`dynsl_app.server.control.ControlPlane.concurrency`; only a simulation has a limit."""
        if not (slots := _simulation_slots()):
            return None
        most = min(32, (os.cpu_count() or 1) + 4)  # the default size of the thread pool in flwr's vce_api.run_api
        return Concurrency(
            slots,
            'give --federation-config "client-resources-num-cpus=1 init-args-num-cpus=<clients>" (a simulation on this '
            f"machine never runs more than {most} clients at once), use `dynsl runtime=local`, which has no limit",
        )

    def _greet(self) -> int:
        """Ask nodes that have registered since for their partition ids; returns how many are registered."""
        self._looked = time.monotonic()
        nodes = list(self._grid.get_node_ids())
        for node in nodes:
            if node not in self._asked and (message := self._send(node, MessageType.QUERY, RecordDict(), group="join")):
                self._asked.add(node)
                self._queries[message] = node
        return len(nodes)

    def _send(self, node: int, kind: str, content: RecordDict, *, group: str) -> str | None:
        """Push one message; None if Flower refuses it. One a call, since a Grid may leave refused ones out."""
        ids = list(self._grid.push_messages([Message(content, node, kind, group_id=group)]))
        return (ids[0] or None) if ids else None

    def _collect(self) -> None:
        waiting = [*self._queries, *self._orders]
        for message in self._grid.pull_messages(waiting) if waiting else ():
            self._active = time.monotonic()
            # The source of an error reply is not always the node, so only the message id tells whose it is.
            question = message.metadata.reply_to_message_id
            if question in self._queries:
                self._introduce(self._queries.pop(question), message)
            elif question in self._orders:
                self._replies.append(_read(self._orders.pop(question), message))

    def _introduce(self, node: int, answer: Message) -> None:
        if answer.has_error():
            if answer.error.code != _NODE_UNAVAILABLE:
                self._problems.append(f"node {node}: {_error_text(answer)}")
            return
        introduction = answer.content.config_records.get("node", ConfigRecord())
        client = introduction.get("partition-id")
        if not isinstance(client, int):
            self._problems.append(f"node {node}: {_refusal(answer)}")
            return
        name = f"node {node} on {introduction.get('host')!s}"
        if client in self._nodes and not self._joined and self._nodes[client] in set(self._grid.get_node_ids()):
            self._problems.append(
                f"{self._names[client]} and {name} both have partition-id={client}; give each SuperNode its own in "
                f"--node-config"
            )
            return
        self._nodes[client], self._names[client] = node, name

    def _who_is_missing(self, clients: int, missing: Sequence[int], timeout: float) -> str:
        silent = ", ".join(map(str, self._queries.values()))
        return (
            f"{clients - len(missing)} of {clients} clients registered within {timeout:g} s; missing: client "
            f"{', '.join(map(str, missing))}{f' (registered, but silent so far: node {silent})' if silent else ''}. "
            f'Start a SuperNode for each with --node-config "partition-id=<client> num-partitions={clients}", lower '
            f"clients={clients}, or raise faults.join_s"
        )

    def _pause(self, deadline: float) -> None:
        """Wait before asking Flower again: it has nothing that could be waited for.

        The pause is 5 % of the time waited so far, so that short rounds are not delayed and long ones cost few
        requests.
        """
        now = time.monotonic()
        time.sleep(max(0.0, min(deadline - now, 0.5, max(0.02, 0.05 * (now - self._active)))))


def _read(client: int, answer: Message) -> Reply:
    if answer.has_error():
        return Failure(client, _error_text(answer))
    try:
        reply = unpack(answer.content)
    except DynslError as error:
        return Failure(client, str(error))
    if isinstance(reply, Failure):
        return Failure(client, reply.reason)
    if not isinstance(reply, TrainReply | EvaluateReply) or reply.client != client:
        return Failure(client, f"answered with a {type(reply).__name__} of client {reply.client}")
    return reply


def _refusal(answer: Message) -> str:
    try:
        reply = unpack(answer.content)
    except DynslError as error:
        return str(error)
    return reply.reason if isinstance(reply, Failure) else f"answered with a {type(reply).__name__}"


def _error_text(answer: Message) -> str:
    reason = textwrap.shorten(answer.error.reason or "no reason given", _REASON_LENGTH)
    return f"Flower reports error {answer.error.code}: {reason}"


def _simulation_slots() -> int:
    """How many messages Flower's Simulation Runtime handles at once; 0 outside of a simulation.

    A ServerApp is not told. In a simulation it runs in the runtime's own process, where one thread per client at
    work runs ``vce_api.worker``; their number is the least of Ray's actors and the size of Flower's thread pool.
    """
    runtime = sys.modules.get("flwr.server.superlink.fleet.vce.vce_api")
    if runtime is None:
        return 0
    worker = runtime.worker.__code__
    stacks = sys._current_frames().values()
    return sum(any(frame.f_code is worker for frame, _ in traceback.walk_stack(stack)) for stack in stacks)
