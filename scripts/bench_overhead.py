"""What splitting costs, beside the same work unsplit in the same run.

    python scripts/bench_overhead.py               all of it, about ten minutes on two cores
    python scripts/bench_overhead.py --only cnn    one part: resnet18, cnn, merge, overlap, memory
    python scripts/bench_overhead.py --quick       few batches: does it still run?

The server is this process, every client a process of its own, with one torch thread each, over gRPC on loopback. What
is compared takes turns, and ratios are medians over pairs of neighbours, so that a change in the machine's load
meets both. Prints a Markdown table; --out writes a CSV.
"""

import argparse
import csv
import dataclasses
import multiprocessing
import os
import pickle
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

from dynsl_app.client.epoch import train
from dynsl_app.client.node import prepare
from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.inprocess import InProcessControl
from dynsl_app.model.build import build_chain
from dynsl_app.model.optim import Rate
from dynsl_app.model.probe import probe
from dynsl_app.model.segment import Segment, mean_loss
from dynsl_app.orders import Failure, Order, TrainOrder
from dynsl_app.plan import BatchKey
from dynsl_app.server import rounds
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import NodeSettings
from dynsl_app.telemetry.events import Event, EventStream
from dynsl_app.telemetry.sinks.factory import make_sinks

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Row:
    """One line of the table: what is measured without TLS, and the ratio with it where that is asked for."""

    what: str
    before: str
    after: str
    ratio: str
    tls: str
    target: str
    met: bool


class Recorder:
    """A sink that keeps what is compared.

    Attributes
    ----------
    epoch_s
        Seconds of each round, first batch's start to last batch's end.
    service_s
        Seconds of each group at a head: forward, backward, replies, update.
    between_s
        Seconds from one step of a client's to its next.
    resident
        Bytes of this process, when every client has had as many batches done as each of the marks says.
    """

    def __init__(self, marks: Collection[int] = ()) -> None:
        self._marks = sorted(marks)
        self._done: Counter[int] = Counter()
        self._stepped_at: dict[int, float] = {}
        self._clients = 0
        self.epoch_s: list[float] = []
        self.service_s: list[float] = []
        self.between_s: list[float] = []
        self.resident: list[int] = []

    def handle(self, event: Event) -> None:
        match event["event"]:
            case "round_start":
                self._clients = len(event["clients"])
            case "step":
                self.service_s.append(event["service_s"])
                for client, _, _ in event["members"]:
                    self._done[client] += 1
                    if client in self._stepped_at:
                        self.between_s.append(event["t"] - self._stepped_at[client])
                    self._stepped_at[client] = event["t"]
                if self._marks and len(self._done) == self._clients and min(self._done.values()) >= self._marks[0]:
                    self._marks.pop(0)
                    self.resident.append(psutil.Process().memory_info().rss)
            case "round_end":
                self.epoch_s.append(event["epoch_s"])

    def close(self) -> None:
        pass


