"""Compare the testbed with reality: the same small fleet as client processes on this machine, and in virtual time.

    python scripts/validate_testbed.py

Reality: a server and three client processes over gRPC with TLS, each playing a slow device behind a slow link. The
testbed gets the same fleet, data and settings, no jitter, and what is measured here: the time of each block on this
machine, before and after each real run, and what a batch takes besides on a client and at the server, from a short run
of one client.
Devices are so slow that they sleep most of the time, and hardly contend for the cores. Rounds after the first count:
in that one everybody starts up. Exits with 1 if a difference is 10 % or more.
"""

import argparse
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import torch

from dynsl_app.client import epoch
from dynsl_app.client.emulate import Emulator
from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.model.build import build_chain
from dynsl_app.orders import Failure, Order, Reply, TrainOrder
from dynsl_app.run import run
from dynsl_app.server.control import Concurrency
from dynsl_app.settings import NodeSettings
from dynsl_app.telemetry.events import Event
from dynsl_app.telemetry.profile import Profile, to_json
from dynsl_app.telemetry.profiling import measure
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.testbed.run import simulate_rounds

_FLEET = """\
name: validation
reference_gflops: 50     # not used: the reference is measured
devices:
  - {{name: near, compute: 60, up_Bps: 2.0e+6, down_Bps: 4.0e+6, rtt_s: 0.005, call_s: {near}}}
  - {{name: slow, compute: 180, up_Bps: 2.0e+6, down_Bps: 4.0e+6, rtt_s: 0.005, call_s: {slow}}}
  - {{name: far, compute: 100, up_Bps: 0.3e+6, down_Bps: 1.0e+6, rtt_s: 0.020, call_s: {far}}}
server: {{speed: 50, workers: 1, call_s: {server}}}
"""
_FACTORS = {"near": 60, "slow": 180, "far": 100}
_ALONE = "{name: alone, devices: [{name: device, compute: 100}]}"
_ALONE_FACTOR = 100
_PLAYED = 60
"""How slow the device is that is played to measure what played devices are charged."""

_WORK = ["model=cnn", "data=digits", "data.batch=16", "data.limit=720", "logging.console=off"]
_CASES = {
    "uniform, cut 1": ["algorithm=uniform", "algorithm.cut=1"],
    "uniform, cut 2": ["algorithm=uniform", "algorithm.cut=2"],
    "uniform, cut 4": ["algorithm=uniform", "algorithm.cut=4"],
    "fedavg": ["algorithm=fedavg"],
    "dynsl": ["algorithm=dynsl"],
}
_MOST = 0.10
"""Difference of epoch times that is too much (the target)."""


class Processes:
    """A control plane whose clients are processes; each has imported everything before it is asked to train."""

    def __init__(self, clients: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # The second module is what optimizers import at their first step.
        context.set_forkserver_preload([epoch.__name__, "torch._dynamo"])
        self._pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(clients)]
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def join(self, clients: int, timeout: float) -> Mapping[int, str]:
        """See ``ControlPlane.join``."""
        starting = [pool.submit(os.getpid) for pool in self._pools[:clients]]
        return {client: f"process {future.result(timeout)}" for client, future in enumerate(starting)}

    def push(self, orders: Sequence[Order]) -> None:
        """See ``ControlPlane.push``."""
        for order in orders:
            assert isinstance(order, TrainOrder)
            node = NodeSettings(partition_id=order.client, num_partitions=len(self._pools))
            doing = self._pools[order.client].submit(epoch.train, order, node)
            doing.add_done_callback(lambda done, client=order.client: self._finish(client, done))

    def poll(self, timeout: float) -> list[Reply]:
        """See ``ControlPlane.poll``."""
        try:
            return [self._replies.get(timeout=timeout)]
        except queue.Empty:
            return []

    def concurrency(self) -> Concurrency | None:
        """No limit."""
        return None

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()

    def _finish(self, client: int, done: "Future[Reply]") -> None:
        error = done.exception()
        self._replies.put(done.result() if error is None else Failure(client, f"{type(error).__name__}: {error}"))


class Kept:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)

    def close(self) -> None:
        """Nothing is held back."""


@dataclass(frozen=True)
class Times:
    """Mean over rounds, seconds: of the epoch, and of each client's own."""

    epoch_s: float
    clients_s: tuple[float, ...]


def times(events: Sequence[Event]) -> Times:
    """Of the rounds after the first, from the run's events.

    A client's time runs from its stream's opening to its last batch's end. The epoch's is the longest of these:
    processes begin some tenths of a second after each other, which the testbed does not model.
    """
    by_round: dict[int, dict[int, float]] = {}
    opened: dict[tuple[int, int], float] = {}
    for event in events:
        if event["event"] == "client_lost":
            raise SystemExit(f"client {event['client']} was lost: {event['reason']}")
        if event["event"] == "stream_open":
            opened[event["round"], event["client"]] = event["t"]
        elif event["event"] == "client_done" and event["round"] > 1:
            own = by_round.setdefault(event["round"], {})
            own[event["client"]] = event["t"] - opened[event["round"], event["client"]]
    clients = sorted(next(iter(by_round.values())))
    return Times(
        fmean(max(own.values()) for own in by_round.values()),
        tuple(fmean(own[client] for own in by_round.values()) for client in clients),
    )


def really(folder: Path, overrides: Sequence[str]) -> list[Event]:
    """Events of the run in processes."""
    settings = compose([*overrides, f"run_dir={folder}"])
    control = Processes(settings.clients)
    try:
        run(settings, control)
    finally:
        control.close()
    return list(read_events(folder / "events.jsonl"))


