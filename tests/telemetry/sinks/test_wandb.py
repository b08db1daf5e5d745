import sys
from pathlib import Path
from typing import Any

import pytest
import wandb

from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.sinks import wandb as sink_module
from dynsl_app.telemetry.sinks.wandb import WandbSink


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No key from this machine, no network: the server's address refuses connections."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sink_module, "_ANSWER_S", 2.0)
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def run(sink: WandbSink, recorder: Any, make_round_end: Any) -> None:
    stream = EventStream([sink, recorder])
    stream.emit("run_start", settings={"seed": 3, "model": {"name": "cnn"}})
    stream.emit("round_end", **make_round_end(1, accuracy=0.8125))
    stream.emit("run_end", accuracy=0.6875, cuts={0: 2})
    stream.close()


def recorded(folder: Path) -> bytes:
    """The offline record that `wandb sync` sends: protobuf with plain text values."""
    wandb.teardown()  # waits, as the end of a process does, until W&B's own process has written all
    (record,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return record.read_bytes()


def test_offline_keeps_config_metrics_and_summary_in_the_run_folder(
    folder: Path, recorder: Any, make_round_end: Any
) -> None:
    run(WandbSink(folder, "project", "offline"), recorder, make_round_end)
    record = recorded(folder)
    assert b"cnn" in record
    assert b"0.8125" in record
    assert b"0.6875" in record
    assert recorder.named("warning") == []


def test_online_without_a_key_goes_on_offline_with_a_warning(folder: Path, recorder: Any, make_round_end: Any) -> None:
    run(WandbSink(folder, "project", "online"), recorder, make_round_end)
    (warning,) = recorder.named("warning")
    assert "WANDB_API_KEY" in warning["message"]
    assert "wandb sync" in warning["message"]
    assert b"0.8125" in recorded(folder)


def test_a_key_in_dotenv_but_nobody_there_goes_on_offline(folder: Path, recorder: Any, make_round_end: Any) -> None:
    Path(".env").write_text("WANDB_API_KEY=" + "a" * 40 + "\n")
    run(WandbSink(folder, "project", "online"), recorder, make_round_end)
    (warning,) = recorder.named("warning")
    assert "W&B is offline" in warning["message"]
    assert "no key" not in warning["message"]
    assert b"0.8125" in recorded(folder)


def test_the_environment_wins(
    folder: Path, recorder: Any, make_round_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(WandbSink(folder, "project", "online"), recorder, make_round_end)
    assert recorder.named("warning") == []
    assert b"0.8125" in recorded(folder)


def test_a_missing_package_is_a_warning(
    folder: Path, recorder: Any, make_round_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run(WandbSink(folder, "project", "online"), recorder, make_round_end)
    (warning,) = recorder.named("warning")
    assert "wandb" in warning["message"]
    assert [event["event"] for event in recorder.events][-1] == "run_end"


def test_a_resumed_run_keeps_its_id(folder: Path, recorder: Any, make_round_end: Any) -> None:
    for _ in range(2):
        run(WandbSink(folder, "project", "offline"), recorder, make_round_end)
    identity = (folder / "wandb" / "id").read_text()
    names = {path.name for path in folder.glob("wandb/offline-run-*/run-*.wandb")}
    assert names == {f"run-{identity}.wandb"}
