"""Time the solver and the refinement on random fleets, and say what refinement brings; prints Markdown.

python scripts/bench_solver.py [--runs N]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from dynsl_app.allocation.refine import EVENTS, refine
from dynsl_app.allocation.rules import dtfl, each_alone
from dynsl_app.allocation.solver import solve
from dynsl_app.cost.instance import ClientCosts, Instance
from dynsl_app.cost.model import costs_of
from dynsl_app.cost.queueing import simulate

SIZES = ((24, 20), (1_000, 50), (10_000, 50))
BATCHES = 50
LONGEST_S = 5.0
"""An entry is not repeated once its runs have taken this long."""


def fleet(clients: int, blocks: int, seed: int = 0) -> Instance:
    """Unlike devices on wired links that contend for one worker; 50 batches each."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.5, 1.5, blocks)
    share /= share.sum()
    size = (*(np.geomspace(4e6, 2e5, blocks - 1) * rng.uniform(0.5, 1.5, blocks - 1)).tolist(), 0.0)
    devices = []
    for index in range(clients):
        throughput = rng.choice([1.1e8, 5e7]) * rng.uniform(0.6, 1.1)
        block_s = share * rng.choice([0.25, 0.5, 0.8, 1.0]) * rng.uniform(0.9, 1.1, blocks)
        devices.append(
            ClientCosts(
                name=f"c{index}",
                batches=BATCHES,
                block_s=tuple(block_s.tolist()),
                up_Bps=throughput,
                down_Bps=throughput,
                rtt_s=0.002,
                cut=int(rng.integers(1, blocks + 1)),
            )
        )
    return Instance(
        workers=1,
        boundary=blocks,
        server_call_s=0.002 / clients,
        server_block_s=tuple((share * rng.uniform(0.2, 1.0) / clients).tolist()),
        up_bytes=size,
        down_bytes=size,
        clients=tuple(devices),
    )


def milliseconds(call: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median and least wall time; fewer runs where one takes long."""
    times: list[float] = []
    while len(times) < runs and sum(times) < LONGEST_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3, min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="runs of each entry (default 15)")
    runs = parser.parse_args().runs
    print(f"Milliseconds, median (least) of up to {runs} runs; {BATCHES} batches a client, one worker. The refinement")
    print(f"simulates up to {EVENTS:,} requests beyond its four references.\n")
    print("| clients × cuts | cost arrays | solver | one simulated epoch | refinement |")
    print("|---|---|---|---|---|")
    for clients, blocks in SIZES:
        instance = fleet(clients, blocks)
        costs = costs_of(instance)
        cuts = solve(costs).cuts
        calls = (
            lambda instance=instance: costs_of(instance),
            lambda costs=costs: solve(costs),
            lambda costs=costs, cuts=cuts: simulate(costs, cuts),
            lambda costs=costs: refine(costs),
        )
        cells = " | ".join("{:.2f} ({:.2f})".format(*milliseconds(call, runs)) for call in calls)
        print(f"| {clients:,} × {blocks} | {cells} |")

    print("\nSimulated epoch of other plans over that of the refined one, 20 fleets of 24 × 20: median (most).\n")
    print("| bound's optimum | each client alone | DTFL's rule |")
    print("|---|---|---|")
    ratios: list[list[float]] = []
    for seed in range(20):
        costs = costs_of(fleet(*SIZES[0], seed))
        refined_s = refine(costs).epoch_s
        plans = (solve(costs).cuts, each_alone(costs), dtfl(costs))
        ratios.append([simulate(costs, cuts).epoch_s / refined_s for cuts in plans])
    columns = zip(*ratios, strict=True)
    print("| " + " | ".join(f"{statistics.median(column):.3f} ({max(column):.3f})" for column in columns) + " |")


if __name__ == "__main__":
    main()
