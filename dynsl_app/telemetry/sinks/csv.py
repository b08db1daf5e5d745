"""``metrics.csv``: a row a round, for spreadsheets and pandas."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynsl_app.telemetry import strict_json
from dynsl_app.telemetry.events import Event

COLUMNS = (
    "round",
    "t",
    "epoch_s",
    "train_loss",
    "train_accuracy",
    "loss",
    "accuracy",
    "federated_loss",
    "federated_accuracy",
    "bytes_up",
    "bytes_down",
    "samples",
    "clients",
    "lost",
    "moves",
    "seconds",
    "cuts",
)
"""The header, always the same; a column without a value in a run is empty."""


class CsvSink:
    """Writes a new file with one row per ``round_end``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1, newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, COLUMNS, extrasaction="ignore")
        self._rows.writeheader()

    def handle(self, event: Event) -> None:
        """Write a row at the end of a round."""
        if event["event"] == "round_end":
            self._rows.writerow({name: _cell(value) for name, value in event.items()})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cell(value: Any) -> Any:
    """Lists and mappings as compact JSON, so that the cell can be parsed again."""
    return strict_json.dumps(value) if isinstance(value, list | tuple | Mapping) else value
