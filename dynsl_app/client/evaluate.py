"""Federated evaluation: the merged model on this client's own held-out data."""

from dynsl_app.client.node import prepare
from dynsl_app.model.evaluate import score
from dynsl_app.orders import EvaluateOrder, EvaluateReply
from dynsl_app.settings import NodeSettings


def evaluate(order: EvaluateOrder, node: NodeSettings) -> EvaluateReply:
    """Carry out one order.

    Raises
    ------
    DynslError
        Data or model failed; the message names the client and the remedy.
    """
    _, data, chain = prepare(order.settings, node, order.client)
    chain.load_merged_state(order.weights)
    result = score(chain, data.test, order.settings.evaluation.batch, node.device)
    return EvaluateReply(order.client, order.round, result.samples, result.correct, result.loss_sum)
