"""A user's own model and data by ``_target_``, from the settings to the trained model; and what is refused early."""

from pathlib import Path

import pytest

from dynsl_app.compose import compose
from dynsl_app.errors import DataError, RoundFailed, SettingsError
from dynsl_app.inprocess import InProcessControl
from dynsl_app.local_grid import run_local
from dynsl_app.run import run
from dynsl_app.server import rounds
from dynsl_app.server.director import Stay

MODULE = """
import torch
from torch import nn

from dynsl_app.data.source import DataSpec, Source, TensorSamples


def net(shape, classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.Linear(width, classes))


def load(classes=3):
    images = torch.rand(40, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    samples = TensorSamples(images, torch.arange(40) % classes)
    return Source(DataSpec((1, 5, 5), classes), samples, samples)
"""


def test_own_model_and_data_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["model=custom", "model._target_=users_own.net", "+model.params.width=6"]
    own += ["data=custom", "data._target_=users_own.load", "+data.params.classes=4"]
    own += ["rounds=1", "logging.console=off"]
    summary = run_local(compose([*own, "algorithm=splitfed_v1", f"run_dir={tmp_path / 'fixed'}"]))
    assert summary.rounds == 1
    assert set(summary.cuts.values()) == {2}
    assert run_local(compose([*own, f"run_dir={tmp_path / 'default'}"])).rounds == 1


class _Swing(Stay):
    """Sends every client from 1 block to 3, to 2, to 1, and round again."""

    def command(self, client: int, cut: int) -> int | None:
        return {1: 3, 3: 2, 2: 1}[cut]


def test_a_block_without_parameters_may_be_all_that_a_client_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block of the module's net only flattens, and moves like any other; the weights are FedAvg's."""
    (tmp_path / "flat_first.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rounds, "Stay", _Swing)
    common = ["model=custom", "model._target_=flat_first.net", "data=custom", "data._target_=flat_first.load"]
    common += ["rounds=2", "clients=2", "data.batch=2", "logging.console=off", "wire=inprocess"]
    swung = run_local(compose([*common, "algorithm=uniform", "algorithm.cut=1", f"run_dir={tmp_path / 'swung'}"]))
    assert swung.moves >= 12
    run_local(compose([*common, "algorithm=fedavg", f"run_dir={tmp_path / 'whole'}"]))
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("swung", "whole")]
    assert models[0] == models[1]


SMALL = ["model=mlp", "data.limit=40", "rounds=1", "logging.console=off"]


@pytest.mark.parametrize(
    ("overrides", "error", "says"),
    [
        (["clients=50"], DataError, "50 clients"),
        (["model=custom"], SettingsError, r"model=custom needs model\._target_=package\.module\.builder"),
        (["data=custom"], SettingsError, r"data=custom needs data\._target_"),
        (["server.device=cuda:99"], SettingsError, "server.device=cuda:99 cannot be used here"),
    ],
)
def test_what_all_clients_would_fail_on_is_refused_once(
    tmp_path: Path, overrides: list[str], error: type[Exception], says: str
) -> None:
    settings = compose([*SMALL, *overrides, f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(error, match=says) as refusal:
        run(settings, InProcessControl(settings.clients))
    assert refusal.value.run_dir is None
    assert list(tmp_path.iterdir()) == []


def test_a_refused_run_leaves_a_folder_of_the_users_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    settings = compose([*SMALL, "algorithm.cut=99", f"run_dir={tmp_path}"])
    with pytest.raises(SettingsError, match=r"algorithm\.cut=99"):
        run(settings, InProcessControl(settings.clients))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_fails_after_it_began_keeps_its_folder(tmp_path: Path) -> None:
    settings = compose([*SMALL, "optimizer=sgd", "optimizer.lr=1e30", f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(RoundFailed) as failure:
        run(settings, InProcessControl(settings.clients))
    assert failure.value.run_dir == tmp_path / "run"
    assert (tmp_path / "run" / "events.jsonl").stat().st_size > 0


def test_a_run_cannot_be_resumed_to_fewer_rounds(tmp_path: Path) -> None:
    settings = compose([*SMALL, "rounds=2", "clients=2", f"run_dir={tmp_path / 'run'}"])
    run(settings, InProcessControl(2))
    again = compose([f"resume={tmp_path / 'run'}", "rounds=1"])
    with pytest.raises(SettingsError, match="the run has done 2 rounds, more than rounds=1"):
        run(again, InProcessControl(2))
