"""A plan as tables that a person reads (``dynsl-plan --explain``)."""

from collections.abc import Iterator

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dynsl_app.allocation.refine import Refined
from dynsl_app.allocation.rules import dtfl, each_alone
from dynsl_app.allocation.solver import Solution
from dynsl_app.cost.breakdown import breakdown
from dynsl_app.cost.instance import Instance
from dynsl_app.cost.model import Costs, Ints
from dynsl_app.cost.queueing import simulate


def explain(console: Console, instance: Instance, costs: Costs, solution: Solution, refined: Refined | None) -> None:
    """Print where each client's time goes, what limits the plan, and what simpler plans would give."""
    cuts = solution.cuts if refined is None else refined.cuts
    console.print(Group(_clients(instance, costs, cuts), _limit(costs, cuts), Text(), _plans(costs, solution, refined)))


def _clients(instance: Instance, costs: Costs, cuts: Ints) -> Table:
    parts, timeline = breakdown(instance, cuts), simulate(costs, cuts)
    table = _table("Seconds of the epoch, by client (* ends last)")
    table.add_column("client", no_wrap=True)
    headings = ("batches", "cut", "was", "compute", "up", "down", "rtt", "server", "wait", "ends")
    for heading in headings:
        table.add_column(heading, justify="right")
    last = int(timeline.end_s.argmax())
    for i, client in enumerate(instance.clients):
        seconds = (parts.compute_s, parts.up_s, parts.down_s, parts.rtt_s, parts.server_s, timeline.wait_s)
        table.add_row(
            client.name,
            str(client.batches),
            _cut(int(cuts[i]), instance.blocks),
            _cut(client.cut, instance.blocks),
            *(f"{part[i]:.1f}" for part in seconds),
            f"{timeline.end_s[i]:.1f}{'*' if i == last else ' '}",
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)


def _cut(cut: int | None, blocks: int) -> str:
    return "-" if cut is None else "local" if cut == blocks else str(cut)


def _limit(costs: Costs, cuts: Ints) -> Text:
    """One sentence: what sets the bound of this plan."""
    chosen = np.arange(len(cuts)), cuts - 1
    own_s, load_s = costs.c[chosen], float(costs.v[chosen].sum()) / costs.workers
    slowest = int(own_s.argmax())
    if costs.shared_floor_s > max(own_s[slowest], load_s):
        return Text(f"The shared head limits: its steps are serial and take {costs.shared_floor_s:.2f} s at any cuts.")
    if load_s > own_s[slowest]:
        workers = f"{costs.workers} worker{'s' if costs.workers > 1 else ''}"
        return Text(f"The server limits: {load_s:.2f} s of work for each of {workers}.")
    return Text(f"Client {costs.names[slowest]} limits: {own_s[slowest]:.2f} s even if it never waits.")


def _plans(costs: Costs, solution: Solution, refined: Refined | None) -> Table:
    table = _table("This plan and others, seconds")
    for heading in ("plan", "bound", "with queueing"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")
    if refined is not None:
        table.add_row("refined", f"{costs.bound(refined.cuts):.2f}", f"{refined.epoch_s:.2f}")
    for name, cuts in (("optimum of the bound", solution.cuts), *_others(costs)):
        table.add_row(name, f"{costs.bound(cuts):.2f}", f"{simulate(costs, cuts).epoch_s:.2f}")
    return table


def _others(costs: Costs) -> Iterator[tuple[str, Ints]]:
    """Plans to compare with, where every client may take them."""
    rows = np.arange(len(costs.c))
    yield "each client alone", each_alone(costs)
    yield "DTFL's rule", dtfl(costs)
    if (costs.current > 0).all() and np.isfinite(costs.c[rows, costs.current - 1]).all():
        yield "present cuts", costs.current
    uniform = [np.full(len(rows), column + 1) for column in np.flatnonzero(np.isfinite(costs.c).all(axis=0))]
    if uniform:
        best = min(uniform, key=costs.bound)
        yield f"uniform cut {best[0]} (best bound)", best
