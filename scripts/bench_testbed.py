"""Measure what a round in virtual time takes: phantom ResNet-18, 50 batches a client, one process and one thread.

    python scripts/bench_testbed.py

Each size runs in a process of its own, so that its peak of memory is its own, after a small round that warms up what is
made once (imports, the model's operations). Exits with 1 if a target is missed.
"""

import argparse
import resource
import subprocess
import sys
import time

_TARGETS = {24: (1.0, None), 1000: (30.0, None), 10_000: (360.0, 2000.0)}
"""Clients: seconds, and MB at the peak, that are not to be exceeded."""


def one(clients: int, algorithm: str) -> None:
    """Print seconds, CPU seconds, peak MB and the epoch of one round."""
    import torch

    from dynsl_app.compose import compose
    from dynsl_app.testbed.run import simulate_rounds

    torch.set_num_threads(1)
    common = ["runtime=testbed", "model=resnet18", f"algorithm={algorithm}", "rounds=1", "events.detail=round"]
    fleet = ["fleet=colext24"] if clients == 24 else ["fleet=generated", f"fleet.generate.count={clients}"]
    simulate_rounds(compose([*common, "fleet=homogeneous", "testbed.batches=2"]))
    settings = compose([*common, *fleet])
    wall, cpu = time.perf_counter(), time.process_time()
    (epoch_s,) = simulate_rounds(settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, epoch_s)


def main() -> int:
    """Print a table; 0 if all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=list(_TARGETS), help="sizes (default: all)")
    parser.add_argument("--algorithms", nargs="*", default=["uniform", "dynsl"])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.clients[0], given.algorithms[0])
        return 0
    print("| clients | algorithm | time | CPU time | peak memory | epoch, virtual | target | |")
    print("|---|---|---|---|---|---|---|---|")
    missed = False
    for clients in given.clients:
        for algorithm in given.algorithms:
            command = [sys.executable, __file__, "--one", "--clients", str(clients), "--algorithms", algorithm]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return 1
            wall, cpu, peak, epoch_s = map(float, done.stdout.split())
            seconds, most = _TARGETS.get(clients, (None, None))
            words = [f"{seconds:g} s"] if seconds is not None else []
            words += [f"{most / 1000:g} GB"] if most is not None else []
            # CPU time: what else runs on the machine does not count.
            met = (seconds is None or cpu <= seconds) and (most is None or peak <= most)
            missed |= not met
            row = [f"{clients:,}".replace(",", " "), algorithm, f"{wall:.2f} s", f"{cpu:.2f} s", f"{peak:.0f} MB"]
            row += [f"{epoch_s:.0f} s", ", ".join(words), "met" if met else "missed"]
            print(f"| {' | '.join(row)} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
