"""A client's round: train blocks 1..n_i over the stream, batch by batch."""

import math
import os
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from dynsl_app.algorithms import ALGORITHMS
from dynsl_app.client.emulate import emulator_for
from dynsl_app.client.introduce import Introduction, introduce
from dynsl_app.client.node import head_for, prepare
from dynsl_app.client.prefix import Prefix
from dynsl_app.client.stream import Stream, hello
from dynsl_app.errors import ClientLost, WireError
from dynsl_app.model.optim import Rate
from dynsl_app.model.segment import CALM_DOWN, Members, all_finite, count_correct, mean_loss
from dynsl_app.orders import TrainOrder, TrainReply
from dynsl_app.plan import PROMPT, BatchKey
from dynsl_app.settings import NodeSettings
from dynsl_app.telemetry.device import DeviceSampler
from dynsl_app.telemetry.meter import BlockMeter, meter_for
from dynsl_app.telemetry.probing import asked, carrying
from dynsl_app.telemetry.report import report
from dynsl_app.wire.base import Frame, Kind, Scalar, Transfer
from dynsl_app.wire.transport import make_transport


def train(order: TrainOrder, node: NodeSettings) -> TrainReply:
    """Carry out one order.

    Raises
    ------
    DynslError
        Data, model or stream failed; the message names the client and the remedy.
    """
    settings = order.settings
    sampler = DeviceSampler(node.device)
    spec, data, chain = prepare(settings, node, order.client)
    emulator = emulator_for(settings, node, order.client)
    told = introduce(settings, node, order.client, chain, spec, emulator) if order.profile else Introduction()
    meter = meter_for(node.device) if ALGORITHMS[settings.algorithm.name].adaptive else None
    observer = meter if emulator is None else emulator.around(meter)
    head = head_for(settings, chain, spec, order.cut)
    prefix = Prefix(chain, order.cut, settings.optimizer, node.device, observer, head)
    prefix.load(order.weights, order.optimizer)

    transport = make_transport(settings.wire)
    batches = data.batches_per_epoch * settings.local_epochs
    opening = hello(order.client, order.round, order.token, batches, data.samples, told.profile_s, told.memory_bytes)
    started = time.monotonic()
    pacer = None if emulator is None else emulator.pacer
    stream = Stream(lambda: transport.connect(order.endpoint, pacer), opening, settings.faults)
    try:
        if emulator is not None:
            emulator.begin_epoch()
        run = _Round(order, prefix, stream, data.batches_per_epoch, meter)
        for epoch in range(settings.local_epochs):
            for x, y in data.epoch(order.round, epoch):
                if emulator is not None:
                    emulator.batch(run.batch)
                run.train(x, y)
        run.finish()
    finally:
        stream.close()
    return TrainReply(
        client=order.client,
        round=order.round,
        cut=prefix.cut,
        weights={name: value.cpu() for name, value in prefix.weights().items()},
        optimizer=prefix.optimizer_state() if settings.optimizer.persist == "run" else {},
        samples=run.samples,
        metrics={"seconds": time.monotonic() - started, "wait_s": run.wait_s},
        device=sampler.sample(),
    )


