"""Settings of a run that goes on."""

import re

import pytest

from dynsl_app.compose import compose
from dynsl_app.errors import SettingsError
from dynsl_app.validate import to_yaml


@pytest.fixture
def run(tmp_path):
    """The folder of a run with a checkpoint."""
    folder = tmp_path / "a run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "round").touch()
    save(folder, "seed=7", "algorithm=psl", "clients=6", "rounds=3", "data.batch=5")
    return folder


def save(folder, *overrides):
    (folder / "config.yaml").write_text(to_yaml(compose(overrides)))


def test_a_resumed_run_keeps_its_settings(run, monkeypatch):
    """User case 13: what a run was started with comes back with it."""
    monkeypatch.chdir(run.parent)
    settings = compose(["resume='a run'"])
    assert (settings.seed, settings.algorithm.name, settings.clients, settings.data.batch) == (7, "psl", 6, 5)
    assert settings.resume == settings.run_dir == str(run)


def test_what_does_not_change_the_curve_may_be_new(run):
    settings = compose(
        [
            f"resume='{run}'",
            f"run_dir='{run}'",
            "rounds=10",
            "faults.batch_s=5",
            "logging.console=off",
            "events.detail=round",
            "wire.bind=127.0.0.1:9000",
            "server.workers=2",
            "telemetry.profile=flops",
        ]
    )
    assert settings.telemetry.profile == "flops"
    assert (settings.rounds, settings.faults.batch_s, settings.logging.console) == (10, 5.0, "off")
    assert (settings.events.detail, settings.wire.bind, settings.server.workers) == ("round", "127.0.0.1:9000", 2)


@pytest.mark.parametrize(
    "override",
    ["seed=1", "model=mlp", "algorithm=psl", "data.batch=6", "clients=6", "optimizer.lr=1", "wire=inprocess", "~wire"],
)
def test_what_could_change_the_curve_is_refused(run, override):
    with pytest.raises(SettingsError, match=re.escape(f"{override} could change the run's curve")):
        compose([f"resume='{run}'", override])


def test_another_run_dir_is_refused(run):
    with pytest.raises(SettingsError, match="a resumed run goes on in its own folder"):
        compose([f"resume='{run}'", "run_dir=elsewhere"])


def test_rounds_may_not_change_under_a_cosine_schedule(run):
    save(run, "optimizer.schedule.name=cosine", "rounds=3")
    assert compose([f"resume='{run}'"]).rounds == 3
    with pytest.raises(SettingsError, match="cosine schedule spans all rounds"):
        compose([f"resume='{run}'", "rounds=10"])


def test_a_new_value_is_validated(run):
    with pytest.raises(SettingsError, match="rounds=0: must be"):
        compose([f"resume='{run}'", "rounds=0"])


def test_a_folder_that_holds_no_run_is_refused(run):
    with pytest.raises(SettingsError, match="there is no such folder"):
        compose([f"resume='{run / 'nowhere'}'"])
    (run / "checkpoint" / "round").unlink()
    with pytest.raises(SettingsError, match="ended before its first checkpoint"):
        compose([f"resume='{run}'"])
    (run / "config.yaml").unlink()
    with pytest.raises(SettingsError, match=r"holds no config\.yaml"):
        compose([f"resume='{run}'"])
