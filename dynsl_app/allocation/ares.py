"""ARES: each client alone, at the start of each round (Samikwa et al. 2022)."""

from collections.abc import Sequence

import numpy as np

from dynsl_app.allocation.base import BetweenRounds, Report
from dynsl_app.allocation.rules import each_alone
from dynsl_app.cost.model import Costs, Floats, Ints
from dynsl_app.errors import SettingsError


class AresAllocator(BetweenRounds):
    """l* = argmin λ·T̂(l) + (1-λ)·Ê(l), T and E each divided by their 2-norm over l; the lowest index on ties.

    T is a client's time with the server to itself (server-blind); E its energy, ``costs.energy_J``. Source: ALGORITHMS
    §9. Choice: real bytes are costed; the public code takes one byte an element.

    Parameters
    ----------
    time_weight
        λ, 0..1; 1: time only.
    """

    def __init__(self, time_weight: float = 1.0) -> None:
        self._weight = time_weight

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        """Cuts for the round, int64 (N,).

        Raises
        ------
        SettingsError
            Energy counts, and what the devices draw is not known.
        """
        if self._weight == 1:
            return each_alone(costs)
        if costs.energy_J is None:
            raise SettingsError(
                f"algorithm.time_weight={self._weight:g} weighs energy, and the power of the devices is not known; set "
                f"it to 1, or use a fleet that lists compute_W, send_W and receive_W"
            )
        barred = np.isinf(costs.c)
        score = self._weight * _normed(costs.c, barred)
        score += (1 - self._weight) * _normed(costs.batches[:, None] * costs.energy_J, barred)
        cuts: Ints = score.argmin(axis=1) + 1
        return cuts


def _normed(values: Floats, barred: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """Each row over its 2-norm, barred cuts infinite and apart."""
    kept = np.where(barred, 0.0, values)
    norm = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.where(barred, np.inf, kept / np.where(norm > 0, norm, 1.0))
