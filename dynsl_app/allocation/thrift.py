"""Fewer moves in plans for fleets that are too large to try them one by one."""

from dataclasses import replace

import numpy as np

from dynsl_app.allocation.refine import NEAR, Refined
from dynsl_app.cost.model import Costs
from dynsl_app.cost.queueing import simulate

_SHARES = (1.0, 0.5, 0.25)
"""Of the server's spare time that may be used up; less where clients would queue for it too long (choice)."""


def thrifty(costs: Costs, plan: Refined) -> Refined:
    """A plan as good, within :data:`~dynsl_app.allocation.refine.NEAR`, with fewer moves.

    The bound's plan gives every client the least use of the server that it has time for, so that almost all of them
    would move, although few need to. Those who can stay by the plan's end are put back, the heaviest moves first, while
    the server has time for them.
    """
    if costs.move_bytes is None:
        return plan
    rows = np.arange(len(plan.cuts))
    present, planned = (rows, costs.current - 1), (rows, plan.cuts - 1)
    stays = (plan.cuts != costs.current) & (costs.current > 0) & (costs.c[present] <= plan.epoch_s)
    candidates = np.flatnonzero(stays)
    order = candidates[np.argsort(-costs.move_bytes[planned][candidates], kind="stable")]
    more_s = np.cumsum(costs.v[present][order] - costs.v[planned][order])
    spare_s = costs.workers * plan.epoch_s - costs.v[planned].sum()
    for share in _SHARES:
        fits = np.flatnonzero(more_s <= share * spare_s)
        if not len(fits):
            break
        cuts = plan.cuts.copy()
        back = order[: fits[-1] + 1]
        cuts[back] = costs.current[back]
        timeline = simulate(costs, cuts)
        if timeline.epoch_s <= plan.epoch_s * (1 + NEAR):
            moved = float(costs.move_bytes[rows, cuts - 1].sum())
            return replace(plan, cuts=cuts, timeline=timeline, moved_bytes=moved)
    return plan
