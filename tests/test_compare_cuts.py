"""The script that times every cut: it runs them all, compares them, and fails when one does."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import compare_cuts

TINY = "model=mlp clients=2 rounds=1 data.limit=32 wire=inprocess"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compare_cuts.py", *arguments])
    return compare_cuts.main()


def test_every_cut_is_run_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--keep", str(tmp_path / "kept"), TINY) == 0
    out = capsys.readouterr().out
    assert "all at 4 (whole model)" in out
    assert "All runs end with the same weights, bit for bit." in out
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("kept/*/summary.json"))]
    assert [(each["algorithm"], each["rounds"]) for each in summaries] == [("uniform", 1)] * 4 + [("dynsl", 1)]
    assert [set(each["cuts"].values()) for each in summaries[:4]] == [{1}, {2}, {3}, {4}]


def test_a_run_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, TINY + " server.device=cuda:99") == 1
    assert "server.device=cuda:99" in capsys.readouterr().err


def test_interrupting_is_not_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_cuts, "run_local", interrupt)
    assert call(monkeypatch, TINY) == 130
    assert capsys.readouterr().err == "interrupted\n"
