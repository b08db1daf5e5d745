"""The exact optimum of the bound (ALGORITHMS §6.1).

The bound of a plan is T(n) = max(max_i c_i(n_i), Σ_i v_i(n_i) / m). Given a deadline T for every client alone,
the least work for the server is F(T) = Σ_i min{v_i(n) : c_i(n) ≤ T}, which falls as T grows, in steps at the values
of c. So the optimum lies at the step where F(T) first fits into mT, or at the one before, where the server's work sets
the time.
"""

from dataclasses import dataclass

import numpy as np

from dynsl_app.cost.model import Costs, Floats, Ints


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan and its own bound.

    Attributes
    ----------
    cuts
        n_i, one a client in the costs' order, int64 (N,).
    bound_s
        T(n) of this plan, seconds: the least of all plans, up to rounding.
    """

    cuts: Ints
    bound_s: float


def solve(costs: Costs) -> Solution:
    """The cuts that minimise the bound, exactly.

    Clients that could take several cuts with the same least work v take the current cut, else the one of least c,
    else the larger cut.
    """
    cuts = solve_arrays(costs.c, costs.v, costs.workers, costs.current)
    return Solution(cuts=cuts, bound_s=costs.bound(cuts))


def solve_arrays(c: Floats, v: Floats, workers: int, current: Ints) -> Ints:
    """The same over bare arrays, for costs that are not those of an instance (a surcharge, for one).

    Parameters
    ----------
    c, v
        Each client's own time and the server's work for it at every cut, seconds, (N, L); ∞ where barred, and a
        finite c in every row.
    workers
        m.
    current
        Present cuts, int64 (N,); 0 for none.

    Returns
    -------
    cuts, int64 (N,).
    """
    return _cheapest(c, v, _deadline(c, v, workers), current)


def _deadline(c: Floats, v: Floats, workers: int) -> float:
    """T⁺ or T⁻, whichever attains the optimum min(T⁺, F(T⁻)/m).

    Bisection over the values of c. Each step halves the entries in doubt: those at or below a deadline known to be
    too soon are folded into ``work``, F's terms by client; so all steps together cost O(NL), without a sort.
    """
    least = c.min(axis=1).max()  # below it some client has no cut at all; it is a value of c, so entries is not empty
    work = np.where(c < least, v, np.inf).min(axis=1)
    entries = np.flatnonzero((c >= least) & (c < np.inf))
    rows, own, load = entries // c.shape[1], c.ravel()[entries], v.ravel()[entries]
    enough = too_soon = load_s = np.inf
    while len(own):
        middle = (len(own) - 1) // 2
        deadline = np.partition(own, middle)[middle]
        inside = own <= deadline
        trial = work.copy()
        np.minimum.at(trial, rows[inside], load[inside])
        if trial.sum() <= workers * deadline:
            enough = deadline
            keep = own < deadline
        else:
            too_soon, load_s = deadline, trial.sum() / workers
            work = trial
            keep = ~inside
        rows, own, load = rows[keep], own[keep], load[keep]
    return float(enough if enough <= load_s else too_soon)


def _cheapest(c: Floats, v: Floats, deadline: float, current: Ints) -> Ints:
    """The cuts that attain F(T), ties broken as :func:`solve` says."""
    work = np.where(c <= deadline, v, np.inf)
    tied = work == work.min(axis=1, keepdims=True)
    own = np.where(tied, c, np.inf)
    cuts: Ints = own.shape[1] - own[:, ::-1].argmin(axis=1)
    keeps = tied[np.arange(len(c)), current - 1] & (current > 0)
    return np.where(keeps, current, cuts)
