"""Flower's ClientApp: what a node does on a message. All it does is in ``client/``."""

import logging
import platform
from collections.abc import Callable
from typing import TypeVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import TypeAdapter, ValidationError

from dynsl_app.client.epoch import train as train_round
from dynsl_app.client.evaluate import evaluate as evaluate_round
from dynsl_app.errors import DynslError, SettingsError, WireError
from dynsl_app.flower_messages import pack, unpack
from dynsl_app.orders import EvaluateOrder, Failure, TrainOrder
from dynsl_app.settings import NodeSettings

app = ClientApp()

_log = logging.getLogger(__name__)
_NODE = TypeAdapter(NodeSettings)
_Order = TypeVar("_Order", TrainOrder, EvaluateOrder)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell which partition this node holds."""

    def introduce() -> RecordDict:
        partition = node_settings(context).partition_id
        return RecordDict({"node": ConfigRecord({"partition-id": partition, "host": platform.node()})})

    return _answer(message, context, introduce)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round over the data plane that the order names."""
    return _answer(message, context, lambda: pack(train_round(_order(message, TrainOrder), node_settings(context))))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the whole model on this node's held-out data."""
    return _answer(
        message, context, lambda: pack(evaluate_round(_order(message, EvaluateOrder), node_settings(context)))
    )


def node_settings(context: Context) -> NodeSettings:
    """What this node's ``--node-config`` says of itself.

    Raises
    ------
    SettingsError
        If ``partition-id`` or ``num-partitions`` is missing, a key is unknown or a value is mistyped.
    """
    try:
        return _NODE.validate_python({key.replace("-", "_"): value for key, value in context.node_config.items()})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])).replace('_', '-')}: {problem['msg']}" for problem in error.errors()
        )
        raise SettingsError(
            f"node {context.node_id} on {platform.node()}: its --node-config is not acceptable ({problems}); it needs "
            f'"partition-id=0 num-partitions=4" and may set device, threads, data-root, allow, profile, '
            f"memory-bytes and emulate-compute, emulate-up, emulate-down, emulate-rtt"
        ) from error


def _order(message: Message, kind: type[_Order]) -> _Order:
    order = unpack(message.content)
    if not isinstance(order, kind):
        raise WireError(f"a message of type {message.metadata.message_type} carries a {type(order).__name__}")
    return order


def _answer(message: Message, context: Context, act: Callable[[], RecordDict]) -> Message:
    """Reply with what ``act`` returns, or with the reason why it failed.

    Of an exception, Flower would tell the server only that there was one.
    """
    try:
        content = act()
    except Exception as error:
        # What was raised on purpose says all in its message; of anything else, where it came from matters.
        origin = None if isinstance(error, DynslError) else error
        _log.error("node %s: %s failed: %s", context.node_id, message.metadata.message_type, error, exc_info=origin)
        partition = context.node_config.get("partition-id")
        client = partition if isinstance(partition, int) else -1
        content = pack(Failure(client, f"{type(error).__name__}: {error}"))
    return Message(content, reply_to=message)
