import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.telemetry.sinks.jsonl import JsonlSink, read_events

ROOT = Path(__file__).parents[3]


def test_every_event_is_a_line_and_comes_back(tmp_path: Path, recorder: Any, example: Any) -> None:
    path = tmp_path / "events.jsonl"
    example(JsonlSink(path))
    example(recorder)
    assert list(read_events(path)) == json.loads(json.dumps(recorder.events))


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    """User case: a run that diverges is still readable by any JSON parser."""
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path)
    sink.handle({"t": 0.0, "event": "step", "loss": float("nan")})
    sink.close()
    assert path.read_text() == '{"t":0.0,"event":"step","loss":null}\n'


def test_it_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in range(2):
        sink = JsonlSink(path)
        sink.handle({"t": float(number), "event": "a"})
        sink.close()
    assert [event["t"] for event in read_events(path)] == [0.0, 1.0]


@given(st.data())
def test_a_file_cut_off_anywhere_reads_as_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = [json.dumps({"event": "n", "number": number}).encode() + b"\n" for number in range(5)]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    path.write_bytes(whole[:cut])
    assert [event["number"] for event in read_events(path)] == list(range(whole[:cut].count(b"\n")))


def test_damage_inside_is_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"a"}\n\0\0\0\n{"event":"b"}\n')
    with pytest.raises(ValueError, match="Expecting value"):
        list(read_events(path))


def test_kill_9_loses_nothing_that_was_emitted(tmp_path: Path) -> None:
    """User case 38: what was written before ``kill -9`` is there."""
    path = tmp_path / "events.jsonl"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import itertools, sys\n"
            "from pathlib import Path\n"
            "from dynsl_app.telemetry.sinks.jsonl import JsonlSink\n"
            "sink = JsonlSink(Path(sys.argv[1]))\n"
            "for n in itertools.count():\n"
            "    sink.handle({'t': float(n), 'event': 'step', 'number': n, 'pad': 'x' * 200})\n"
            "    print(n, flush=True)\n",
            str(path),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for _ in range(500):
        line = child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    numbers = [event["number"] for event in read_events(path)]
    assert len(numbers) > int(line)
    assert numbers == list(range(len(numbers)))
