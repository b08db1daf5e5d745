"""``events.jsonl``: the stream itself, one strict JSON object a line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynsl_app.telemetry import strict_json
from dynsl_app.telemetry.events import Event


class JsonlSink:
    """Appends each event as a line.

    Line-buffered: a killed process leaves whole lines and at most one torn one. That costs 1.5 µs a line
    over block buffering (10 µs in all, most of it JSON), and nothing is held back.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def handle(self, event: Event) -> None:
        """Write one line; at the end of a round also to the disk itself, before its checkpoint counts on it."""
        self._file.write(strict_json.dumps(event) + "\n")
        if event["event"] in ("round_end", "run_end"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a run, finished or not; a torn last line is skipped.

    Raises
    ------
    ValueError
        If a line that is not the last one is not JSON: then the file is damaged, not just cut off.
    """
    for _, event in events_with_end(path):
        yield event


def events_with_end(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Events with the offset in bytes at which each one's line ends."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield end, json.loads(line)
