import io
import threading
from typing import Any

import pytest
from rich.console import Console

from dynsl_app.telemetry.sinks.live import LiveSink


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def make(screen: io.StringIO, height: int = 24, **options: Any) -> tuple[LiveSink, Console]:
    console = Console(file=screen, force_terminal=True, width=100, height=height, color_system=None)
    return LiveSink(console, **options), console


def drawn(sink: LiveSink, console: Console) -> list[str]:
    """The table on a console of its own, since the live one redraws it after whatever is printed."""
    paper = Console(file=io.StringIO(), width=console.width, height=console.height, color_system=None)
    with paper.capture() as capture:
        paper.print(sink.table())
    return [line.rstrip() for line in capture.get().splitlines()]


def start(sink: LiveSink, clients: int, batches: int = 10) -> None:
    ids = list(range(clients))
    sink.handle(
        {
            "t": 0.0,
            "event": "run_start",
            "settings": {"rounds": 3},
            "nodes": dict.fromkeys(map(str, ids), "node"),
            "run_dir": "/runs/example",
            "blocks": 4,
            "parameters": 10,
            "algorithm": "uniform",
            "model": "cnn",
            "data": "digits",
        }
    )
    sink.handle({"t": 1.0, "event": "round_start", "round": 1, "clients": ids, "cuts": dict.fromkeys(map(str, ids), 2)})
    for client in ids:
        sink.handle({"t": 1.0, "event": "stream_open", "round": 1, "client": client, "batches": batches})


def step(sink: LiveSink, client: int, batch: int, t: float = 2.0, number: int = 1) -> None:
    sink.handle({"t": t, "event": "step", "round": number, "head": None, "members": [[client, batch, 8]], "loss": 0.25})


def test_a_row_tells_cut_progress_loss_and_speed(screen: io.StringIO) -> None:
    sink, console = make(screen)
    start(sink, clients=2)
    step(sink, client=1, batch=0)
    step(sink, client=1, batch=1, t=3.0)
    rows = drawn(sink, console)
    sink.close()
    row = next(line.split() for line in rows if line.split()[0] == "1")
    assert row[:3] == ["1", "2", "2/10"]
    assert row[-3:] == ["0.2500", "8", "training"]
    assert rows[0].startswith("round 1/3")


def test_states_follow_the_stream(screen: io.StringIO) -> None:
    sink, console = make(screen)
    start(sink, clients=4)
    for name, client in (("stream_lost", 0), ("client_lost", 1), ("client_done", 2)):
        sink.handle({"t": 2.0, "event": name, "round": 1, "client": client, "reason": "gone"})
    states = [line.split()[-1] for line in drawn(sink, console)[2:]]
    assert states == ["reconnecting", "lost", "done", "training"]
    sink.handle({"t": 3.0, "event": "stream_resumed", "round": 1, "client": 0, "next": 0})
    assert drawn(sink, console)[2].split()[-1] == "training"
    sink.close()


@pytest.mark.parametrize("clients", [1, 24, 500])
def test_it_fits_the_screen_and_shows_the_slowest(screen: io.StringIO, clients: int) -> None:
    sink, console = make(screen)
    start(sink, clients=clients)
    for client in range(clients - 1):
        step(sink, client=client, batch=4)
    rows = drawn(sink, console)
    sink.close()
    assert len(rows) < 24
    assert any(line.split()[:1] == [str(clients - 1)] for line in rows)
    assert ("more" in rows[-1]) == (clients > 18)


def test_a_late_event_of_an_earlier_round_is_ignored(screen: io.StringIO) -> None:
    sink, console = make(screen)
    start(sink, clients=2)
    sink.handle({"t": 5.0, "event": "round_start", "round": 2, "clients": [0], "cuts": {"0": 2}})
    step(sink, client=1, batch=9, number=1)
    assert len(drawn(sink, console)) == 3
    sink.close()


def test_finished_rounds_stay_above_and_the_table_goes(screen: io.StringIO, example: Any) -> None:
    sink, _ = make(screen)
    example(sink)
    text = screen.getvalue()
    assert "round 2/2  train loss 0.6250" in text
    assert "finished    2 rounds" in text
    assert "\x1b[?25h" in text  # the cursor is visible again


def test_drawing_never_blocks_the_threads_that_emit(screen: io.StringIO, example: Any) -> None:
    """The drawing thread and the emitting one take two locks; a wrong order would hang here."""
    sink, _ = make(screen, frames_per_second=200.0)
    thread = threading.Thread(target=example, args=(sink,), kwargs={"rounds": 100, "batches": 20}, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
