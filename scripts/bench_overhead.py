"""What splitting costs, beside the same work unsplit in the same run.

    python scripts/bench_overhead.py               all of it, some minutes on two cores
    python scripts/bench_overhead.py --only cnn    one part: resnet18, cnn, merge, overlap, memory
    python scripts/bench_overhead.py --quick       few batches: does it still run?

Client and server are two processes with one torch thread each, on loopback, without TLS. A step is an epoch's time
(from the first batch's start to the last one's end, as summary.json has it) over its batches; whole and split runs take
turns, and the medians are compared. Prints a Markdown table; --out FILE writes it as CSV too.
"""

import argparse
import csv
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

from dynsl_app.algorithms import make_plan
from dynsl_app.client.epoch import train
from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.inprocess import InProcessControl
from dynsl_app.model.build import build_chain
from dynsl_app.model.probe import probe
from dynsl_app.orders import Failure, Order
from dynsl_app.plan import BatchKey
from dynsl_app.run import run
from dynsl_app.server.heads import Heads, Result, Work
from dynsl_app.settings import NodeSettings


@dataclass(frozen=True)
class Row:
    """One line of the table; ``met`` is None where there is no target."""

    what: str
    unsplit: str
    split: str
    ratio: str
    target: str
    met: bool | None


class ProcessControl(InProcessControl):
    """Clients as processes of their own, kept over the rounds."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        context = multiprocessing.get_context("spawn")
        self._pipes: dict[int, Connection] = {}
        self._processes = []
        for client in range(clients):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve_client, args=(client, clients, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes[client] = ours
            self._processes.append(process)

    def push(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self._pipes[order.client].send_bytes(pickle.dumps(order))
            threading.Thread(target=self._receive, args=(order.client,), daemon=True).start()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            process.join()

    def _receive(self, client: int) -> None:
        try:
            self._replies.put(pickle.loads(self._pipes[client].recv_bytes()))
        except (EOFError, OSError):
            self._replies.put(Failure(client, "its process is gone"))


def _serve_client(client: int, clients: int, pipe: Connection) -> None:
    node = NodeSettings(partition_id=client, num_partitions=clients)
    while True:
        try:
            order = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(pickle.dumps(train(order, node)))


def step_times(overrides: Sequence[str], batches: int, rounds: int, control: InProcessControl) -> list[float]:
    """Seconds a batch in each round but the first, which warms up."""
    with tempfile.TemporaryDirectory() as folder:
        settings = compose([*overrides, f"rounds={rounds + 1}", f"run_dir={folder}/run", "logging.console=off"])
        summary = run(settings, control)
    return [seconds / batches for seconds in summary.epoch_s[1:]]


def split_step(name: str, shape: tuple[int, ...] | int, batches: int, turns: int, limit: float) -> Row:
    """One client's split step against the whole model's, with about 4 MB at the cut."""
    common = [
        f"model={name}",
        "data=synthetic",
        "data.shape=[3,32,32]",
        "data.batch=32",
        f"data.samples={32 * batches}",
        "clients=1",
        "optimizer=sgd",
        "optimizer.lr=0.01",
        "optimizer.momentum=0.9",
        "wire.tls=off",
    ]
    settings = compose(common)
    source = load_source(settings.data)
    shapes = probe(build_chain(settings.model, source.spec, 0), source.spec)
    cut = shape if isinstance(shape, int) else next(n for n, at in enumerate(shapes, 1) if at.shape == shape)
    megabytes = shapes[cut - 1].bytes_per_sample * 32 / 1e6
    whole: list[float] = []
    split: list[float] = []
    control = ProcessControl(1)
    try:
        for turn in range(turns):
            print(f"{name}: turn {turn + 1} of {turns}", file=sys.stderr)
            whole += step_times([*common, "algorithm=fedavg"], batches, 2, control)
            split += step_times([*common, "algorithm=splitfed_v1", f"algorithm.cut={cut}"], batches, 2, control)
    finally:
        control.close()
    before, after = statistics.median(whole), statistics.median(split)
    over = after / before - 1
    return Row(
        f"{name}, cut {cut} ({megabytes:.1f} MB), a step",
        f"{1e3 * before:.0f} ms",
        f"{1e3 * after:.0f} ms",
        f"{100 * over:+.1f} %",
        f"at most {100 * limit:+.0f} %",
        over <= limit,
    )


def merged_head(repeats: int) -> Row:
    """A shared head's step for 8 requests of 16 samples against one of 128."""

    def measure(clients: int, size: int) -> Callable[[], None]:
        settings = compose(
            [
                "data=synthetic",
                "data.shape=[3,32,32]",
                f"data.batch={size}",
                f"clients={clients}",
                "algorithm=splitfed_v2",
                "algorithm.cut=1",
            ]
        )
        source = load_source(settings.data)
        chain = build_chain(settings.model, source.spec, 0)
        shape = probe(chain, source.spec)[0].shape
        heads = Heads(chain, make_plan(settings, len(chain), range(clients)), settings, {})
        works = []
        for client in range(clients):
            heads.open(client, {}, {})
            activation = torch.randn(size, *shape)
            works.append(Work(BatchKey(0, client, 1, 0), activation, torch.randint(10, (size,)), 1e-3, 1))

        def step() -> None:
            results = heads.backward(works)
            assert all(isinstance(result, Result) for result in results)
            heads.step(works)

        return step

    merged, single = measure(8, 16), measure(1, 128)
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for step, into in ((merged, times[0]), (single, times[1])):
            start = time.perf_counter()
            step()
            if repeat:
                into.append(time.perf_counter() - start)
    joint, alone = (statistics.median(series) for series in times)
    share = alone / joint
    return Row(
        "shared head (cnn), 8 × 16 samples against 1 × 128",
        f"{1e3 * alone:.0f} ms",
        f"{1e3 * joint:.0f} ms",
        f"{100 * share:.0f} % of the throughput",
        "at least 90 %",
        share >= 0.9,
    )


