"""The control plane over a Grid, with a ClientApp that does what the test says."""

import random
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from dynsl_app.errors import ClientLost
from dynsl_app.flower_control import GridControlPlane
from dynsl_app.flower_messages import pack, unpack
from dynsl_app.local_grid import LocalGrid
from dynsl_app.orders import EvaluateOrder, EvaluateReply, Failure, Order, Reply, TrainOrder, TrainReply
from dynsl_app.settings import Settings
from dynsl_app.wire.base import Endpoint

Act = Callable[[Order], Reply]
_WAIT_S = 20.0


def _introduce(message: Message, context: Context) -> Message:
    node = ConfigRecord({"partition-id": context.node_config["partition-id"], "host": "here"})
    return Message(RecordDict({"node": node}), reply_to=message)


def _app(act: Act, introduce: Callable[[Message, Context], Message] = _introduce) -> ClientApp:
    app = ClientApp()
    app.query()(introduce)

    @app.train()
    @app.evaluate()
    def handle(message: Message, context: Context) -> Message:
        order = unpack(message.content)
        assert isinstance(order, TrainOrder | EvaluateOrder)
        return Message(pack(act(order)), reply_to=message)

    return app


def _trained(order: Order) -> Reply:
    if isinstance(order, TrainOrder):
        return TrainReply(order.client, order.round, order.cut, order.weights, {}, 10 + order.client)
    return EvaluateReply(order.client, order.round, 5, 4, 0.5)


def _order(client: int, round_: int = 1) -> TrainOrder:
    weights = {"w": torch.full((2,), float(client))}
    return TrainOrder(client, round_, 1, 2, weights, {}, Endpoint("grpc", "x:1"), "t", Settings())


def _gather(control: GridControlPlane, count: int) -> list[Reply]:
    replies: list[Reply] = []
    while len(replies) < count:
        arrived = control.poll(_WAIT_S)
        assert arrived, f"nothing arrived within {_WAIT_S} s after {replies}"
        replies += arrived
    return replies


def _joined(app: ClientApp, clients: int) -> GridControlPlane:
    control = GridControlPlane(LocalGrid(app, clients))
    control.join(clients, _WAIT_S)
    return control


class _ComingAndGoing(LocalGrid):
    """Nodes can be away."""

    away: AbstractSet[int] = frozenset()

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.away]


def _error_like(reply: Message, error: Error) -> Message:
    """As Flower reports it: from node 1, the SuperLink."""
    message = Message(error, reply_to=reply)
    message.metadata.__dict__.update(_reply_to_message_id=reply.metadata.reply_to_message_id, _src_node_id=1)
    return message


def test_join_names_nodes_by_partition() -> None:
    """User case 22: a client is its partition id, and the node id is shown beside it."""
    control = GridControlPlane(LocalGrid(_app(_trained), 5))
    nodes = control.join(4, _WAIT_S)
    assert nodes == {client: f"node {1000 + client} on here" for client in range(4)}
    assert list(nodes) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_replies_in_any_order_reach_their_clients(seed: int) -> None:
    """User cases 10 and 17: five clients that answer in random order, one after the other."""
    gates = [threading.Event() for _ in range(5)]

    def act(order: Order) -> Reply:
        assert gates[order.client].wait(_WAIT_S)
        return _trained(order)

    control = _joined(_app(act), 5)
    control.push([_order(client) for client in range(5)])
    assert control.poll(0.0) == []
    sequence = random.Random(seed).sample(range(5), 5)
    for client in sequence:
        gates[client].set()
        (reply,) = _gather(control, 1)
        assert isinstance(reply, TrainReply)
        assert (reply.client, reply.samples) == (client, 10 + client)
        assert reply.weights["w"].tolist() == [client, client]


def test_evaluation_goes_the_same_way() -> None:
    control = _joined(_app(_trained), 3)
    control.push([EvaluateOrder(client, 1, {}, Settings()) for client in (2, 0)])
    assert {reply.client for reply in _gather(control, 2)} == {0, 2}


def test_failures_name_the_reason_and_leave_the_others_alone() -> None:
    """A client that reports a failure, one that raises, and one that answers for another."""

    def act(order: Order) -> Reply:
        match order.client:
            case 0:
                return Failure(-1, "DataError: the folder is empty")
            case 1:
                raise ValueError("boom")
            case 2:
                return TrainReply(3, 1, 1, {}, {}, 1)
        return _trained(order)

    control = _joined(_app(act), 4)
    control.push([_order(client) for client in range(4)])
    replies = {reply.client: reply for reply in _gather(control, 4)}
    assert replies[0] == Failure(0, "DataError: the folder is empty")
    assert isinstance(replies[1], Failure)
    assert "error 2: ValueError: boom" in replies[1].reason
    assert replies[2] == Failure(2, "answered with a TrainReply of client 3")
    assert isinstance(replies[3], TrainReply)
    assert control.poll(0.0) == []


