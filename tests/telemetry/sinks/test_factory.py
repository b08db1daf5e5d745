import csv
import json
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import EventsSettings, LoggingSettings, Settings
from dynsl_app.telemetry.events import EventStream, Sink
from dynsl_app.telemetry.sinks.factory import make_sinks
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.telemetry.sinks.lines import LinesSink
from dynsl_app.telemetry.sinks.live import LiveSink
from dynsl_app.telemetry.sinks.wandb import WandbSink


class Fan:
    """Several sinks as one."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks

    def handle(self, event: Any) -> None:
        for sink in self.sinks:
            sink.handle(event)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def quiet(**fields: Any) -> Settings:
    return Settings(logging=LoggingSettings(console="off"), **fields)


def close(sinks: list[Sink]) -> None:
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize(("detail", "steps"), [("batch", 10), ("round", 0)])
def test_detail_decides_on_batch_events_in_files(tmp_path: Path, example: Any, detail: Any, steps: int) -> None:
    folder = RunFolder(tmp_path)
    example(Fan(make_sinks(quiet(events=EventsSettings(detail=detail)), folder)), rounds=2, batches=5)
    assert sum(event["event"] == "step" for event in read_events(folder.events)) == steps
    assert sum(entry["name"] == "step" for entry in json.loads(folder.trace.read_text())) == steps


@pytest.mark.parametrize(
    ("console", "terminal", "kinds"),
    [
        ("auto", False, [LinesSink]),
        ("auto", True, [LiveSink]),
        ("lines", True, [LinesSink]),
        ("live", False, [LiveSink]),
        ("off", True, []),
    ],
)
def test_the_console_follows_setting_and_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any, terminal: bool, kinds: list[type]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    sinks = make_sinks(Settings(logging=LoggingSettings(console=console)), RunFolder(tmp_path))
    close(sinks)
    assert [type(sink) for sink in sinks if isinstance(sink, LinesSink | LiveSink)] == kinds


def test_wandb_only_when_asked(tmp_path: Path) -> None:
    sinks = make_sinks(Settings(logging=LoggingSettings(console="off", wandb="offline")), RunFolder(tmp_path))
    close(sinks)
    assert [type(sink) for sink in sinks].count(WandbSink) == 1


def test_lines_go_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sinks = make_sinks(Settings(logging=LoggingSettings(console="lines")), RunFolder(tmp_path))
    stream = EventStream(sinks)
    stream.emit("warning", message="hello")
    stream.close()
    assert capsys.readouterr().out == "warning: hello\n"


def test_a_resumed_run_has_each_round_once_in_every_file(tmp_path: Path, example: Any, make_round_end: Any) -> None:
    """User case 38: a run killed in round 3 goes on after the checkpoint of round 2 with one curve."""
    folder = RunFolder(tmp_path)
    example(Fan(make_sinks(quiet(), folder)), rounds=3)
    folder = RunFolder.reopen(tmp_path, after_round=2)
    stream = EventStream(make_sinks(quiet(), folder), start=folder.elapsed())
    stream.emit("run_start", settings={"rounds": 3})
    stream.emit("round_end", **make_round_end(3))
    stream.close()
    assert [e["round"] for e in read_events(folder.events) if e["event"] == "round_end"] == [1, 2, 3]
    times = [event["t"] for event in read_events(folder.events)]
    assert times == sorted(times)
    with folder.metrics.open(newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    rounds = [entry["name"] for entry in json.loads(folder.trace.read_text()) if entry["name"].startswith("round ")]
    assert rounds == ["round 1", "round 2", "round 3"]
