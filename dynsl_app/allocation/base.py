"""What an allocator sees and decides: costs and counts of batches, never sockets, tensors or clocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dynsl_app.cost.model import Costs, Ints


@dataclass(frozen=True, eq=False)
class Situation:
    """An epoch under way; one row a client, in the costs' order.

    Attributes
    ----------
    costs
        With R_i batches still to do, present cuts, and M_i(n), the cost of moving.
    batches_done
        In this epoch, int64 (N,).
    since_move
        Measured batches since its last move completed, or since the epoch began, int64 (N,).
    moving
        Told to move and not there yet, bool (N,): ``costs.current`` is its target, it is not to be commanded again.
    jumped
        An estimate of this client, or of the server, has jumped since the last call, bool (N,).
    paced
        Where its device itself has become slower or faster since the last call, the batches that this was seen in
        already, int64 (N,); 0: it has not.
    in_doubt
        Its last measurement was off, and its next will tell whether that was chance, bool (N,).
    joined
        Whether somebody has joined or left since the last call.
    """

    costs: Costs
    batches_done: Ints
    since_move: Ints
    moving: NDArray[np.bool_]
    jumped: NDArray[np.bool_]
    paced: Ints
    in_doubt: NDArray[np.bool_]
    joined: bool


@dataclass(frozen=True)
class Report:
    """What was measured of one client in its last round.

    Attributes
    ----------
    cut
        At the end of it.
    batches
        That it did.
    compute_s
        Seconds that it computed in all.
    total_s
        Seconds from its first batch's start to its last one's end.
    """

    cut: int
    batches: int
    compute_s: float
    total_s: float


class Allocator(Protocol):
    """Decides on cuts."""

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        """Cuts to begin an epoch with, int64 (N,).

        Parameters
        ----------
        costs
            Of a whole epoch by today's estimates, one row a client.
        last
            Each client's last round; None if it had none.
        """
        ...

    def due(self, batches_total: int, *, jumped: bool, joined: bool) -> bool:
        """Whether it is time to revise; ``batches_total``: batches of all clients so far in this epoch."""
        ...

    def revise(self, situation: Situation) -> dict[int, int]:
        """Moves to command now: row to new cut. Empty: all stay."""
        ...


class BetweenRounds:
    """What rules that decide once a round have in common: in mid-epoch they ask for nothing."""

    def due(self, batches_total: int, *, jumped: bool, joined: bool) -> bool:
        """Never."""
        return False

    def revise(self, situation: Situation) -> dict[int, int]:
        """All stay."""
        return {}
