"""What a client can do when its link has fallen: stay, become fully local, or take another cut."""

from collections.abc import Mapping
from itertools import accumulate

from dynsl_app.algorithms import check
from dynsl_app.allocation.refine import EVENTS, refine
from dynsl_app.results import Case, Dropped
from dynsl_app.testbed.experiments.grid import Grid
from dynsl_app.testbed.experiments.timing import case_of
from dynsl_app.testbed.oracle import true_costs
from dynsl_app.testbed.run import Testbed
from dynsl_app.testbed.world import World


def dropped(grid: Grid, case: Mapping[str, str], seed: int) -> list[Dropped]:
    """Every client whose link falls, from the true parameters, at its cut of the best static plan.

    An estimate beside the simulation: clients are taken alone, without a queue at the server; the batches left are by
    the time since the round's start.
    """
    settings = check(grid.settings(case, f"seed={seed}", "algorithm=oracle_static"))
    world = Testbed(settings).world
    batches = {client: one.batches for client, one in enumerate(world.clients)}
    limits = dict.fromkeys(batches, (1, world.blocks))
    none = dict.fromkeys(batches, 0)
    costs = true_costs(world, 0.0, 0.0, batches, none, limits, boundary=world.blocks, moving=False)
    cuts = refine(costs, events=4 * EVENTS).cuts.tolist()
    return [
        _one(world, case_of(settings), happening.client, cuts[happening.client], happening.at_s, happening.factor)
        for happening in world.happenings
        if happening.kind == "link" and happening.client is not None and happening.factor < 1
    ]


def _one(world: World, case: Case, client: int, cut: int, at_s: float, factor: float) -> Dropped:
    one = world.clients[client]
    up_Bps, down_Bps = (next(iter(path.segments(at_s)))[1] for path in (one.up, one.down))
    compute = list(accumulate(one.block_s))
    state = [0.0, *accumulate(world.state_bytes)]
    last = world.blocks

    def batch_s(cut: int, link: float) -> float:
        if cut == last:
            return compute[-1]
        crossing = world.up_bytes[cut - 1] / (up_Bps * link) + world.down_bytes[cut - 1] / (down_Bps * link)
        return compute[cut - 1] + crossing + one.rtt_s + world.server.call_s + sum(world.server.block_s[cut:])

    def move_s(to: int) -> float:
        moved = state[to] - state[cut]
        return moved / (down_Bps * factor) if moved > 0 else -moved / (up_Bps * factor)

    rest = max(0.0, one.batches - at_s / batch_s(cut, 1.0))
    ends = {to: move_s(to) + rest * batch_s(to, factor) for to in range(1, last + 1)}
    best = min(ends, key=lambda to: (ends[to], to != cut))
    return Dropped(
        case=case,
        device=one.device,
        cut=cut,
        rest=rest,
        stay_s=ends[cut],
        local_s=rest * compute[-1],
        move_bytes=state[last] - state[cut],
        move_s=move_s(last),
        best_cut=best,
        best_s=ends[best],
        start_local_s=one.batches * compute[-1],
    )
