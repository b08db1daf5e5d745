"""A client's round: train blocks 1..n_i over the stream, batch by batch."""

import time

from torch import Tensor

from dynsl_app.client.node import prepare
from dynsl_app.client.stream import Stream, hello
from dynsl_app.errors import ClientLost, WireError
from dynsl_app.model.optim import Rate
from dynsl_app.model.segment import Segment, all_finite, count_correct, mean_loss
from dynsl_app.orders import TrainOrder, TrainReply
from dynsl_app.plan import BatchKey
from dynsl_app.settings import NodeSettings
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.transport import make_transport


def train(order: TrainOrder, node: NodeSettings) -> TrainReply:
    """Carry out one order.

    Raises
    ------
    DynslError
        Data, model or stream failed; the message names the client and the remedy.
    """
    settings = order.settings
    data, chain = prepare(settings, node, order.client)
    whole = order.cut == len(chain)
    segment = Segment([block.to(node.device) for block in chain.span(0, order.cut)], settings.optimizer)
    del chain
    segment.load_weights(order.weights)
    segment.load_optimizer_state(order.optimizer)

    transport = make_transport(settings.wire)
    batches = data.batches_per_epoch * settings.local_epochs
    opening = hello(order.client, order.round, order.token, batches, data.samples)
    started = time.monotonic()
    stream = Stream(lambda: transport.connect(order.endpoint), opening, settings.faults)
    try:
        run = _Round(order, segment, stream, data.batches_per_epoch, node.device)
        for epoch in range(settings.local_epochs):
            for x, y in data.epoch(order.round, epoch):
                if whole:
                    run.local_batch(x, y)
                else:
                    run.split_batch(x, y)
        run.finish(whole)
    finally:
        stream.close()
    return TrainReply(
        client=order.client,
        round=order.round,
        cut=order.cut,
        weights={name: value.cpu() for name, value in segment.weights().items()},
        optimizer=segment.optimizer_state() if settings.optimizer.persist == "run" else {},
        samples=run.samples,
        metrics={"seconds": time.monotonic() - started, "wait_s": run.wait_s},
    )


class _Round:
    """The batches of one round, counted from 0 over all local epochs."""

    def __init__(self, order: TrainOrder, segment: Segment, stream: Stream, per_epoch: int, device: str) -> None:
        self._order, self._segment, self._stream, self._device = order, segment, stream, device
        settings = order.settings
        self._rate = Rate(settings.optimizer, per_epoch, settings.local_epochs, settings.rounds)
        self._batch = 0
        self.samples = 0
        self.wait_s = 0.0

    def split_batch(self, x: Tensor, y: Tensor) -> None:
        """Forward to the cut, exchange activation for gradient, backward, step."""
        top = self._forward(x, len(y))
        activation = top.detach().to("cpu")
        self._stream.send(self._frame(Kind.ACTIVATION, activation=activation, target=y))
        waiting = time.monotonic()
        reply = self._stream.answer(self._batch)
        self.wait_s += time.monotonic() - waiting
        gradient = reply.tensors.get("gradient")
        if gradient is None or gradient.shape != top.shape or gradient.dtype != top.dtype:
            raise WireError(
                f"client {self._order.client}, batch {self._batch}: the server's gradient does not fit the activation "
                f"{top.dtype}{list(top.shape)}; both sides must run the same version"
            )
        self._segment.backward(top, gradient.to(self._device))
        self._step(len(y))

    def local_batch(self, x: Tensor, y: Tensor) -> None:
        """Train the whole model on one batch and report progress, without waiting for the answer."""
        y = y.to(self._device)
        logits = self._forward(x, len(y))
        loss = mean_loss(logits, y)
        if not all_finite(loss):
            raise ClientLost(
                f"client {self._order.client}, batch {self._batch}: its loss is not finite; lower optimizer.lr, or "
                f"clip gradients (optimizer.clip=value)"
            )
        self._segment.backward(loss)
        if self._batch:
            self._stream.answer(self._batch - 1)
        meta = {"samples": len(y), "loss": float(loss.detach()), "correct": count_correct(logits, y)}
        order = self._order
        self._stream.send(Frame(Kind.PROGRESS, order.client, order.round, self._batch, meta=meta))
        self._step(len(y))

    def finish(self, whole: bool) -> None:
        """Tell the server that the round is done, and see that it knows."""
        if whole:
            self._stream.answer(self._batch - 1)
        self._stream.send(Frame(Kind.END, self._order.client, self._order.round, self._batch))
        self._stream.answer(self._batch)

    def _forward(self, x: Tensor, size: int) -> Tensor:
        key = BatchKey(self._order.settings.seed, self._order.client, self._order.round, self._batch)
        return self._segment.forward(x.to(self._device), [(key, size)])

    def _step(self, size: int) -> None:
        self._segment.step(self._rate.at(self._order.round, self._batch))
        self.samples += size
        self._batch += 1

    def _frame(self, kind: Kind, **tensors: Tensor) -> Frame:
        return Frame(kind, self._order.client, self._order.round, self._batch, tensors=tensors)
