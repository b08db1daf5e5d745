"""The command ``dynsl-plan``: from a file that describes a fleet to the cuts that end its epoch soonest."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynsl_app.allocation.refine import EVENTS, Refined, refine
from dynsl_app.allocation.solver import Solution, solve
from dynsl_app.cost.breakdown import breakdown
from dynsl_app.cost.instance import Instance, parse_instance
from dynsl_app.cost.model import Costs, costs_of
from dynsl_app.cost.what_if import assign
from dynsl_app.errors import DynslError, SettingsError

_HELP = """\
Choose, for every client, how many blocks of the model it trains itself (its cut), so that the epoch ends soonest.

INSTANCE.json describes the fleet; times in seconds, sizes in bytes, L blocks, cuts 1..L:

  {"workers": 2,                    heads the server can run at once
   "boundary": 4,                   last private block; L: nothing is shared
   "server_call_s": 0.001,          the server's fixed time a call (default 0)
   "server_block_s": [L numbers],   its time for each block on one batch
   "up_bytes":   [L numbers],       activation sent at each cut, one batch; the last is 0
   "down_bytes": [L numbers],       gradient returned at each cut; the last is 0
   "clients": [{"name": "pi", "batches": 50, "block_s": [L numbers],
                "up_Bps": 1e6, "down_Bps": 4e6, "rtt_s": 0.02,
                "min_cut": 1, "max_cut": 4,     floor and ceiling (default 1 and L)
                "cut": 2}]}                     its present cut (may be left out)
"""

_EXAMPLES = """\
output (JSON, nothing else on standard output):
  cuts       in the file's client order: they attain bound_s, the least bound of all plans
  bound_s    the larger of the slowest client alone and the server's work over its workers
  solver_ms  time of the solver, the best of three
  clients    where each client's time goes (seconds over its batches)
  refined_cuts, epoch_s, refine_ms   with --refine: the plan and its epoch, queueing simulated;
             clients then describes this plan, with wait_s and end_s
  shared_floor_s   with boundary < L: the serial shared head alone takes this long, at any cuts

examples:
  dynsl-plan docs/examples/instance.json
  dynsl-plan docs/examples/instance.json --refine --explain
  dynsl-plan docs/examples/instance.json --set clients.3.up_Bps=1e6 --set workers=4
  dynsl-plan docs/examples/instance.json --set clients.pi-yard.max_cut=3

exit status: 0, or 2 where the input is refused (the reason is on standard error)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="dynsl-plan",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("instance", metavar="INSTANCE.json", help="the fleet; - reads standard input")
    parser.add_argument("--refine", action="store_true", help="improve the plan with queueing simulated")
    parser.add_argument("--explain", action="store_true", help="print tables a person reads in place of JSON")
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change a value first, such as clients.3.up_Bps=1e6; a client by position (from 0) or name; repeatable",
    )
    options = parser.parse_args(arguments)
    try:
        data = _read(options.instance)
        for change in options.changes:
            assign(data, change)
        instance = parse_instance(data)
        costs = costs_of(instance)
    except DynslError as error:
        print(f"dynsl-plan: {error}", file=sys.stderr)
        return 2

    solution, solver_ms = _timed_solve(costs)
    refined, refine_ms = _timed_refine(costs) if options.refine else (None, 0.0)
    if options.explain:
        from rich.console import Console

        from dynsl_app.plan_table import explain

        # A pipe has no width of its own; 100 columns keep the table whole.
        console = Console() if sys.stdout.isatty() else Console(width=100)
        explain(console, instance, costs, solution, refined)
    else:
        report = _report(instance, costs, solution, refined) | {"solver_ms": round(solver_ms, 4)}
        if refined is not None:
            report["refine_ms"] = round(refine_ms, 3)
        print(_json(report))
    return 0


def _read(path: str) -> Any:
    """The decoded file, or a SettingsError that says what is wrong with it."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; give a file, see --help") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise SettingsError(f"{path} is not JSON: {error}; see --help for the format") from None


def _timed_solve(costs: Costs) -> tuple[Solution, float]:
    """The plan, and the solver's time in milliseconds; the first of three calls also pays for warming up."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        solution = solve(costs)
        best = min(best, time.perf_counter() - start)
    return solution, best * 1e3


def _timed_refine(costs: Costs) -> tuple[Refined, float]:
    """The refined plan, and milliseconds. Nobody waits in mid-epoch here, so large fleets get a budget to match."""
    start = time.perf_counter()
    refined = refine(costs, events=max(EVENTS, 30 * int(costs.batches.sum())))
    return refined, (time.perf_counter() - start) * 1e3


def _report(instance: Instance, costs: Costs, solution: Solution, refined: Refined | None) -> dict[str, Any]:
    """What the command prints, as plain values."""
    cuts = solution.cuts if refined is None else refined.cuts
    parts = breakdown(instance, cuts)
    columns = {
        "cut": cuts,
        "batches": costs.batches,
        "compute_s": parts.compute_s,
        "up_s": parts.up_s,
        "down_s": parts.down_s,
        "rtt_s": parts.rtt_s,
        "server_s": parts.server_s,
    }
    report: dict[str, Any] = {"cuts": solution.cuts.tolist(), "bound_s": solution.bound_s}
    if instance.boundary < instance.blocks:
        report["shared_floor_s"] = costs.shared_floor_s
    if refined is None:
        columns["total_s"] = parts.total_s
    else:
        report |= {"refined_cuts": refined.cuts.tolist(), "epoch_s": refined.epoch_s}
        columns |= {"wait_s": refined.timeline.wait_s, "end_s": refined.timeline.end_s}
    rows = zip(costs.names, *(column.tolist() for column in columns.values()), strict=True)
    report["clients"] = [dict(zip(("name", *columns), row, strict=True)) for row in rows]
    return report


def _json(report: dict[str, Any]) -> str:
    """JSON with a line for each key and each client, so that it can be read without a tool too."""
    lines = {key: json.dumps(value, allow_nan=False) for key, value in report.items()}
    clients = ",\n  ".join(json.dumps(client, allow_nan=False) for client in report["clients"])
    lines["clients"] = f"[\n  {clients}\n ]"
    return "{\n" + ",\n".join(f' "{key}": {value}' for key, value in lines.items()) + "\n}"


if __name__ == "__main__":
    raise SystemExit(main())