def test_malformed_reply_is_that_clients_failure() -> None:
    app = ClientApp()
    app.query()(_introduce)
    app.train()(lambda message, context: Message(RecordDict({}), reply_to=message))
    control = _joined(app, 1)
    control.push([_order(0)])
    (reply,) = _gather(control, 1)
    assert isinstance(reply, Failure)
    assert "same version" in reply.reason


def test_join_times_out_with_who_is_missing() -> None:
    """User case 32: what is waited for, from whom, and what to do."""
    control = GridControlPlane(LocalGrid(_app(_trained), 2))
    with pytest.raises(ClientLost, match=r"2 of 4 clients registered within 0\.2 s; missing: client 2, 3\.") as error:
        control.join(4, 0.2)
    assert "partition-id=<client> num-partitions=4" in str(error.value)


def test_join_names_silent_nodes() -> None:
    asked = threading.Event()

    def introduce(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            asked.wait(_WAIT_S)
        return _introduce(message, context)

    control = GridControlPlane(LocalGrid(_app(_trained, introduce), 2))
    with pytest.raises(ClientLost, match=r"missing: client 1 .*silent so far: node 1001"):
        control.join(2, 0.5)
    asked.set()


def test_two_nodes_with_one_partition_are_refused() -> None:
    def introduce(message: Message, context: Context) -> Message:
        context.node_config["partition-id"] = 0
        return _introduce(message, context)

    control = GridControlPlane(LocalGrid(_app(_trained, introduce), 2))
    with pytest.raises(ClientLost, match=r"node 100\d on here and node 100\d on here both have partition-id=0"):
        control.join(2, _WAIT_S)


def test_node_that_cannot_introduce_itself_is_named() -> None:
    def introduce(message: Message, context: Context) -> Message:
        return Message(pack(Failure(-1, "SettingsError: partition-id: Field required")), reply_to=message)

    control = GridControlPlane(LocalGrid(_app(_trained, introduce), 1))
    with pytest.raises(ClientLost, match="node 1000: SettingsError: partition-id: Field required"):
        control.join(1, _WAIT_S)


def test_restarted_node_takes_its_clients_place() -> None:
    """User case 29: after a SuperNode's restart the next order goes to its new node id."""
    worked: list[int] = []
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        # Nodes 1000 and 1002 are one client's, before and after the restart.
        node = ConfigRecord({"partition-id": context.node_id % 2, "host": "here"})
        return Message(RecordDict({"node": node}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        worked.append(context.node_id)
        return Message(pack(Failure(0, "did nothing")), reply_to=message)

    grid = _ComingAndGoing(app, 3)
    grid.away = {1002}
    control = GridControlPlane(grid)
    assert control.join(2, _WAIT_S) == {0: "node 1000 on here", 1: "node 1001 on here"}
    control.push([_order(0)])
    _gather(control, 1)
    grid.away = {1000}
    deadline = time.monotonic() + _WAIT_S
    while worked[-1] != 1002 and time.monotonic() < deadline:
        control.push([_order(0)])
        _gather(control, 1)
        control.poll(0.2)
    assert worked[0] == 1000
    assert worked[-1] == 1002


def test_unavailable_node_is_waited_for() -> None:
    """Flower lists a SuperNode that is gone for a while; its error must not end the joining."""

    class Grid(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            gone = [reply for reply in replies if reply.metadata.src_node_id == 1001]
            alive = [reply for reply in replies if reply not in gone]
            return alive + [_error_like(reply, Error(5, "node unavailable")) for reply in gone]

    control = GridControlPlane(Grid(_app(_trained), 2))
    with pytest.raises(ClientLost, match="missing: client 1"):
        control.join(2, 0.5)
    assert set(control.join(1, _WAIT_S)) == {0}


def test_refused_message_is_a_failure_at_once() -> None:
    """Flower answers with no id, or None, for a node that it does not know any more."""

    class Grid(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            (message,) = messages
            if message.metadata.message_type == MessageType.TRAIN:
                return [] if message.metadata.dst_node_id == 1000 else [None]  # type: ignore[list-item]
            return super().push_messages([message])

    control = GridControlPlane(Grid(_app(_trained), 2))
    control.join(2, _WAIT_S)
    control.push([_order(0), _order(1)])
    assert {reply.client for reply in control.poll(0.0) if isinstance(reply, Failure)} == {0, 1}


def test_no_limit_on_clients_outside_of_a_simulation() -> None:
    assert _joined(_app(_trained), 1).concurrency() is None
