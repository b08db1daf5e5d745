"""The command ``dynsl-profile``."""

from pathlib import Path

import pytest
import torch

from dynsl_app.profile_cli import main
from dynsl_app.telemetry.profile import from_json, load_profile

EXAMPLE = str(Path(__file__).parents[1] / "docs" / "examples" / "profile-resnet18.json")
SMALL = ("model=mlp", "data=synthetic", "data.shape=[1,8,8]", "data.classes=3", "data.batch=4", "--batches", "2")


@pytest.fixture(autouse=True)
def _threads_stay():
    """The command sets torch's threads for its process; here that is the tests'."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dynsl-profile: ")
    assert err.count("\n") == 1
    return err


def test_it_measures_writes_draws_and_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out, drawing = tmp_path / "p.json", tmp_path / "p.png"
    flags = ("--out", str(out), "--plot", str(drawing), "--threads", "2", "--label", "shed")
    assert main((*SMALL, *flags)) == 0
    profile = load_profile(out)
    assert (profile.model, profile.shape, profile.classes, profile.batch) == ("mlp", (1, 8, 8), 3, 4)
    assert (profile.threads, profile.device, profile.optimizer) == (2, "shed", "adam")
    assert drawing.read_bytes().startswith(b"\x89PNG")
    printed, err = capsys.readouterr()
    assert err == ""
    for block in profile.blocks:
        assert block.name in printed
        assert f"{1e3 * block.forward_s:.2f}" in printed
    assert "…" not in printed, "the table is cut off"
    assert str(out) in printed.replace("\n", "")


def test_flags_may_stand_between_settings(tmp_path: Path):
    out = tmp_path / "p.json"
    assert main(("model=mlp", "--batches", "1", "data.batch=2", "--out", str(out), "optimizer=sgd")) == 0
    profile = from_json(out.read_text())
    assert (profile.source, profile.batch, profile.optimizer, profile.shape) == ("warmup", 2, "sgd", (1, 8, 8))


def test_operations_over_an_assumed_speed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "p.json"
    assert main((*SMALL, "--flops", "1e9", "--out", str(out))) == 0
    assert from_json(out.read_text()).source == "flops"
    assert "not measured" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_a_profile_can_be_shown_again(capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str):
    drawing = tmp_path / f"again.{suffix}"
    assert main(("--show", EXAMPLE, "--plot", str(drawing))) == 0
    printed = capsys.readouterr().out
    assert "resnet18, 32 × 3×32×32" in printed
    assert "measured earlier" in printed
    assert drawing.stat().st_size > 1000


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for flag in (
        "--out",
        "--plot",
        "--batches",
        "--threads",
        "--device",
        "--label",
        "--flops",
        "--show",
        "data=synthetic",
    ):
        assert flag in text, flag


def test_bad_input_is_one_paragraph_on_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "did you mean data.batch" in refusal(capsys, "data.bacth=3")
    assert "model=nope: no such option" in refusal(capsys, "model=nope")
    assert "data.resize=32" in refusal(capsys, "model=vgg11", "data=synthetic", "data.shape=[1,8,8]")
    assert "--device=nope cannot be used" in refusal(capsys, *SMALL, "--device", "nope")
    assert "operations per second is none" in refusal(capsys, *SMALL, "--flops", "nan")
    assert "leave out model=mlp" in refusal(capsys, "--show", EXAMPLE, "model=mlp")
    assert "cannot be read" in refusal(capsys, "--show", str(tmp_path / "none.json"))
    absent = tmp_path / "none" / "p"
    assert "--out=" in refusal(capsys, "--show", EXAMPLE, "--out", f"{absent}.json")
    assert "--plot=" in refusal(capsys, "--show", EXAMPLE, "--plot", f"{absent}.png")
    assert "not supported" in refusal(capsys, "--show", EXAMPLE, "--plot", str(tmp_path / "p.xyz"))
    for flags in (("--batches", "0"), ("--batches", "x"), ("--threads", "-1"), ("--flops", "1", "--show", EXAMPLE)):
        with pytest.raises(SystemExit) as stop:
            main((*SMALL, *flags))
        assert stop.value.code == 2
    assert capsys.readouterr().out == ""


def test_interrupted(monkeypatch: pytest.MonkeyPatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dynsl_app.telemetry.profiling.measure", stop)
    assert main(SMALL) == 130
