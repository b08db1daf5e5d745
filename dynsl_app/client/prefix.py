"""The client's blocks 1..n_i, which may change between two batches (ALGORITHMS §7)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.segment import Entry, Members, Observer, Segment, mean_loss
from dynsl_app.settings import OptimizerSettings


class Prefix:
    """Blocks 1..cut of a chain. The others are kept as shapes only, so that they cost no memory.

    Parameters
    ----------
    chain
        Owned from now on; its weights are still to be loaded.
    cut
        n_i.
    device
        Where to compute.
    observer
        Follows the work from block to block.
    head
        A classifier at the cut, on which the client trains instead of the server's gradient; such a client is never
        moved.

    Attributes
    ----------
    cut, generation
        Where the client is cut, and how often that has changed in this round.
    """

    def __init__(
        self,
        chain: Chain,
        cut: int,
        settings: OptimizerSettings,
        device: str = "cpu",
        observer: Observer | None = None,
        head: Block | None = None,
    ) -> None:
        self._chain, self._device = chain, device
        self.cut, self.generation = cut, 0
        for block in chain.span(cut, len(chain)):
            block.to("meta")
        self._segment = Segment([block.to(device) for block in chain.span(0, cut)], settings, observer=observer)
        self._head = None if head is None else Segment([head.to(device)], settings)

    @property
    def whole(self) -> bool:
        """Whether the client holds all blocks, so that there is nothing to send to the server."""
        return self.cut == len(self._chain)

    @property
    def alone(self) -> bool:
        """Whether it trains on a loss of its own, and takes no gradient from the server."""
        return self._head is not None

    def load(self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Take weights and optimizer state of all that is held.

        Raises
        ------
        ModelError
            They do not fit.
        """
        for segment in self._segments():
            segment.load_weights(weights)
            segment.load_optimizer_state(optimizer)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers of all that is held, by name; tensors are not copied."""
        return {name: value for segment in self._segments() for name, value in segment.weights().items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """As :meth:`Segment.optimizer_state`, of all that is held."""
        return {path: value for segment in self._segments() for path, value in segment.optimizer_state().items()}

    def forward(self, x: Tensor, members: Members) -> Tensor:
        """Training forward of one batch to the cut."""
        return self._segment.forward(x.to(self._device), members)

    def backward(self, top: Tensor, gradient: Tensor | None = None) -> None:
        """Backward from the cut with the gradient there, or from a loss."""
        self._segment.backward(top, gradient)

    def backward_alone(self, top: Tensor, target: Tensor, members: Members) -> None:
        """Backward through the classifier at the cut, then from the cut, as its mean loss asks."""
        assert self._head is not None
        entry = Entry(top)
        logits = self._head.forward(entry.tensor, members)
        self._head.backward(mean_loss(logits, target.to(logits.device)))
        self._segment.backward(top, entry.gradient)

    def step(self, rate: float) -> None:
        """Update all that is held from its gradients, then drop them."""
        for segment in self._segments():
            segment.step(rate)

    def move(self, cut: int, generation: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take a new cut, between two batches.

        Parameters
        ----------
        state
            Of blocks that come from the server, for a higher cut.

        Returns
        -------
        dict
            State of the blocks given up, for a lower cut: to be sent with the next activation. Its tensors
            live as long as that frame does, so that it can be sent again.

        Raises
        ------
        ModelError
            The state does not fit.
        """
        before, self.cut, self.generation = self.cut, cut, generation
        if cut > before:
            blocks = [block.to_empty(device=torch.device(self._device)) for block in self._chain.span(before, cut)]
            self._segment.install(blocks, state)
            return {}
        given = self._segment.export(cut, before)
        for block in self._segment.release(cut, before):
            block.to("meta")
        return {name: value.to("cpu") for name, value in given.items()}

    def _segments(self) -> list[Segment]:
        return [self._segment] if self._head is None else [self._segment, self._head]
