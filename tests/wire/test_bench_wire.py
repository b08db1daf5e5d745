"""The benchmark runs and says what it measured."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_wire.py"


def test_bench_wire_prints_and_writes_its_table(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "wire.csv"
    command = [sys.executable, str(SCRIPT), "--sizes", "4096", "--clients", "2", "--turns", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "| 2 | 4 KB |" in done.stdout
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["transport"] for row in rows] == ["tcp", "grpc", "grpc+tls"]
    assert all(float(row["median_ms"]) > 0 and int(row["exchanges"]) >= 6 for row in rows)
