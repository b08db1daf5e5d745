#!/usr/bin/env python
"""How long the wire takes: exchanges of the same bytes both ways, against raw TCP in the same run.

    python scripts/bench_wire.py [--quick] [--sizes 4096 …] [--clients 1 …] [--out wire.csv]

Server and clients are processes of their own with one torch thread each. Clients exchange in lockstep: send a
frame with one tensor, receive it back. The three transports take turns, so that a change in the machine's load
meets them all. Prints a Markdown table (median milliseconds an exchange, and times raw TCP); --out writes a CSV.
"""

import argparse
import csv
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import torch

from dynsl_app.errors import LinkClosed
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Endpoint, Frame, Kind, Link
from dynsl_app.wire.transport import make_transport

KB, MB = 2**10, 2**20
TRANSPORTS = ("tcp", "grpc", "grpc+tls")
WARMUP = 3
SECONDS = 0.6
"""About how long one client exchanges in one turn."""


@dataclass(frozen=True)
class Task:
    """What one client is to do in one turn."""

    transport: str
    endpoint: Endpoint
    bytes: int
    exchanges: int


def wire_settings(transport: str) -> WireSettings:
    return WireSettings(name="grpc", tls="on" if transport == "grpc+tls" else "off")


def serve(transport: str, parent: Connection) -> None:
    """A server process: send back what comes, until the parent says so."""
    torch.set_num_threads(1)
    if transport == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        parent.send(Endpoint("tcp", f"127.0.0.1:{listener.getsockname()[1]}"))
        threading.Thread(target=accept_tcp, args=(listener,), daemon=True).start()
        parent.recv()
        return
    grpc_listener = make_transport(wire_settings(transport)).listen(echo)
    parent.send(grpc_listener.endpoint)
    parent.recv()
    grpc_listener.close()


def echo(link: Link) -> None:
    try:
        hello = link.receive()
        link.trust()
        link.send(Frame(Kind.WELCOME, hello.client, hello.round))
        while True:
            frame = link.receive()
            link.send(Frame(Kind.GRADIENT, frame.client, frame.round, frame.batch, tensors=frame.tensors))
    except LinkClosed:
        return


def accept_tcp(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo_tcp, args=(connection,), daemon=True).start()


def echo_tcp(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = int.from_bytes(receive_tcp(connection, 8), "little")
    while data := receive_tcp(connection, size):
        connection.sendall(data)


def receive_tcp(connection: socket.socket, size: int) -> bytearray:
    """As many bytes in a buffer of their own, as every batch's tensor has; empty at the end of the stream."""
    buffer = bytearray(size)
    view, filled = memoryview(buffer), 0
    while filled < size:
        count = connection.recv_into(view[filled:])
        if count == 0:
            return bytearray()
        filled += count
    return buffer


def work(parent: Connection) -> None:
    """A client process: one turn after the other."""
    torch.set_num_threads(1)
    while (task := parent.recv()) is not None:
        with opened(task) as exchange:
            for _ in range(WARMUP):
                exchange()
            parent.send("ready")
            parent.recv()
            seconds = []
            for _ in range(task.exchanges):
                begin = time.perf_counter()
                exchange()
                seconds.append(time.perf_counter() - begin)
        parent.send(seconds)


@contextmanager
def opened(task: Task) -> Iterator[Callable[[], None]]:
    """One exchange of the task as a function."""
    if task.transport == "tcp":
        host, port = task.endpoint.address.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(task.bytes.to_bytes(8, "little"))
        payload = bytes(task.bytes)

        def exchange_tcp() -> None:
            connection.sendall(payload)
            receive_tcp(connection, task.bytes)

        with connection:
            yield exchange_tcp
        return

    link = make_transport(wire_settings(task.transport)).connect(task.endpoint)
    link.send(Frame(Kind.HELLO, client=0, round=0))
    link.receive(60)
    frame = Frame(Kind.ACTIVATION, client=0, round=0, tensors={"activation": torch.zeros(task.bytes // 4)})

    def exchange_frame() -> None:
        link.send(frame)
        link.receive(60)

    yield exchange_frame
    link.close()


def measure(clients: list[Connection], task: Task) -> list[float]:
    """Let these clients do the task at the same time; seconds of every exchange."""
    for client in clients:
        client.send(task)
    for client in clients:
        client.recv()
    for client in clients:
        client.send("go")
    return [seconds for client in clients for seconds in client.recv()]


def exchanges(size: int, clients: int, quick: bool) -> int:
    guess = (0.3e-3 + size * 3.5e-9) * max(1.0, clients / 2)
    return max(3, min(500, round(SECONDS * (0.3 if quick else 1.0) / guess)))


def name(size: int) -> str:
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes, clients and turns")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="bytes each way, multiples of 4")
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help="how many clients at the same time")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each transport")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    quick = arguments.quick
    sizes = arguments.sizes or ([4 * KB, MB, 4 * MB] if quick else [4 * KB, 64 * KB, MB, 4 * MB, 16 * MB])
    counts = arguments.clients or ([1, 4] if quick else [1, 4, 16])
    turns = arguments.turns or (3 if quick else 7)

    spawn = multiprocessing.get_context("spawn")
    servers = {transport: start(spawn, serve, transport) for transport in TRANSPORTS}
    endpoints = {transport: pipe.recv() for transport, pipe in servers.items()}
    clients = [start(spawn, work) for _ in range(max(counts))]

    rows = []
    print("| clients | bytes each way | raw TCP, ms | gRPC, ms | × TCP | gRPC + TLS, ms | × TCP |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for count in counts:
        for size in sizes:
            seconds: dict[str, list[list[float]]] = {transport: [] for transport in TRANSPORTS}
            for turn in range(turns):
                for transport in TRANSPORTS:
                    note(f"{count} clients, {name(size)}, {transport}, turn {turn + 1} of {turns}")
                    task = Task(transport, endpoints[transport], size, exchanges(size, count, quick))
                    seconds[transport].append(measure(clients[:count], task))
            note("")
            median = {
                key: statistics.median(statistics.median(turn) for turn in value) for key, value in seconds.items()
            }
            tcp = median["tcp"]
            print(
                f"| {count} | {name(size)} | {tcp * 1e3:.2f} | {median['grpc'] * 1e3:.2f} | {median['grpc'] / tcp:.1f} "
                f"| {median['grpc+tls'] * 1e3:.2f} | {median['grpc+tls'] / tcp:.1f} |",
                flush=True,
            )
            for transport in TRANSPORTS:
                pooled = sorted(second for turn in seconds[transport] for second in turn)
                rows.append(
                    {
                        "transport": transport,
                        "clients": count,
                        "bytes": size,
                        "exchanges": len(pooled),
                        "median_ms": median[transport] * 1e3,
                        "p95_ms": pooled[int(0.95 * (len(pooled) - 1))] * 1e3,
                        "times_tcp": median[transport] / tcp,
                    }
                )
    print(
        f"\nMedian of {turns} turns. {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, grpcio {grpc.__version__}."
    )
    for pipe in [*clients, *servers.values()]:
        pipe.send(None)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def start(spawn: multiprocessing.context.SpawnContext, target: Callable[..., None], *arguments: object) -> Connection:
    """A process that ends with this one; the pipe to it."""
    here, there = spawn.Pipe()
    spawn.Process(target=target, args=(*arguments, there), daemon=True).start()
    return here


def note(text: str) -> None:
    """Progress, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
