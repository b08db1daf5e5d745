"""Simple rules from the literature, as pure functions over costs: references for the refinement, and baselines."""

import numpy as np

from dynsl_app.cost.model import Costs, Floats, Ints


def each_alone(costs: Costs) -> Ints:
    """Every client's fastest cut as if it had the server to itself; lowest cut on ties.

    Server-blind: the rule of ARES (Samikwa et al. 2022) with all weight on time.

    Returns
    -------
    cuts, int64 (N,).
    """
    cuts: Ints = costs.c.argmin(axis=1) + 1
    return cuts


def dtfl_times(costs: Costs) -> Floats:
    """T[q] = max(client's compute + communication, communication + server's compute), seconds, (N, L); ∞ where barred.

    Source: Mohammadabadi et al., arXiv 2312.05642; tiers are cuts. The server's work is uncontended there.
    """
    batches = costs.batches[:, None]
    times = batches * (costs.transfer_s + np.maximum(costs.compute_s, costs.server_s))
    return np.where(np.isfinite(costs.c), times, np.inf)


def dtfl(costs: Costs, limit_s: float | None = None) -> Ints:
    """DTFL's rule: the most client blocks that do not make the round longer.

    Parameters
    ----------
    limit_s
        T_max, from the round before; ``None``: the static form, max_k min_q T_k[q] of these very costs.

    Returns
    -------
    cuts, int64 (N,): the largest with T ≤ T_max, else the client's smallest.
    """
    times = dtfl_times(costs)
    limit = times.min(axis=1).max() if limit_s is None else limit_s
    within = np.isfinite(times) & (times <= limit)
    largest = within.shape[1] - within[:, ::-1].argmax(axis=1)
    smallest = np.isfinite(times).argmax(axis=1) + 1
    cuts: Ints = np.where(within.any(axis=1), largest, smallest)
    return cuts
