from typing import Any

from dynsl_app.telemetry.sinks.lines import LinesSink


def lines_of(*events: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    sink = LinesSink(lines.append)
    for event in events:
        sink.handle({"t": 0.0, **event})
    sink.close()
    return lines


def test_a_run_reads_as_a_few_lines_however_many_batches(example: Any) -> None:
    lines: list[str] = []
    example(LinesSink(lines.append), rounds=2, batches=100)
    assert lines == [
        "run folder  /runs/example",
        "training    cnn (4 blocks, 12,345 parameters) on digits with splitfed_v2, 3 clients",
        "round 1/2  starts: 3 clients, cut 2 (2 clients), cut 4 (1 client)",
        "round 1/2  train loss 1.2500 accuracy 0.5000  test loss 1.0000 accuracy 0.9375  epoch     1.50 s"
        "  up   2.0 MB down   1.0 MB",
        "round 2/2  starts: 3 clients, cut 2 (2 clients), cut 4 (1 client)",
        "round 2/2  train loss 0.6250 accuracy 0.5000  test loss 0.5000 accuracy 0.9375  epoch     1.50 s"
        "  up   2.0 MB down   1.0 MB",
        "finished    2 rounds in 12.0 s",
        "accuracy    0.9375, loss 0.5000 on held-out data",
        "epochs      1.50 1.50 s",
        "traffic     up 4.0 MB, down 2.0 MB",
        "cuts        cut 2 (2 clients), cut 4 (1 client); 0 moves in mid-epoch",
        "run folder  /runs/example",
    ]


def test_troubles_name_the_client_and_the_reason() -> None:
    assert lines_of(
        {"event": "client_lost", "round": 2, "client": 3, "reason": "it was killed"},
        {"event": "stream_lost", "round": 2, "client": 4, "reason": "reset"},
        {"event": "stream_resumed", "round": 2, "client": 4, "next": 17},
        {"event": "waiting", "round": 2, "for": "their next batch", "clients": [1, 5], "seconds": 30.4},
        {"event": "warning", "message": "W&B is offline"},
    ) == [
        "client 3 is lost in round 2: it was killed",
        "client 4: stream lost in round 2: reset",
        "client 4: stream is back, goes on at batch 17",
        "waiting for 30 s for their next batch: client 1, 5",
        "warning: W&B is offline",
    ]


def test_very_many_clients_do_not_make_long_lines(make_round_end: Any) -> None:
    """User case: 10 000 clients."""
    clients = list(range(10_000))
    lines = lines_of(
        {"event": "round_start", "round": 1, "clients": clients, "cuts": dict.fromkeys(map(str, clients), 2)},
        {"event": "waiting", "round": 1, "for": "their next batch", "clients": clients, "seconds": 30.0},
        {"event": "round_end", **make_round_end(1, lost=clients)},
    )
    assert max(len(line) for line in lines) < 180
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 9992 more" in lines[1]


def test_missing_values_and_many_epochs() -> None:
    numbers = {"loss": None, "accuracy": None, "total_s": 1.0, "bytes_up": 0, "bytes_down": 0, "moves": 1}
    lines = lines_of({"event": "run_end", "rounds": 50, "epoch_s": [2.0] * 50, "cuts": {}, "run_dir": "/r", **numbers})
    assert "accuracy         -, loss      - on held-out data" in lines
    assert "epochs      … 2.00 2.00 2.00 2.00 2.00 2.00 s, mean 2.00 s" in lines
    assert len(lines) <= 12
