"""What a node answers, without Flower running."""

from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict, UserConfig

from dynsl_app.client_app import app, node_settings
from dynsl_app.errors import SettingsError
from dynsl_app.flower_messages import pack, unpack
from dynsl_app.local_grid import LocalGrid
from dynsl_app.orders import EvaluateOrder, Failure
from dynsl_app.settings import DataSettings, NodeSettings, Settings


def _context(**config: bool | float | int | str) -> Context:
    keys: UserConfig = {key.replace("_", "-"): value for key, value in config.items()}
    return Context(run_id=1, node_id=77, node_config=keys, state=RecordDict(), run_config={})


def _ask(kind: str, content: RecordDict, context: Context) -> RecordDict:
    LocalGrid(app, 0)  # Flower makes messages only where a run has begun
    return app(Message(content, 77, kind), context).content


def test_node_config_in_flowers_spelling() -> None:
    """User case 21: what a node says of itself."""
    context = _context(partition_id=2, num_partitions=3, device="cpu", threads=4, data_root="/data", allow="mine")
    assert node_settings(context) == NodeSettings(2, 3, "cpu", 4, "/data", "mine")
    context = _context(partition_id=0, num_partitions=1, profile="/etc/profile.json", memory_bytes=4 * 10**8)
    assert node_settings(context) == NodeSettings(0, 1, profile="/etc/profile.json", memory_bytes=4 * 10**8)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, r"partition-id: Field required; num-partitions: Field required"),
        ({"partition_id": -1, "num_partitions": 1}, "partition-id"),
        ({"partition_id": 0, "num_partitions": 1, "treads": 2}, "treads"),
        ({"partition_id": 0, "num_partitions": 1, "threads": "many"}, "threads"),
        ({"partition_id": 0, "num_partitions": 1, "memory_bytes": 0}, "memory-bytes"),
    ],
)
def test_bad_node_config_is_named(config: dict[str, int | str], says: str) -> None:
    with pytest.raises(SettingsError, match=rf"node 77 on .*{says}.*data-root"):
        node_settings(_context(**config))


def test_query_tells_the_partition() -> None:
    answer = _ask(MessageType.QUERY, RecordDict(), _context(partition_id=5, num_partitions=6))
    assert answer.config_records["node"]["partition-id"] == 5


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        (MessageType.QUERY, RecordDict(), "SettingsError: node 77"),
        (MessageType.TRAIN, RecordDict({"x": ConfigRecord({"y": 1})}), "WireError: a Flower message"),
        (MessageType.TRAIN, pack(EvaluateOrder(0, 1, {}, Settings())), "WireError: a message of type train carries"),
    ],
)
def test_what_fails_is_answered_with_the_reason(kind: str, content: RecordDict, says: str) -> None:
    failure = unpack(_ask(kind, content, _context(partition_id=3)))
    assert isinstance(failure, Failure)
    assert failure.client == 3
    assert failure.reason.startswith(says)


def test_missing_data_are_named_to_the_server(tmp_path: Path) -> None:
    """The node's own folder is what counts, and what is wrong with it reaches the server in its own words."""
    order = EvaluateOrder(1, 1, {}, Settings(data=DataSettings(name="mnist")))
    context = _context(partition_id=1, num_partitions=4, data_root=str(tmp_path / "absent"))
    failure = unpack(_ask(MessageType.EVALUATE, pack(order), context))
    assert isinstance(failure, Failure)
    assert failure.reason.startswith("DataError: ")
    assert "absent" in failure.reason
