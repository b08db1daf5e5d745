"""From the bound's optimum to a plan that is good with queueing (ALGORITHMS §6.2).

The bound forgets that clients wait for one another at the server, and fills it to the brim. Here candidates from the
solver (with ever higher surcharges on using the server) and from simple rules are simulated, the best is improved
by moves of one client at a time, and among plans as good the one that moves the fewest bytes is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dynsl_app.allocation.rules import dtfl, each_alone
from dynsl_app.allocation.solver import solve, solve_arrays
from dynsl_app.cost.model import Costs, Floats, Ints
from dynsl_app.cost.queueing import Timeline, requests, simulate

SURCHARGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""x of §6.2: expected wait a request, in units of the longest service. 0 is the bound's plan itself."""

EVENTS = 60_000
"""Default budget of simulated requests, some 25 ms: 24 clients × 50 batches fifty times."""

WORTH = 0.001
"""A change is tried only if the bound lets it shorten the epoch by this share: below it nobody notices."""

NEAR = 0.01
"""Plans within this share of the best count as equally good."""


@dataclass(frozen=True, eq=False)
class Refined:
    """A plan and the epoch it is simulated to give.

    Attributes
    ----------
    cuts
        n_i, one a client in the costs' order, int64 (N,).
    timeline
        When each client ends and how long it waited.
    moved_bytes
        State that the plan moves, by ``costs.move_bytes``; 0 without.
    origin
        Where the search found it: ``bound``, ``alone``, ``dtfl``, ``today``, ``surcharge`` or ``move``.
    """

    cuts: Ints
    timeline: Timeline
    moved_bytes: float
    origin: str

    @property
    def epoch_s(self) -> float:
        """Simulated end of the epoch, seconds from now."""
        return self.timeline.epoch_s


def refine(costs: Costs, *, events: int = EVENTS) -> Refined:
    """The best plan found with queueing simulated.

    Never one that the simulation judges worse than the best of: the bound's plan, each client alone, DTFL's rule,
    and today's cuts (where every client has one that is allowed). These four are always simulated; everything
    beyond stops once ``events`` requests have been simulated (a count, so that the result is
    deterministic and no clock is read).
    """
    search = _Search(costs)
    search.budget = events
    for origin, cuts in _references(costs):
        search.attempt(origin, cuts)
    reference_s = search.best.epoch_s

    longest = costs.server_s.max()
    for share in SURCHARGES:
        if search.budget <= 0:
            break
        surcharge = costs.batches[:, None] * (share * longest) * (costs.server_s > 0)
        cuts = solve_arrays(costs.c + surcharge, costs.v, costs.workers, costs.current)
        if costs.bound(cuts) < search.best.epoch_s * (1 - WORTH):
            search.attempt("surcharge", cuts)
    while search.budget > 0 and search.improve():
        pass
    if costs.move_bytes is None:
        return search.best
    search.budget = events // 4
    return search.lightest(min(reference_s, search.best.epoch_s * (1 + NEAR)))


def _references(costs: Costs) -> Iterator[tuple[str, Ints]]:
    """The plans that the result must not be worse than; today's first, so that it wins where all are equal."""
    if (costs.current > 0).all() and np.isfinite(costs.c[np.arange(len(costs.c)), costs.current - 1]).all():
        yield "today", costs.current
    yield "bound", solve(costs).cuts
    yield "alone", each_alone(costs)
    yield "dtfl", dtfl(costs)


class _Search:
    """Plans simulated so far, by their cuts, and the best of them; ``budget`` counts down requests to simulate."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._rows = np.arange(len(costs.c))
        self._tried: dict[bytes, Refined] = {}
        self.budget = 0
        self.best: Refined

    def attempt(self, origin: str, cuts: Ints) -> Refined:
        """Simulate a plan, or recall it, and keep it if it is the best."""
        key = cuts.tobytes()
        trial = self._tried.get(key)
        if trial is None:
            self.budget -= requests(self._costs, cuts)
            trial = Refined(cuts, simulate(self._costs, cuts), self._bytes(cuts), origin)
            if not self._tried or trial.epoch_s < self.best.epoch_s:
                self.best = trial
            self._tried[key] = trial
        return trial

    def _bytes(self, cuts: Ints) -> float:
        moved = self._costs.move_bytes
        return 0.0 if moved is None else float(moved[self._rows, cuts - 1].sum())

    def improve(self) -> bool:
        """One move of one client that shortens the epoch, slowest client first; False when none does."""
        best = self.best
        for client in np.argsort(-best.timeline.end_s, kind="stable").tolist():
            for cut in self._promising(best, client):
                if self.budget <= 0:
                    return False
                cuts = best.cuts.copy()
                cuts[client] = cut
                if self.attempt("move", cuts).epoch_s < best.epoch_s:
                    return True
        return False

    def _promising(self, plan: Refined, client: int) -> Ints:
        """Cuts for one client that may shorten the epoch, the most promising first.

        Two facts spare most simulations: a plan's bound is never above its simulated time, and a client that does not
        end last can only help by giving the server less work.
        """
        costs, cuts = self._costs, plan.cuts
        own, work = costs.c[self._rows, cuts - 1], costs.v[self._rows, cuts - 1]
        others_s = np.delete(own, client).max(initial=0.0)
        load_s = (work.sum() - work[client] + costs.v[client]) / costs.workers
        bound_s = np.maximum(np.maximum(costs.c[client], load_s), others_s)
        useful = bound_s < plan.epoch_s * (1 - WORTH)
        if plan.timeline.end_s[client] < plan.epoch_s:
            useful &= costs.v[client] < work[client]
        useful[cuts[client] - 1] = False
        waits = plan.timeline.wait_s[client] if costs.server_s[cuts[client] - 1] > 0 else plan.timeline.wait_s.mean()
        expected_s: Floats = costs.c[client] + waits * (costs.server_s > 0)
        order = np.argsort(expected_s, kind="stable")
        cuts_in_order: Ints = order[useful[order]] + 1
        return cuts_in_order

    def lightest(self, limit_s: float) -> Refined:
        """Of the plans simulated to end by ``limit_s``, the one that moves the fewest bytes, then the soonest.

        Before choosing, clients of the best plan are put back to their present cuts, the heaviest move first, as long
        as the epoch still ends by then and the budget lasts.
        """
        costs, plan = self._costs, self.best
        moves = costs.move_bytes
        assert moves is not None  # the caller's condition
        for client in np.argsort(-moves[self._rows, plan.cuts - 1], kind="stable").tolist():
            cut = int(costs.current[client])
            if self.budget <= 0:
                break
            if cut == 0 or cut == plan.cuts[client]:
                continue
            cuts = plan.cuts.copy()
            cuts[client] = cut
            if costs.bound(cuts) <= limit_s and (trial := self.attempt("move", cuts)).epoch_s <= limit_s:
                plan = trial
        near = [trial for trial in self._tried.values() if trial.epoch_s <= limit_s]
        return min(near, key=lambda trial: (trial.moved_bytes, trial.epoch_s))
