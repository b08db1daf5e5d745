import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dynsl_app.errors import SettingsError
from dynsl_app.server import durable
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNSL_RUNS", raising=False)


# -- where it is -------------------------------------------------------------------------------------------------------


def test_the_default_is_time_and_name_under_the_given_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Settings(name="first try"), Path("runs"))
    assert folder.path.is_absolute()
    assert folder.path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{8}-\d{6}-first-try", folder.path.name)


def test_the_environment_comes_before_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNSL_RUNS", str(tmp_path / "elsewhere"))
    assert RunFolder.create(Settings(), tmp_path / "default").path.parent == tmp_path / "elsewhere"


def test_run_dir_comes_first_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNSL_RUNS", str(tmp_path / "elsewhere"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("keep")
    folder = RunFolder.create(Settings(run_dir=str(tmp_path / "mine")), tmp_path / "default")
    assert folder.path == tmp_path / "mine"
    assert os.listdir(folder.path) == ["notes.md"]


def test_runs_started_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [RunFolder.create(Settings(), tmp_path).path for _ in range(5)]
    assert len(set(folders)) == 5
    assert all(folder.is_dir() for folder in folders)


@given(st.text(max_size=200))
def test_any_name_makes_a_folder_right_below_the_base(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    base = tmp_path_factory.mktemp("base")
    assert RunFolder.create(Settings(name=name), base).path.parent == base


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written_names_setting_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"run_dir=.*/file/run: cannot make .*choose a writable folder"):
        RunFolder.create(Settings(run_dir=str(tmp_path / "file" / "run")), tmp_path)


def test_the_environments_place_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DYNSL_RUNS", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match=r"\$DYNSL_RUNS=.*/file"):
        RunFolder.create(Settings(), tmp_path)


def test_run_dir_of_another_run_is_refused(tmp_path: Path) -> None:
    settings = Settings(run_dir=str(tmp_path))
    RunFolder.create(settings, tmp_path).events.write_text('{"t":0,"event":"run_start"}\n')
    with pytest.raises(SettingsError, match=r"holds a run already .*resume="):
        RunFolder.create(settings, tmp_path)


def test_run_dir_of_a_run_that_never_began_may_be_used_again(tmp_path: Path) -> None:
    """A mistyped setting is corrected and the same command given again."""
    settings = Settings(run_dir=str(tmp_path))
    RunFolder.create(settings, tmp_path).events.touch()
    assert RunFolder.create(settings, tmp_path).path == tmp_path


# -- what is written ---------------------------------------------------------------------------------------------------


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    """Whatever order, memory layout or storage the tensors have."""
    a, b = torch.randn(4, 3, 8, 8), torch.arange(6)
    shared = torch.cat([a.flatten(), a.flatten()])
    states = [
        {"a": a, "twin": a.clone(), "b": b},
        {"b": b, "twin": a.clone(), "a": a.to(memory_format=torch.channels_last)},
        {"twin": shared[: a.numel()].view_as(a), "a": shared[a.numel() :].view_as(a), "b": b},
        {"a": torch.nn.Parameter(a), "twin": a, "b": b},
    ]
    written = []
    for number, state in enumerate(states):
        (tmp_path / str(number)).mkdir()
        folder = RunFolder(tmp_path / str(number))
        folder.write_model(state)
        written.append(folder.model.read_bytes())
    assert len(set(written)) == 1
    assert b"__metadata__" not in written[0]


def test_a_written_model_loads_to_the_bit_and_text_is_as_given(tmp_path: Path) -> None:
    """User case 3: what was trained can be used."""
    folder = RunFolder(tmp_path)
    state = {"weight": torch.randn(3, 2), "count": torch.tensor(7), "half": torch.randn(2).half()}
    folder.write_model(state)
    loaded = load_file(folder.model)
    assert set(loaded) == set(state)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    folder.write_config("seed: 3\n")
    assert folder.config.read_text() == "seed: 3\n"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config("old")

    def full(path: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(durable, "sync", full)
    with pytest.raises(OSError, match="no space"):
        folder.write_config("new")
    assert os.listdir(tmp_path) == ["config.yaml"]
    assert folder.config.read_text() == "old"


# -- resuming ----------------------------------------------------------------------------------------------------------


def stream(rounds: int, finished: bool = False) -> list[str]:
    events: list[dict[str, object]] = [{"t": 0.0, "event": "run_start"}]
    for number in range(1, rounds + 1):
        for name in ("round_start", "step", "round_end", "checkpoint"):
            events.append({"t": float(len(events)), "event": name, "round": number})
        events.append({"t": float(len(events)), "event": "warning", "message": "between rounds"})
    if finished:
        events.append({"t": float(len(events)), "event": "run_end", "rounds": rounds})
    return [json.dumps(event) + "\n" for event in events]


@given(st.data())
def test_reopening_keeps_all_up_to_the_checkpoint_and_nothing_after(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """User case 38, at whatever byte the process was killed after the checkpoint."""
    rounds = data.draw(st.integers(1, 4))
    after = data.draw(st.integers(1, rounds))
    kept = "".join(stream(after))
    whole = "".join(stream(rounds, finished=data.draw(st.booleans())))
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.events.write_text(whole[: data.draw(st.integers(len(kept), len(whole)))])
    reopened = RunFolder.reopen(folder.path, after_round=after)
    assert reopened.events.read_text() == kept
    assert reopened.elapsed() == after * 5


def test_a_run_that_goes_on_is_not_finished(tmp_path: Path, summary: Callable[[int], Summary]) -> None:
    folder = RunFolder(tmp_path)
    folder.write_summary(summary(2))
    assert json.loads(folder.summary.read_text())["rounds"] == 2
    RunFolder.reopen(tmp_path, after_round=2)
    assert not folder.summary.exists()


def test_a_new_run_has_taken_no_time(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).elapsed() == 0.0


@pytest.fixture
def summary() -> Callable[[int], Summary]:
    return lambda rounds: Summary(
        accuracy=None,
        loss=None,
        rounds=rounds,
        epoch_s=(),
        total_s=0.0,
        bytes_up=0,
        bytes_down=0,
        moves=0,
        cuts={},
        clients=1,
        algorithm="fedavg",
        model="cnn",
        data="digits",
        seed=0,
        name="run",
        run_dir="/runs/example",
    )