class _Round:
    """The batches of one round, counted from 0 over all local epochs."""

    def __init__(
        self, order: TrainOrder, prefix: Prefix, stream: Stream, per_epoch: int, meter: BlockMeter | None
    ) -> None:
        self._order, self._prefix, self._stream, self._meter = order, prefix, stream, meter
        settings = order.settings
        self._rate = Rate(settings.optimizer, per_epoch, settings.local_epochs, settings.rounds)
        self.batch = 0
        self._unread: int | None = None
        """The batch whose progress has been told, and the server's answer not yet read."""
        self._given: dict[str, Tensor] = {}
        """State of the blocks given up, for the next activation."""
        self._block_s: dict[int, float] = {}
        """Seconds by block of the last batch, not told yet."""
        self._exchanged: tuple[float, Transfer | None] = (0.0, None)
        """Seconds from sending the last frame to having its answer, and when that came; None: not waited for."""
        self._sent = time.monotonic()
        """When what an ACK answers was sent last."""
        self._answering_s = math.inf
        """How long the last ACK took to come."""
        self._asked = 0
        """Bytes with which the last answer read asked to probe the link."""
        self._noise = torch.empty(0, dtype=torch.uint8)
        self.samples = 0
        self.wait_s = 0.0

    def train(self, x: Tensor, y: Tensor) -> None:
        """Train on one batch, wherever the blocks are."""
        reply: Frame | None = None
        if self._prefix.whole:
            reply = self._local_batch(x, y)
        elif self._prefix.alone:
            self._lone_batch(x, y)
        else:
            reply = self._split_batch(x, y)
        self.samples += len(y)
        self.batch += 1
        if reply is not None and "cut" in reply.meta:
            self._move(reply)

    def finish(self) -> None:
        """Tell the server that the round is done, and see that it knows."""
        if self._unread is not None:
            self._answer(self._unread)
        self._stream.send(self._frame(Kind.END))
        self._answer(self.batch)

    def _split_batch(self, x: Tensor, y: Tensor) -> Frame:
        """Forward to the cut, exchange activation for gradient, backward."""
        top = self._forward(x, len(y))
        self._send_activation(top, y)
        reply = self._exchange()
        gradient = reply.tensors.get("gradient")
        if gradient is None or gradient.shape != top.shape or gradient.dtype != top.dtype:
            raise WireError(
                f"client {self._order.client}, batch {self.batch}: the server's gradient does not fit the activation "
                f"{top.dtype}{list(top.shape)}; both sides must run the same version"
            )
        self._prefix.backward(top, gradient.to(top.device))
        self._step()
        return reply

    def _lone_batch(self, x: Tensor, y: Tensor) -> None:
        """Forward to the cut, send the activation, and train on a loss of its own; no gradient returns.

        The answer is read before the next activation is sent, so that one batch at most waits at the server.
        """
        top = self._forward(x, len(y))
        if self._unread is not None:
            reply = self._answer(self._unread)
            self._exchanged = self._answering_s, reply.received
        self._sent = time.monotonic()
        self._send_activation(top, y)
        self._unread = self.batch
        self._prefix.backward_alone(top, y, self._members(len(y)))
        self._step()

    def _send_activation(self, top: Tensor, y: Tensor) -> None:
        # Blocks that went to the server go with the first activation that needs them there. They stay in this frame
        # until it is answered, which acknowledges the move; a lost connection sends it again.
        given, self._given = self._given, {}
        told = report(self._block_s, *self._exchanged)
        tensors = {"activation": top.detach().to("cpu"), "target": y, **told.tensors, **given}
        self._stream.send(self._frame(Kind.ACTIVATION, meta=told.meta, tensors=tensors))

    def _local_batch(self, x: Tensor, y: Tensor) -> Frame | None:
        """Train the whole model on a batch, then tell the progress.

        The answer is read one batch later, or at once where that takes next to no time (choice), so that a slow client
        moves as soon as it is told to; with a probe it is waited for. The answer that commands a move, if one does,
        else any.
        """
        began = time.monotonic()
        logits = self._forward(x, len(y))
        target = y.to(logits.device)
        loss = mean_loss(logits, target)
        if not all_finite(loss):
            raise ClientLost(f"client {self._order.client}, batch {self.batch}: its loss is not finite; {CALM_DOWN}")
        self._prefix.backward(loss)
        self._step()
        reply = None if self._unread is None else self._answer(self._unread)
        told = report(self._block_s, *self._exchanged)
        trained = {"samples": len(y), "loss": float(loss.detach()), "correct": count_correct(logits, target)}
        meta = {**told.meta, **trained}
        probe = self._probe(self._asked) if self._asked else None
        tensors = {**told.tensors, **carrying(probe)}
        self._sent = time.monotonic()
        self._stream.send(self._frame(Kind.PROGRESS, meta=meta, tensors=tensors))
        self._unread = self.batch
        self._block_s, self._exchanged = {}, (0.0, None)
        if probe is not None:
            back = self._exchange()
        elif self._answering_s <= PROMPT * (self._sent - began):
            back = self._answer(self.batch)
            self._unread = None
        else:
            return reply
        return back if reply is None or "cut" in back.meta else reply

    def _step(self) -> None:
        self._prefix.step(self._rate.at(self._order.round, self.batch))
        self._block_s = self._meter.take() if self._meter else {}

    def _exchange(self) -> Frame:
        """Wait for the answer to the frame just sent, and note how long that took."""
        waited = self.wait_s
        reply = self._answer(self.batch)
        self._unread = None
        self._exchanged = self.wait_s - waited, reply.received
        return reply

    def _probe(self, size: int) -> Tensor:
        """So many bytes, uint8 (size,), that nothing on the way can shorten; made once."""
        if len(self._noise) < size:
            self._noise = torch.frombuffer(bytearray(os.urandom(size)), dtype=torch.uint8)
        return self._noise[:size]

    def _forward(self, x: Tensor, size: int) -> Tensor:
        return self._prefix.forward(x, self._members(size))

    def _members(self, size: int) -> Members:
        return [(BatchKey(self._order.settings.seed, self._order.client, self._order.round, self.batch), size)]

    def _answer(self, batch: int) -> Frame:
        waiting = time.monotonic()
        reply = self._stream.answer(batch)
        self.wait_s += time.monotonic() - waiting
        if reply.kind is Kind.ACK and reply.received is not None:
            self._answering_s = reply.received.last - self._sent
        self._asked = asked(reply)
        return reply

    def _move(self, reply: Frame) -> None:
        cut, generation = reply.meta["cut"], reply.meta.get("generation")
        if not isinstance(cut, int) or generation != self._prefix.generation + 1:
            raise WireError(
                f"client {self._order.client}, batch {reply.batch}: cut {cut} of placement {generation} was commanded "
                f"at placement {self._prefix.generation}; both sides must run the same version"
            )
        self._given = self._prefix.move(cut, self._prefix.generation + 1, reply.tensors)

    def _frame(
        self, kind: Kind, *, meta: Mapping[str, Scalar] | None = None, tensors: Mapping[str, Tensor] | None = None
    ) -> Frame:
        order, generation = self._order, self._prefix.generation
        return Frame(
            kind, order.client, order.round, self.batch, generation=generation, meta=meta or {}, tensors=tensors or {}
        )