class ProcessControl(InProcessControl):
    """Clients as processes of their own, kept over rounds and runs.

    ``beside``: what a client's process does, and tells the seconds of, before it carries out an order.
    """

    def __init__(self, clients: int, beside: Callable[[TrainOrder, NodeSettings], float] | None = None) -> None:
        super().__init__(clients)
        self.beside_s: list[float] = []
        self._pipes: list[Connection] = []
        self._processes = []
        for client in range(clients):
            ours, theirs = _SPAWN.Pipe()
            node = NodeSettings(partition_id=client, num_partitions=clients)
            process = _SPAWN.Process(target=_serve_client, args=(theirs, node, beside), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv_bytes()

    def push(self, orders: Sequence[Order]) -> None:
        for order in orders:
            # Pickled here: a Connection would hand tensors over as shared memory.
            self._pipes[order.client].send_bytes(pickle.dumps(order))
            threading.Thread(target=self._receive, args=(order.client,), daemon=True).start()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def _receive(self, client: int) -> None:
        try:
            reply, beside_s = pickle.loads(self._pipes[client].recv_bytes())
        except (EOFError, OSError):
            reply, beside_s = Failure(client, "its process is gone"), None
        if beside_s is not None:
            self.beside_s.append(beside_s)
        self._replies.put(reply)


def _serve_client(
    pipe: Connection, node: NodeSettings, beside: Callable[[TrainOrder, NodeSettings], float] | None
) -> None:
    pipe.send_bytes(b"ready")
    while True:
        try:
            order = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        beside_s = None if beside is None else beside(order, node)
        pipe.send_bytes(pickle.dumps((train(order, node), beside_s)))


@contextmanager
def processes(
    clients: int, beside: Callable[[TrainOrder, NodeSettings], float] | None = None
) -> Iterator[ProcessControl]:
    control = ProcessControl(clients, beside)
    try:
        yield control
    finally:
        control.close()


def run(overrides: Sequence[str], control: ProcessControl, marks: Collection[int] = ()) -> Recorder:
    """One run with these settings, on synthetic data."""
    recorder = Recorder(marks)
    with tempfile.TemporaryDirectory() as place:
        settings = compose(["data=synthetic", *overrides, f"run_dir={place}/run", "logging.console=off"])
        folder = RunFolder.create(settings, Path(place))
        events = EventStream([*make_sinks(settings, folder), recorder])
        try:
            rounds.run(settings, control, folder=folder, events=events)
        finally:
            events.close()
    return recorder


def whole_epoch(order: TrainOrder, node: NodeSettings) -> float:
    """Seconds of an order's epoch with the whole model in this process: a client's code, without server and wire."""
    settings = order.settings
    _, data, chain = prepare(settings, node, order.client)
    segment = Segment(chain.span(0, len(chain)), settings.optimizer)
    rate = Rate(settings.optimizer, data.batches_per_epoch, settings.local_epochs, settings.rounds)
    began = time.monotonic()
    for batch, (x, y) in enumerate(data.epoch(order.round, 0)):
        key = BatchKey(settings.seed, order.client, order.round, batch)
        segment.backward(mean_loss(segment.forward(x, [(key, len(y))]), y))
        segment.step(rate.at(order.round, batch))
    return time.monotonic() - began


def split_step(model: str, shape: tuple[int, ...], batches: int, turns: int, limit: float) -> Row:
    """One client's split step against the whole model's, cut where a sample's activation has this shape."""
    common = [f"model={model}", "data.batch=32", f"data.samples={32 * batches}", "clients=1", "rounds=3"]
    common += ["optimizer=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.9"]
    settings = compose(["data=synthetic", *common])
    spec = load_source(settings.data).spec
    shapes = probe(build_chain(settings.model, spec, settings.seed), spec)
    cut = next(n for n, at in enumerate(shapes, 1) if at.shape == shape)
    whole: list[float] = []
    split: dict[str, list[float]] = {"off": [], "on": []}
    ratios: dict[str, list[float]] = {"off": [], "on": []}
    with processes(1, whole_epoch) as control:
        for turn in range(turns):
            for tls in split:
                note(f"{model}: turn {turn + 1} of {turns}, wire.tls={tls}")
                control.beside_s.clear()
                recorder = run([*common, "algorithm=splitfed_v1", f"algorithm.cut={cut}", f"wire.tls={tls}"], control)
                # The first round warms up.
                pairs = list(zip(control.beside_s, recorder.epoch_s, strict=True))[1:]
                whole += [before / batches for before, _ in pairs]
                split[tls] += [after / batches for _, after in pairs]
                ratios[tls] += [after / before for before, after in pairs]
    over = {tls: statistics.median(series) - 1 for tls, series in ratios.items()}
    return Row(
        f"{model}, cut {cut} ({shapes[cut - 1].bytes_per_sample * 32 / 1e6:.1f} MB), a split step against a whole one",
        milliseconds(whole),
        milliseconds(split["off"]),
        f"{100 * over['off']:+.1f} %",
        f"{100 * over['on']:+.1f} %",
        f"at most {100 * limit:+.0f} %",
        over["off"] <= limit,
    )


def merged_head(clients: int, batches: int, turns: int) -> Row:
    """The server's work on a group of as many requests of 16 samples as there are clients, against one request."""
    common = ["model=cnn", "algorithm=uniform", "algorithm.cut=1", "heads.count=1", "heads.boundary=2", "rounds=1"]
    common += ["server.policy=lockstep", "wire.tls=off", "optimizer=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.9"]
    total = 16 * clients
    single: list[float] = []
    merged: list[float] = []
    with processes(clients) as control:
        for turn in range(turns):
            note(f"merge: turn {turn + 1} of {turns}")
            for count, into in ((1, single), (clients, merged)):
                sized = [f"clients={count}", f"data.batch={total // count}", f"data.samples={total * batches}"]
                into.append(statistics.median(run([*common, *sized], control).service_s[1:]))
    share = statistics.median(one / joint for one, joint in zip(single, merged, strict=True))
    return Row(
        f"cnn, shared head and private block, {clients} × 16 samples merged against 1 × {total}",
        milliseconds(single),
        milliseconds(merged),
        f"{100 * share:.0f} % of the throughput",
        "",
        "at least 90 %",
        share >= 0.9,
    )


def overlap(batches: int, turns: int) -> Row:
    """Two clients with separate heads and two workers against one; nearly all of the work is the heads'."""
    common = ["model=resnet18", "data.batch=16", "algorithm=splitfed_v1", "algorithm.cut=1", "server.workers=2"]
    common += ["wire.tls=off", "rounds=1"]
    one: list[float] = []
    two: list[float] = []
    with processes(2) as control:
        for turn in range(turns):
            note(f"overlap: turn {turn + 1} of {turns}")
            for clients, into in ((1, one), (2, two)):
                sized = [f"clients={clients}", f"data.samples={16 * batches * clients}"]
                # Not the epoch's time: one client may begin before the other.
                into.append(statistics.median(run([*common, *sized], control).between_s))
    ratio = statistics.median(pair / alone for alone, pair in zip(one, two, strict=True))
    return Row(
        "resnet18, separate heads, two workers, a step of each of two clients against one client's",
        milliseconds(one),
        milliseconds(two),
        f"{ratio:.2f} ×",
        "",
        "under 1.3 ×",
        ratio < 1.3,
    )


def memory(batches: int, more: int) -> list[Row]:
    """The server's resident memory: over many batches, and what more clients add to it.

    An activation kept of each of 2000 batches would be 125 MB. A client's share is its private blocks here, with
    momentum and, while they are trained, gradients.
    """
    early = batches // 10
    common = ["model=mlp", "model.params.hidden=[1024,1024,1024]", "data.shape=[1,8,8]", "data.batch=16", "rounds=1"]
    common += ["algorithm=splitfed_v1", "algorithm.cut=1", "optimizer=sgd", "optimizer.lr=0.001"]
    common += ["optimizer.momentum=0.9"]
    settings = compose(["data=synthetic", *common])
    chain = build_chain(settings.model, load_source(settings.data).spec, settings.seed)
    private = [parameter for block in chain.span(1, len(chain)) for parameter in block.parameters()]
    share = 3 * sum(parameter.numel() * parameter.element_size() for parameter in private) / 2**20

    def measured(clients: int, each: int, *marks: int) -> list[float]:
        note(f"memory: clients={clients}, {each} batches each")
        sized = [*common, f"clients={clients}", f"data.samples={16 * each * clients}"]
        # A process that no earlier part has left memory in.
        with ProcessPoolExecutor(1, _SPAWN) as pool:
            return [size / 2**20 for size in pool.submit(resident, sized, clients, marks).result()]

    before, after = measured(1, batches, early, batches)
    (several,) = measured(1 + more, early, early)
    growth, added = after - before, (several - before) / more
    return [
        Row(
            f"server's memory (mlp), after {early} batches and after {batches}",
            f"{before:.0f} MB",
            f"{after:.0f} MB",
            f"{growth:+.1f} MB",
            "",
            "flat (under 16 MB)",
            growth < 16,
        ),
        Row(
            f"server's memory, one client and {1 + more}; a client's private blocks take {share:.0f} MB",
            f"{before:.0f} MB",
            f"{several:.0f} MB",
            f"{added:+.1f} MB each",
            "",
            "at most its blocks + 5 %",
            added <= 1.05 * share,
        ),
    ]


def resident(overrides: Sequence[str], clients: int, marks: Sequence[int]) -> list[int]:
    """Bytes of a server process after so many batches of each client."""
    torch.set_num_threads(1)
    with processes(clients) as control:
        return run(overrides, control, marks).resident


def milliseconds(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f} ms"


def cpu_seconds() -> tuple[float, float, float]:
    """The time, and CPU seconds that all programs have used, and that this one has with the processes it has ended."""
    machine, own = psutil.cpu_times(), os.times()
    idle = machine.idle + getattr(machine, "iowait", 0.0) + getattr(machine, "guest", 0.0)
    return time.monotonic(), sum(machine) - idle, own.user + own.system + own.children_user + own.children_system


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quick = arguments.quick
    parts: dict[str, Callable[[], list[Row]]] = {
        "resnet18": lambda: [split_step("resnet18", (128, 16, 16), 2 if quick else 5, 1 if quick else 4, 0.05)],
        "cnn": lambda: [split_step("cnn", (32, 32, 32), 3 if quick else 20, 1 if quick else 4, 0.08)],
        "merge": lambda: [merged_head(2 if quick else 8, 3 if quick else 15, 1 if quick else 5)],
        "overlap": lambda: [overlap(2 if quick else 8, 1 if quick else 5)],
        "memory": lambda: memory(50 if quick else 2000, 1 if quick else 4),
    }
    chosen = [name for name in arguments.only.split(",") if name] or list(parts)
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    began = cpu_seconds()
    rows: list[Row] = []
    print("| | unsplit, single or early | split, merged or late | ratio | with TLS | target | |\n" + "|---" * 7 + "|")
    for name in chosen:
        for row in parts[name]():
            rows.append(row)
            met = "met" if row.met else "missed"
            cells = (row.what, row.before, row.after, row.ratio, row.tls, row.target, met)
            print(f"| {' | '.join(cells)} |", flush=True)
    elapsed, busy, own = (after - before for before, after in zip(began, cpu_seconds(), strict=True))
    others = max(0.0, busy - own) / elapsed
    print(
        f"\n{platform.machine()}, {os.cpu_count()} cores, of which other programs used {others:.2f} meanwhile; Python "
        f"{platform.python_version()}, torch {torch.__version__}."
    )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=[field.name for field in dataclasses.fields(Row)])
            writer.writeheader()
            writer.writerows(dataclasses.asdict(row) for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
