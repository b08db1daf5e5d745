"""The real split training, step by step as the simulation says (``testbed.compute=real``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dynsl_app.client.node import head_for, prepare
from dynsl_app.client.prefix import Prefix
from dynsl_app.data.loader import ClientData
from dynsl_app.model.optim import Rate
from dynsl_app.model.segment import CALM_DOWN, all_finite, count_correct, mean_loss
from dynsl_app.orders import TrainReply
from dynsl_app.plan import BatchKey, Plan
from dynsl_app.server.heads import Heads, Refused, Result, Work
from dynsl_app.server.standing import Standing
from dynsl_app.settings import NodeSettings, Settings


@dataclass
class _Device:
    """What one client holds in a round."""

    prefix: Prefix
    batches: Iterator[tuple[Tensor, Tensor]]
    rate: Rate
    top: Tensor | None = None
    target: Tensor | None = None
    gradient: Tensor | None = None


class RealCompute:
    """All clients' prefixes and the server's heads of one round; see :class:`~dynsl_app.testbed.simulate.Compute`.

    Each side has as many torch threads as the settings give it: the bits depend on them.
    """

    def __init__(self, settings: Settings, plan: Plan, round_: int, standing: Standing, heads: Heads) -> None:
        self._settings, self._plan, self._round = settings, plan, round_
        self._standing, self._heads = standing, heads
        self._devices: dict[int, _Device] = {}

    def open(self, client: int, cut: int) -> None:
        """A client begins its round."""
        if client in self._devices:
            return
        settings, standing = self._settings, self._standing
        node = NodeSettings(partition_id=client, num_partitions=settings.clients)
        spec, data, chain = prepare(settings, node, client)
        planned = self._plan.cuts[client]
        # Blocks begin where they were planned to be; a classifier at the cut, if it has one, where it joins.
        prefix = Prefix(chain, planned, settings.optimizer, head=head_for(settings, chain, spec, cut))
        both = planned, cut
        prefix.load(
            {name: value for n in both for name, value in standing.weights(client, 0, n).items()},
            {path: value for n in both for path, value in standing.optimizer(client, 0, n).items()},
        )
        self._heads.open(client, standing.batchnorms.get(client, {}), standing.optimizers.get(client, {}))
        rate = Rate(settings.optimizer, data.batches_per_epoch, settings.local_epochs, settings.rounds)
        self._devices[client] = _Device(prefix, _batches(data, self._round, settings.local_epochs), rate)
        if cut != planned:  # it joins with a cut that was found later
            self.move(client, cut)

    def forward(self, client: int, batch: int) -> None:
        """A client's forward to its cut."""
        torch.set_num_threads(self._settings.threads)
        device = self._devices[client]
        x, device.target = next(device.batches)
        device.top = device.prefix.forward(x, [(self._key(client, batch), len(device.target))])

    def serve(self, members: Sequence[tuple[int, int]]) -> Sequence[tuple[int, float, int] | str]:
        """The server's part of a group of (client, batch)."""
        torch.set_num_threads(self._settings.server.threads)
        works = []
        for client, batch in members:
            device = self._devices[client]
            assert device.top is not None
            assert device.target is not None
            rate = device.rate.at(self._round, batch)
            top = device.top.detach()
            works.append(Work(self._key(client, batch), top, device.target, rate, device.prefix.cut))
        outcomes = self._heads.backward(works)
        if trained := [work for work, one in zip(works, outcomes, strict=True) if isinstance(one, Result)]:
            self._heads.step(trained)
        told: list[tuple[int, float, int] | str] = []
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Refused):
                told.append(outcome.reason)
            else:
                self._devices[work.key.client].gradient = outcome.gradient
                told.append((len(work.target), outcome.loss, outcome.correct))
        return told

    def backward(self, client: int, batch: int) -> None:
        """A client's backward and step."""
        torch.set_num_threads(self._settings.threads)
        device = self._devices[client]
        prefix = device.prefix
        assert device.top is not None
        if prefix.alone:
            assert device.target is not None
            prefix.backward_alone(device.top, device.target, [(self._key(client, batch), len(device.target))])
            device.top = device.top.detach()  # the server may not have seen it yet
        else:
            assert device.gradient is not None
            prefix.backward(device.top, device.gradient)
            device.top = device.gradient = None
        prefix.step(device.rate.at(self._round, batch))

    def local(self, client: int, batch: int) -> tuple[int, float, int] | str:
        """A batch of a fully local client."""
        torch.set_num_threads(self._settings.threads)
        device = self._devices[client]
        x, target = next(device.batches)
        logits = device.prefix.forward(x, [(self._key(client, batch), len(target))])
        loss = mean_loss(logits, target)
        if not all_finite(loss):
            return f"batch {batch}: its loss is not finite; {CALM_DOWN}"
        device.prefix.backward(loss)
        device.prefix.step(device.rate.at(self._round, batch))
        return len(target), float(loss.detach()), count_correct(logits, target)

    def move(self, client: int, cut: int) -> None:
        """A client takes a new cut, between two batches."""
        prefix = self._devices[client].prefix
        state = self._heads.export(client, cut) if cut > prefix.cut else {}
        given = prefix.move(cut, prefix.generation + 1, state)
        self._heads.move(client, cut, given)

    def replies(self, clients: Sequence[int], samples: Mapping[int, int]) -> dict[int, TrainReply]:
        """What clients that have done all their batches send back."""
        persist = self._settings.optimizer.persist == "run"
        replies = {}
        for client in clients:
            prefix = self._devices[client].prefix
            replies[client] = TrainReply(
                client=client,
                round=self._round,
                cut=prefix.cut,
                weights=prefix.weights(),
                optimizer=prefix.optimizer_state() if persist else {},
                samples=samples[client],
                metrics={},
            )
        return replies

    def _key(self, client: int, batch: int) -> BatchKey:
        return BatchKey(self._settings.seed, client, self._round, batch)


def _batches(data: ClientData, round_: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in range(epochs):
        yield from data.epoch(round_, epoch)
