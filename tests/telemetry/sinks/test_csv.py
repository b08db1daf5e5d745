import csv
import json
from pathlib import Path
from typing import Any

from dynsl_app.telemetry.sinks.csv import COLUMNS, CsvSink


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_round_under_a_fixed_header(tmp_path: Path, example: Any) -> None:
    path = tmp_path / "metrics.csv"
    example(CsvSink(path), rounds=3)
    with path.open(newline="") as file:
        assert next(csv.reader(file)) == list(COLUMNS)
    got = rows(path)
    assert [row["round"] for row in got] == ["1", "2", "3"]
    assert [float(row["loss"]) for row in got] == [1.0, 0.5, 1.0 / 3]
    assert json.loads(got[0]["cuts"]) == {"0": 2, "1": 2, "2": 4}
    assert got[0]["lost"] == "[]"
    assert got[0]["federated_loss"] == ""


def test_rows_are_on_file_while_the_run_goes_on(tmp_path: Path, make_round_end: Any) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.handle({"t": 1.0, "event": "round_end", **make_round_end(1, extra="ignored", loss=float("nan"))})
    assert rows(path)[0]["loss"] == "nan"
    sink.close()
