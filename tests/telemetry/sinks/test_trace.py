import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.telemetry.sinks.trace import TraceSink


@pytest.fixture
def trace(tmp_path: Path, example: Any) -> list[dict[str, Any]]:
    path = tmp_path / "trace.json"
    example(TraceSink(path), rounds=2, batches=3)
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    return entries


def test_a_track_per_client_link_and_worker(trace: list[dict[str, Any]]) -> None:
    names = [entry["args"]["name"] for entry in trace if entry["name"] == "thread_name"]
    assert sorted(names) == ["client 0", "client 1", "client 2", "link 0", "rounds", "worker 1"]


def test_a_step_splits_a_clients_batch_into_own_time_queue_and_head(trace: list[dict[str, Any]]) -> None:
    """Streams open at 3 s, the first step ends at 6 s after 0.25 s in the queue and 0.5 s in the head.

    Client 1 does not tell what its link took.
    """
    first = [e for e in trace if e["ph"] == "X" and e["pid"] == 2 and e["tid"] == 1][:3]
    assert [(e["name"], e["ts"], e["dur"]) for e in first] == [
        ("client and link", 4e6, 1.25e6),
        ("queue", 5.25e6, 0.25e6),
        ("head", 5.5e6, 0.5e6),
    ]


def test_what_a_client_tells_of_its_link_is_shown_on_the_links_track(trace: list[dict[str, Any]]) -> None:
    """Batch 0 of client 0 came at 5.25 s, was replied to 0.625 s later, and was on the link for 0.5 s, both ways."""
    link = [e for e in trace if e["ph"] == "X" and e["pid"] == 4 and e["tid"] == 0][:2]
    assert [(e["name"], e["ts"], e["dur"]) for e in link] == [("up", 5e6, 0.25e6), ("down", 5.875e6, 0.25e6)]
    own = [e for e in trace if e["ph"] == "X" and e["pid"] == 2 and e["tid"] == 0][:4]
    assert [(e["name"], e["ts"], e["dur"]) for e in own] == [
        ("client", 3e6, 2e6),
        ("queue", 5.25e6, 0.25e6),
        ("head", 5.5e6, 0.375e6),
        ("client", 6.125e6, 0.875e6),
    ]


def test_slices_of_a_track_do_not_overlap(trace: list[dict[str, Any]]) -> None:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for entry in trace:
        if entry["ph"] == "X":
            tracks.setdefault((entry["pid"], entry["tid"]), []).append(entry)
    assert len(tracks) == 6
    for slices in tracks.values():
        for before, after in itertools.pairwise(slices):
            assert before["dur"] >= 0
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3


def test_a_stream_of_an_older_run_is_shown_too(tmp_path: Path) -> None:
    """It knows neither workers nor links."""
    path = tmp_path / "trace.json"
    sink = TraceSink(path)
    step = {"round": 1, "head": None, "members": [[7, 0, 8]], "loss": 1.0, "correct": 1, "wait_s": 0, "service_s": 1}
    sink.handle({"t": 2.0, "event": "step", **step})
    sink.close()
    names = [e["args"]["name"] for e in json.loads(path.read_text()) if e["name"] == "thread_name"]
    assert names == ["worker 0", "client 7"]


def test_troubles_are_marks_in_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sink = TraceSink(path)
    sink.handle({"t": 2.0, "event": "client_lost", "round": 1, "client": 3, "reason": "gone"})
    sink.close()
    (mark,) = [e for e in json.loads(path.read_text()) if e["ph"] == "i"]
    assert (mark["name"], mark["ts"], mark["args"]["reason"]) == ("client_lost", 2e6, "gone")


def test_memory_does_not_grow_with_batches(tmp_path: Path) -> None:
    """What the sink holds is the tracks, not the slices."""
    sink = TraceSink(tmp_path / "trace.json")
    progress = {"event": "progress", "round": 1, "client": 0, "samples": 8, "loss": 1.0, "correct": 1}

    def held() -> int:
        return sum(len(value) for value in vars(sink).values() if isinstance(value, set | dict | list))

    step = {"event": "step", "round": 1, "head": 0, "worker": 0, "loss": 1.0, "wait_s": 0.1, "service_s": 0.1}

    def handle(batch: int) -> None:
        sink.handle({"t": float(batch), "batch": batch, **progress})
        sink.handle({"t": float(batch), "members": [[1, batch, 8]], "exchanges": [(0.1, 0.2)], **step})

    for batch in range(2):
        handle(batch)
    before = held()
    for batch in range(2, 1000):
        handle(batch)
    assert held() == before
    sink.close()
