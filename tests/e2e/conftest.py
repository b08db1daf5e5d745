"""Whole runs, started as a user starts them."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs go, for this process and those it starts."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("DYNSL_RUNS", str(folder))
    return folder
