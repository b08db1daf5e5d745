"""The client's blocks 1..n_i, which may change between two batches (ALGORITHMS §7)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dynsl_app.model.chain import Chain
from dynsl_app.model.segment import Members, Observer, Segment
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
    ) -> None:
        self._chain, self._device = chain, device
        self.cut, self.generation = cut, 0
        for block in chain.span(cut, len(chain)):
            block.to("meta")
        self.segment = Segment([block.to(device) for block in chain.span(0, cut)], settings, observer=observer)

    @property
    def whole(self) -> bool:
        """Whether the client holds all blocks, so that there is nothing to send to the server."""
        return self.cut == len(self._chain)

    def forward(self, x: Tensor, members: Members) -> Tensor:
        """Training forward of one batch to the cut."""
        return self.segment.forward(x.to(self._device), members)

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
            self.segment.install(blocks, state)
            return {}
        given = self.segment.export(cut, before)
        for block in self.segment.release(cut, before):
            block.to("meta")
        return {name: value.to("cpu") for name, value in given.items()}
