"""The command as its users meet it; what it runs is tested elsewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dynsl_app import cli
from dynsl_app.compose import compose
from dynsl_app.errors import RoundFailed
from dynsl_app.settings import Settings


@pytest.fixture
def dynsl(monkeypatch, tmp_path):
    """Calls the command in an empty folder; returns its exit code and the settings of the runs it started."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, list[Settings]]:
        runs: list[Settings] = []

        def record(settings: Settings) -> float:
            runs.append(settings)
            if settings.seed == 13:
                raise RoundFailed("round 1: no client finished")
            return 0.9

        monkeypatch.setattr(cli, "_run", record)
        monkeypatch.setattr(sys, "argv", ["dynsl", *arguments])
        try:
            return cli.main(), runs
        except SystemExit as stop:  # Hydra's way to end
            return int(stop.code or 0), runs

    return call


def test_one_run(dynsl, tmp_path):
    code, runs = dynsl("runtime=local", "algorithm=splitfed_v1", "clients=6", "rounds=3")
    assert code == 0
    assert runs == [compose(["algorithm=splitfed_v1", "clients=6"])]
    assert list(tmp_path.iterdir()) == []  # none of Hydra's own folders


def test_a_sweep_runs_every_combination(dynsl, tmp_path):
    code, runs = dynsl("-m", "algorithm=fedavg,psl", "seed=1,2")
    assert code == 0
    assert [(run.algorithm.name, run.seed) for run in runs] == [("fedavg", 1), ("fedavg", 2), ("psl", 1), ("psl", 2)]
    (record,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert record.name == "multirun.yaml"
    assert all(path in record.parents for path in tmp_path.rglob("*") if path.is_dir())


def test_a_failed_run_is_an_error(dynsl, capsys):
    code, _ = dynsl("seed=13")
    assert code == 1
    assert capsys.readouterr().err == "error: round 1: no client finished\n"


def test_a_sweep_goes_on_after_a_failed_run_and_ends_with_1(dynsl, capsys):
    code, runs = dynsl("--multirun", "seed=13,14", "rounds=1")
    assert code == 1
    assert [run.seed for run in runs] == [13, 14]
    err = capsys.readouterr().err
    assert "error: round 1: no client finished" in err
    assert "dynsl seed=13 rounds=1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["modle=cnn"], "unknown setting modle"),
        (["-m", "modle=cnn,mlp"], "unknown setting modle"),
        (["rounds=0"], "rounds=0: must be"),
        (["-m", "rounds=0"], "rounds=0: must be"),
        (["-m", "algorithm=splitfed_v9"], "splitfed_v9"),
        (["algorithm=splitfed_v9"], "algorithm=splitfed_v9: no such option"),
        (["optimizer.clip=global_norm"], "use block_norm"),
        (["resume=nowhere"], "there is no such folder"),
        (["-m", "resume=nowhere"], "there is no such folder"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_1(dynsl, capsys, arguments, says):
    code, runs = dynsl(*arguments)
    assert (code, runs) == (1, [])
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_show_the_composed_settings(dynsl, capsys):
    code, runs = dynsl("--cfg", "job", "optimizer=sgd")
    assert (code, runs) == (0, [])
    assert "momentum: 0.9" in capsys.readouterr().out


def test_one_run_with_hydras_flags_leaves_no_folder(dynsl, tmp_path):
    code, runs = dynsl("--config-name", "config", "seed=5")
    assert (code, [run.seed for run in runs]) == (0, [5])
    assert list(tmp_path.iterdir()) == []


def test_help_shows_ways_groups_settings_and_examples_that_work(dynsl, capsys):
    code, runs = dynsl("--help")
    assert (code, runs) == (0, [])
    text = capsys.readouterr().out
    assert "algorithm: dynsl, dynsl_profiled, fedavg, psl, splitfed_v1" in text
    assert "clients_per_round: null" in text
    examples = [shlex.split(line)[1:] for line in re.findall(r"^ {2}(dynsl .*)$", text, re.MULTILINE)]
    runnable = [example for example in examples if not any("resume=" in argument for argument in example)]
    assert len(runnable) >= 4
    for example in runnable:
        code, runs = dynsl(*example)
        assert code == 0
        assert runs


def test_interrupting_is_not_a_traceback(dynsl, monkeypatch, capsys):
    def interrupt(overrides: list[str]) -> Settings:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "compose", interrupt)
    code, _ = dynsl()
    assert code == 130
    assert "resume=" in capsys.readouterr().err


def test_the_installed_command_is_this_one():
    command = Path(sys.executable).parent / "dynsl"
    done = subprocess.run([command, "rounds=0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: rounds=0: must be greater than or equal to 1\n"
