"""Which sinks a run has, by its settings."""

import sys

from rich.console import Console

from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import Settings
from dynsl_app.telemetry.events import Sink, WithoutBatches
from dynsl_app.telemetry.sinks.csv import CsvSink
from dynsl_app.telemetry.sinks.jsonl import JsonlSink, read_events
from dynsl_app.telemetry.sinks.lines import LinesSink
from dynsl_app.telemetry.sinks.live import LiveSink
from dynsl_app.telemetry.sinks.trace import TraceSink
from dynsl_app.telemetry.sinks.wandb import WandbSink


def make_sinks(settings: Settings, folder: RunFolder) -> list[Sink]:
    """The run's sinks: files in its folder, the console, and W&B when asked.

    ``metrics.csv`` and ``trace.json`` follow from ``events.jsonl``: in a resumed run they are made again from
    what is left of it, so the three never disagree.
    """
    per_batch = settings.events.detail == "batch"
    trace = TraceSink(folder.trace)
    derived: list[Sink] = [CsvSink(folder.metrics), trace if per_batch else WithoutBatches(trace)]
    if folder.events.exists():
        for event in read_events(folder.events):
            for sink in derived:
                sink.handle(event)
    events = JsonlSink(folder.events)
    sinks: list[Sink] = [events if per_batch else WithoutBatches(events), *derived]
    mode = settings.logging.console
    if mode == "live" or (mode == "auto" and sys.stdout.isatty()):
        sinks.append(LiveSink(Console(file=sys.stdout, force_terminal=True)))
    elif mode != "off":
        sinks.append(LinesSink(lambda line: print(line, flush=True)))
    if settings.logging.wandb != "off":
        sinks.append(WandbSink(folder.path, settings.logging.project, settings.logging.wandb))
    return sinks
