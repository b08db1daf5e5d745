from typing import Any

import pytest

from dynsl_app.telemetry.events import Event, EventStream, Sink


class Recorder:
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def round_end(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "round": number,
        "epoch_s": 1.5,
        "train_loss": 1.25 / number,
        "train_accuracy": 0.5,
        "loss": 1.0 / number,
        "accuracy": 0.9375,
        "bytes_up": 2_000_000,
        "bytes_down": 1_000_000,
        "samples": 48,
        "clients": 3,
        "lost": [],
        "cuts": {"0": 2, "1": 2, "2": 4},
        "moves": 0,
        "seconds": 2.5,
    } | fields


def play(sink: Sink, rounds: int = 2, batches: int = 3) -> None:
    """A small run as the server tells it: clients 0 and 1 share head 0, client 2 is fully local; a tick is 1 s."""
    ticks = iter(range(10_000))
    stream = EventStream([sink], clock=lambda: float(next(ticks)))
    stream.emit(
        "run_start",
        settings={"rounds": rounds, "seed": 3},
        nodes={"0": "node-a", "1": "node-b", "2": "node-c"},
        run_dir="/runs/example",
        blocks=4,
        parameters=12345,
        algorithm="splitfed_v2",
        model="cnn",
        data="digits",
    )
    for number in range(1, rounds + 1):
        cuts = {"0": 2, "1": 2, "2": 4}
        stream.emit("round_start", round=number, clients=[0, 1, 2], cuts=cuts, boundary=2, heads=1)
        for client in range(3):
            stream.emit("stream_open", round=number, client=client, peer="peer", batches=batches, samples=8 * batches)
        for batch in range(batches):
            members = [[0, batch, 8], [1, batch, 8]]
            fields = {"loss": 0.5, "correct": 12, "wait_s": 0.25, "service_s": 0.5, "worker": 1}
            fields["exchanges"] = [(0.5, 0.625), None] if batch else [None, None]
            stream.emit("step", round=number, head=0, members=members, **fields)
            stream.emit("progress", round=number, client=2, batch=batch, samples=8, loss=0.75, correct=6)
        for client in range(3):
            fields = {"batches": batches, "samples": 8 * batches, "loss": 0.5, "accuracy": 0.75}
            stream.emit("client_done", round=number, client=client, **fields)
        stream.emit("round_end", **round_end(number))
        stream.emit("checkpoint", round=number, path=f"checkpoint/round-{number:06d}")
    stream.emit(
        "run_end",
        accuracy=0.9375,
        loss=1.0 / rounds,
        rounds=rounds,
        epoch_s=[1.5] * rounds,
        total_s=12.0,
        bytes_up=4_000_000,
        bytes_down=2_000_000,
        moves=0,
        cuts={"0": 2, "1": 2, "2": 4},
        clients=3,
        run_dir="/runs/example",
    )
    stream.close()


@pytest.fixture
def example() -> Any:
    """``example(sink, rounds=, batches=)`` plays a small run into a sink."""
    return play


@pytest.fixture
def make_round_end() -> Any:
    """``make_round_end(number, **fields)``: the fields of a ``round_end``."""
    return round_end
