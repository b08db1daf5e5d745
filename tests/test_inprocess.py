"""The control plane without Flower."""

import pytest

from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.errors import ClientLost
from dynsl_app.inprocess import InProcessControl
from dynsl_app.model.build import build_chain
from dynsl_app.orders import EvaluateOrder, EvaluateReply, Failure, Reply, TrainOrder
from dynsl_app.settings import NodeSettings
from dynsl_app.wire.base import Endpoint

_SETTINGS = compose(["clients=3", "data.limit=48", "wire=inprocess", "faults.connect_s=0.5", "faults.reconnect_s=0.5"])


def test_all_clients_are_there_from_the_start() -> None:
    control = InProcessControl(3)
    assert list(control.join(2, 0.0)) == [0, 1]
    assert control.concurrency() is None
    assert control.poll(0.01) == []
    with pytest.raises(ClientLost, match="clients=4, but InProcessControl was made for 3"):
        control.join(4, 0.0)


def test_a_client_that_fails_answers_with_the_reason() -> None:
    """Nobody listens at the endpoint, one device does not exist; each client is answered for once."""

    def node(client: int) -> NodeSettings:
        return NodeSettings(partition_id=client, num_partitions=3, device="cuda:99" if client == 1 else "cpu")

    control = InProcessControl(3, node)
    endpoint = Endpoint("inprocess", "nobody")
    control.push([TrainOrder(client, 1, 1, 5, {}, {}, endpoint, "t", _SETTINGS) for client in range(2)])
    replies: list[Reply] = []
    while len(replies) < 2:
        replies += control.poll(20.0) or pytest.fail(f"only {replies} within 20 s")
    assert {reply.client for reply in replies} == {0, 1}
    assert all(isinstance(reply, Failure) and ": " in reply.reason for reply in replies)


def test_evaluation_comes_back() -> None:
    control = InProcessControl(3)
    weights = build_chain(_SETTINGS.model, load_source(_SETTINGS.data).spec, seed=0).merged_state()
    control.push([EvaluateOrder(2, 4, weights, _SETTINGS)])
    (reply,) = control.poll(20.0)
    assert isinstance(reply, EvaluateReply), reply
    assert (reply.client, reply.round) == (2, 4)
    assert 0 <= reply.correct <= reply.samples
