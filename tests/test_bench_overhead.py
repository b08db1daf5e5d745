"""The benchmark of what splitting costs runs, and says what it measured."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_overhead.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_it_prints_and_writes_its_table(tmp_path: Path) -> None:
    """Parts that share no code: split steps, groups at a shared head, memory."""
    out = tmp_path / "deep" / "overhead.csv"
    done = bench("--quick", "--only", "cnn,merge,memory", "--out", str(out))
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(table) == len(rows) == 4
    assert all(row["what"] in line and row["ratio"] in line for row, line in zip(rows, table, strict=True))
    split, merged, flat, each = rows
    assert "cut 1 (4.2 MB)" in split["what"]
    assert float(split["before"].removesuffix(" ms")) > 0
    assert split["tls"].endswith("%")
    assert "2 × 16 samples merged against 1 × 32" in merged["what"]
    assert float(flat["before"].removesuffix(" MB")) > 0
    assert each["ratio"].endswith(" MB each")


def test_it_refuses_a_part_that_it_has_not() -> None:
    done = bench("--only", "cnn,everything")
    assert done.returncode == 2
    assert "no such part: everything" in done.stderr