def virtually(overrides: Sequence[str], profiles: Mapping[str, Path]) -> list[Event]:
    """Events of the run in virtual time."""
    own = ["runtime=testbed", "testbed.compute=real", "testbed.compute_jitter=0", "testbed.link_jitter=0"]
    own += [f"+testbed.profiles.{name}={path}" for name, path in profiles.items()]
    kept = Kept()
    simulate_rounds(compose([*overrides, *own]), [kept])
    return kept.events


def profile(factor: float) -> Profile:
    """Of this machine; by the CPU time that a played device that is ``factor`` times slower is charged, if not 1."""
    settings = compose(_WORK)
    spec = load_source(settings.data).spec
    chain = build_chain(settings.model, spec, settings.seed)
    around = None if factor == 1 else Emulator(factor).around
    batches = 30 if factor == 1 else 12
    made = measure(
        chain, spec, settings.data.batch, settings.optimizer, model=settings.model.label, batches=batches, around=around
    )
    blocks = tuple(
        replace(
            block,
            forward_s=block.forward_s / factor,
            backward_s=block.backward_s / factor,
            step_s=block.step_s / factor,
        )
        for block in made.blocks
    )
    return replace(made, blocks=blocks)


def _mean(one: Profile, other: Profile) -> Profile:
    """Of two profiles: what else runs on the machine slows one more than the other."""
    blocks = tuple(
        replace(
            a,
            forward_s=(a.forward_s + b.forward_s) / 2,
            backward_s=(a.backward_s + b.backward_s) / 2,
            step_s=(a.step_s + b.step_s) / 2,
        )
        for a, b in zip(one.blocks, other.blocks, strict=True)
    )
    return replace(one, blocks=blocks)


def call_times(home: Path, reference: Profile, server: Profile) -> tuple[float, float]:
    """What a batch takes besides its blocks, seconds: on a client as fast as this machine, and at the server.

    From a run of one client at cut 1 without limits of its link, medians over its batches.
    """
    fleet = home / "alone.yaml"
    fleet.write_text(_ALONE)
    overrides = [*_WORK, "data.limit=320", "algorithm=uniform", "algorithm.cut=1", f"fleet.file={fleet}", "rounds=2"]
    steps = [one for one in really(home / "alone", overrides) if one["event"] == "step" and one["round"] == 2]
    service_s = median(one["service_s"] for one in steps)
    cycle_s = median(after["t"] - before["t"] for before, after in pairwise(steps))
    server_s = max(0.0, service_s - sum(server.block_s[1:]))
    return max(0.0, (cycle_s - service_s) / _ALONE_FACTOR - reference.block_s[0]), server_s


def main() -> int:
    """Print both epoch times of every case, and the difference; 0 if all are small enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(_CASES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="2 or more (default 3)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the runs there")
    given = parser.parse_args()
    if unknown := sorted(set(given.cases) - _CASES.keys()):
        parser.error(f"no such case: {', '.join(unknown)}; there are: {', '.join(_CASES)}")
    if given.rounds < 2:
        parser.error("--rounds: the first round does not count; take 2 or more")
    torch.set_num_threads(1)
    home = given.keep or Path(tempfile.mkdtemp(prefix="dynsl-validate-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        worst = _compare(home, given.cases or list(_CASES), given.rounds)
    finally:
        if given.keep is None:
            shutil.rmtree(home, ignore_errors=True)
    print(
        f"\nlargest difference: {worst:.1%} (target: below {_MOST:.0%}); load of the machine: {os.getloadavg()[0]:.1f}"
    )
    return 0 if worst < _MOST else 1


def _compare(home: Path, cases: Sequence[str], rounds: int) -> float:
    reference, server = profile(_PLAYED), profile(1)
    client_s, server_s = call_times(home, reference, server)
    print(
        f"blocks: {', '.join(f'{1e3 * s:.2f}' for s in reference.block_s)} ms; besides, a batch takes "
        f"{1e3 * client_s:.2f} ms on a client and {1e3 * server_s:.2f} ms at the server\n"
    )
    fleet = home / "fleet.yaml"
    calls = {name: f"{factor * client_s:.6f}" for name, factor in _FACTORS.items()}
    fleet.write_text(_FLEET.format(**calls, server=f"{server_s:.6f}"))
    print("| case | real | testbed | difference | its clients, real | in the testbed |\n|---|---|---|---|---|---|")
    worst = 0.0
    for number, name in enumerate(cases):
        overrides = [*_WORK, *_CASES[name], f"fleet.file={fleet}", f"rounds={rounds}"]
        before = profile(_PLAYED)
        real = times(really(home / f"run-{number}", overrides))
        files = {"reference": home / f"reference-{number}.json", "server": home / "server.json"}
        files["reference"].write_text(to_json(_mean(before, profile(_PLAYED))))
        files["server"].write_text(to_json(server))
        simulated = times(virtually(overrides, files))
        difference = simulated.epoch_s / real.epoch_s - 1
        worst = max(worst, abs(difference))
        each = [", ".join(f"{seconds:.2f}" for seconds in one.clients_s) + " s" for one in (real, simulated)]
        row = [name, f"{real.epoch_s:.2f} s", f"{simulated.epoch_s:.2f} s", f"{difference:+.1%}", *each]
        print(f"| {' | '.join(row)} |", flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