def overlap(batches: int, turns: int) -> Row:
    """Two clients with separate heads and two workers against one client."""
    common = [
        "model=resnet18",
        "data=synthetic",
        "data.shape=[3,32,32]",
        "data.batch=16",
        "algorithm=splitfed_v1",
        "algorithm.cut=1",
        "server.workers=2",
        "wire=inprocess",
    ]
    one: list[float] = []
    two: list[float] = []
    for turn in range(turns):
        print(f"overlap: turn {turn + 1} of {turns}", file=sys.stderr)
        for clients, into in ((1, one), (2, two)):
            sized = [*common, f"clients={clients}", f"data.samples={16 * batches * clients}"]
            into += step_times(sized, batches, 2, InProcessControl(clients))
    ratio = statistics.median(two) / statistics.median(one)
    return Row(
        "two clients, separate heads, two workers, against one client",
        f"{1e3 * statistics.median(one):.0f} ms",
        f"{1e3 * statistics.median(two):.0f} ms",
        f"{ratio:.2f} ×",
        "under 1.3 ×",
        ratio < 1.3,
    )


def memory(batches: int) -> Row:
    """Resident memory of server and client in one process, after a tenth of the batches and at the end."""
    rss: list[int] = []
    process = psutil.Process(os.getpid())
    with tempfile.TemporaryDirectory() as folder:
        settings = compose(
            [
                "model=mlp",
                "data=synthetic",
                f"data.samples={4 * batches}",
                "data.batch=4",
                "clients=1",
                "rounds=1",
                f"run_dir={folder}/run",
                "logging.console=off",
            ]
        )
        log = Path(folder) / "run" / "events.jsonl"
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                if log.exists() and log.read_bytes().count(b'"step"') >= batches // 10:
                    rss.append(process.memory_info().rss)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        run(settings, InProcessControl(1))
        rss.append(process.memory_info().rss)
        done.set()
        watcher.join()
    growth = (rss[-1] - rss[0]) / 2**20
    return Row(
        f"memory (mlp, {batches} batches)",
        f"{rss[0] / 2**20:.0f} MB after a tenth",
        f"{rss[-1] / 2**20:.0f} MB at the end",
        f"{growth:+.0f} MB",
        "flat (under 16 MB)",
        growth < 16,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quick = arguments.quick
    parts: dict[str, Callable[[], Row]] = {
        "resnet18": lambda: split_step("resnet18", (128, 16, 16), 2 if quick else 8, 1 if quick else 3, 0.05),
        "cnn": lambda: split_step("cnn", 1, 4 if quick else 40, 1 if quick else 4, 0.08),
        "merge": lambda: merged_head(3 if quick else 20),
        "overlap": lambda: overlap(2 if quick else 6, 1 if quick else 3),
        "memory": lambda: memory(100 if quick else 2000),
    }
    chosen = [name for name in arguments.only.split(",") if name] or list(parts)
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    rows = []
    print("| | unsplit | split | ratio | target | |\n|---|---|---|---|---|---|")
    for name in chosen:
        rows.append(row := parts[name]())
        met = {True: "met", False: "missed", None: ""}[row.met]
        print(f"| {row.what} | {row.unsplit} | {row.split} | {row.ratio} | {row.target} | {met} |", flush=True)
    if arguments.out is not None:
        with arguments.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["what", "unsplit", "split", "ratio", "target", "met"])
            writer.writerows([row.what, row.unsplit, row.split, row.ratio, row.target, row.met] for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
