"""The command ``dynsl-plan``."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.cost.instance import parse_instance
from dynsl_app.cost.model import costs_of
from dynsl_app.plan_cli import main

EXAMPLE = str(Path(__file__).parents[1] / "docs" / "examples" / "instance.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The command's JSON; standard output must hold nothing else."""
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report: dict[str, Any] = json.loads(out)
    return report


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_plan_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, EXAMPLE)
    costs = costs_of(parse_instance(json.loads(Path(EXAMPLE).read_text())))
    own = [costs.c[i, cut - 1] for i, cut in enumerate(report["cuts"])]
    work = [costs.v[i, cut - 1] for i, cut in enumerate(report["cuts"])]
    assert report["bound_s"] == pytest.approx(max(max(own), sum(work) / costs.workers))
    assert set(report) == {"cuts", "bound_s", "solver_ms", "clients"}
    assert report["solver_ms"] > 0
    for client, cut, seconds in zip(report["clients"], report["cuts"], own, strict=True):
        parts = (client[key] for key in ("compute_s", "up_s", "down_s", "rtt_s", "server_s"))
        assert client["cut"] == cut
        assert sum(parts) == pytest.approx(client["total_s"]) == pytest.approx(seconds)


def test_refine_adds_its_plan_and_its_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, EXAMPLE, "--refine")
    assert len(report["refined_cuts"]) == len(report["cuts"]) == 24
    assert report["epoch_s"] >= report["bound_s"]
    assert report["epoch_s"] == max(client["end_s"] for client in report["clients"])
    assert [client["cut"] for client in report["clients"]] == report["refined_cuts"]


def test_shared_head_reports_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, EXAMPLE, "--set", "boundary=8", "--refine")
    assert max(report["cuts"]) <= 8
    assert report["epoch_s"] >= report["shared_floor_s"] > 0


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    """A thin link makes the client train everything itself; by position and by name alike."""
    thin = [run(capsys, EXAMPLE, "--set", f"clients.{who}.up_Bps=1e4") for who in ("17", "pi4-1")]
    assert thin[0]["cuts"] == thin[1]["cuts"]
    assert run(capsys, EXAMPLE)["clients"][17]["cut"] < thin[0]["clients"][17]["cut"]
    both = run(capsys, EXAMPLE, "--set", "workers=8", "--set", "server_call_s=0")
    assert both["bound_s"] < run(capsys, EXAMPLE)["bound_s"]


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(EXAMPLE).read_text()))
    assert run(capsys, "-")["cuts"] == run(capsys, EXAMPLE)["cuts"]


@pytest.mark.parametrize("flags", [[], ["--refine"], ["--refine", "--set", "boundary=8", "--set", "workers=3"]])
def test_explain_is_for_people(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert main([EXAMPLE, "--explain", *flags]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)
    for client in json.loads(Path(EXAMPLE).read_text())["clients"]:
        assert client["name"] in out
    assert ("refined" in out) == bool(flags)
    assert "limit" in out
    assert "…" not in out, "the table is cut off"


def test_help_teaches_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    example = json.loads(Path(EXAMPLE).read_text())
    for key in (*example, *example["clients"][0], "bound_s", "refined_cuts", "--set", "--refine", "--explain"):
        assert key in text, key


def test_refusals_go_to_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "cannot be read" in refusal(capsys, str(tmp_path / "none.json"))
    assert "cannot be read" in refusal(capsys, str(tmp_path))
    assert "not JSON" in refusal(capsys, str(broken))
    broken.write_bytes(b"\xff\xfe")
    assert "not JSON" in refusal(capsys, str(broken))
    broken.write_text("[" * 100_000)
    assert "not JSON" in refusal(capsys, str(broken))
    broken.write_text("[]")
    assert "expected a JSON object" in refusal(capsys, str(broken))
    assert "'pi4-1': up_Bps=0" in refusal(capsys, EXAMPLE, "--set", "clients.pi4-1.up_Bps=0")
    assert "--set clients.x.cut=1" in refusal(capsys, EXAMPLE, "--set", "clients.x.cut=1")
    infeasible = ("--set", "boundary=4", "--set", "clients.2.min_cut=5", "--set", "clients.2.max_cut=6")
    assert "client 'laptop-1' has no feasible cut" in refusal(capsys, EXAMPLE, *infeasible)
