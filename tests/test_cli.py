"""The command as its users meet it; what it runs is tested elsewhere."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import commands
import pytest

from dynsl_app import cli
from dynsl_app.compose import compose
from dynsl_app.errors import RoundFailed
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.sweep import read_rows


@pytest.fixture
def dynsl(monkeypatch, tmp_path):
    """Calls the command in an empty folder; returns its exit code and the settings of the runs it started."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, list[Settings]]:
        runs: list[Settings] = []

        def record(settings: Settings) -> Summary:
            runs.append(settings)
            if settings.seed == 13:
                raise RoundFailed("round 1: no client finished\nsecond line")
            if settings.seed == 66:
                raise KeyError("a fault of ours")
            return commands.ended(settings)

        return commands.call(monkeypatch, record, *arguments), runs

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
    table, hydras = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert (table.name, hydras.name) == ("multirun.csv", "multirun.yaml")
    assert all(path in table.parents for path in tmp_path.rglob("*") if path.is_dir())


def test_a_sweep_leaves_a_row_for_each_run(dynsl, tmp_path, capsys):
    """The row of a run is there before the next run begins."""
    code, _ = dynsl("-m", "algorithm=fedavg,psl", "seed=1,13", "+data.params.width=7", "hydra.sweep.dir=sweep")
    table = tmp_path / "sweep" / "multirun.csv"
    rows = read_rows(table)
    assert code == 1
    assert [(row["job"], row["algorithm"], row["seed"], row["data.params.width"]) for row in rows] == [
        ("0", "fedavg", "1", "7"),
        ("1", "fedavg", "13", "7"),
        ("2", "psl", "1", "7"),
        ("3", "psl", "13", "7"),
    ]
    assert rows[0] == rows[0] | {
        "status": "ok",
        "error": "",
        "run_dir": "/runs/1",
        "accuracy": "0.9",
        "loss": "0.01",
        "epoch_s": "2.0",
        "epochs_s": "[3.0, 1.0]",
        "total_s": "9.0",
        "moves": "1",
        "bytes_up": "100",
        "bytes_down": "50",
    }
    assert (rows[1]["status"], rows[1]["error"], rows[1]["loss"]) == ("failed", "round 1: no client finished", "")
    assert str(table) in capsys.readouterr().out


def test_rows_are_written_as_runs_end(dynsl, monkeypatch, tmp_path):
    seen: list[int] = []

    def look(settings: Settings) -> Summary:
        seen.append(len(read_rows(tmp_path / "sweep" / "multirun.csv")))
        return commands.ended(settings)

    monkeypatch.setattr(cli, "_run", look)
    monkeypatch.setattr(sys, "argv", ["dynsl", "-m", "seed=1,2,3", "hydra.sweep.dir=sweep"])
    assert cli.main() == 0
    assert seen == [0, 1, 2]


def test_a_sweep_goes_on_after_a_fault_of_ours_and_shows_it_whole(dynsl, tmp_path, capsys):
    code, runs = dynsl("-m", "seed=66,1", "hydra.sweep.dir=sweep")
    assert (code, [run.seed for run in runs]) == (1, [66, 1])
    assert [row["status"] for row in read_rows(tmp_path / "sweep" / "multirun.csv")] == ["failed", "ok"]
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "1 of 2 runs failed:\n  #0 seed=66: KeyError: 'a fault of ours'" in err


def test_a_folder_that_holds_a_sweep_is_refused(dynsl, capsys):
    assert dynsl("-m", "seed=1,2", "hydra.sweep.dir=sweep")[0] == 0
    code, runs = dynsl("-m", "seed=3,4", "hydra.sweep.dir=sweep")
    assert (code, runs) == (1, [])
    assert "holds a sweep already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "value"), [("accuracy", 0.9), ("loss", 0.03), ("epoch_s", 2.0), ("total_s", 9.0), ("bytes", 150.0)]
)
def test_a_searching_sweeper_gets_the_metric(dynsl, tmp_path, metric, value):
    direction = "maximize" if metric == "accuracy" else "minimize"
    code, runs = dynsl(
        "-m",
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=2",
        f"hydra.sweeper.direction={direction}",
        "hydra.sweeper.n_jobs=1",
        "optimizer.lr=interval(0.001,0.1)",
        "seed=3",
        f"sweep.metric={metric}",
        "hydra.sweep.dir=sweep",
    )
    assert (code, len(runs)) == (0, 2)
    assert f"best_value: {value}" in (tmp_path / "sweep" / "optimization_results.yaml").read_text()
    rows = read_rows(tmp_path / "sweep" / "multirun.csv")
    assert [float(row["optimizer.lr"]) for row in rows] == [run.optimizer.lr for run in runs]


def test_a_search_goes_on_after_a_failed_run(dynsl, tmp_path):
    code, runs = dynsl(
        "-m",
        "hydra/sweeper=optuna",
        "hydra.sweeper.sampler.seed=1",
        "hydra.sweeper.n_trials=6",
        "hydra.sweeper.n_jobs=1",
        "seed=13,2,3",
        "hydra.sweep.dir=sweep",
    )
    assert (code, len(runs)) == (1, 6)
    assert {run.seed for run in runs} == {2, 3, 13}
    assert "best_value: 0.02" in (tmp_path / "sweep" / "optimization_results.yaml").read_text()


def test_a_search_of_failed_runs_only_is_one_line(dynsl, capsys):
    code, _ = dynsl(
        "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=1", "hydra.sweeper.n_jobs=1", "seed=13", "rounds=1,2"
    )
    assert code == 1
    err = capsys.readouterr().err
    assert "1 of 1 runs failed" in err
    assert "error: the sweep ended early: ValueError: No trials are completed yet." in err
    assert "Traceback" not in err


def test_a_search_for_the_worst_run_is_refused(dynsl, capsys):
    code, runs = dynsl("-m", "hydra/sweeper=optuna", "sweep.metric=accuracy", "seed=1,2")
    assert (code, runs) == (1, [])
    assert "set hydra.sweeper.direction=maximize" in capsys.readouterr().err


def test_runs_of_a_sweep_side_by_side(tmp_path):
    """Real runs, each in one of two processes; the failed one is listed."""
    command = [Path(sys.executable).parent / "dynsl", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    command += ["model=mlp", "wire=inprocess", "clients=2", "rounds=1", "data.limit=32", "hydra.sweep.dir=sweep"]
    environment = {**os.environ, "DYNSL_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [*command, "algorithm.cut=1,9", "seed=1,2"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    rows = read_rows(tmp_path / "sweep" / "multirun.csv")
    assert [(row["job"], row["algorithm.cut"], row["seed"], row["status"]) for row in rows] == [
        ("0", "1", "1", "ok"),
        ("1", "1", "2", "ok"),
        ("2", "9", "1", "failed"),
        ("3", "9", "2", "failed"),
    ]
    assert {Path(row["run_dir"]) for row in rows[:2]} == set((tmp_path / "runs").iterdir())
    assert "2 of 4 runs failed" in done.stderr
    assert "Traceback" not in done.stderr
    command += ["algorithm.cut=1,9", "seed=1,2", "hydra.callbacks.sweep.resume=true"]
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.stdout.count("is kept") == 2
    assert read_rows(tmp_path / "sweep" / "multirun.csv") == rows


def test_a_failed_run_is_an_error(dynsl, capsys):
    code, _ = dynsl("seed=13")
    assert code == 1
    assert capsys.readouterr().err == "error: round 1: no client finished\nsecond line\n"


def test_a_failed_run_with_hydras_flags_is_the_same_error(dynsl, capsys):
    code, _ = dynsl("--config-name", "config", "seed=13")
    assert code == 1
    assert capsys.readouterr().err == "error: round 1: no client finished\nsecond line\n"


def test_a_sweep_goes_on_after_a_failed_run_and_ends_with_1(dynsl, capsys):
    code, runs = dynsl("--multirun", "seed=13,14", "rounds=1")
    assert code == 1
    assert [run.seed for run in runs] == [13, 14]
    err = capsys.readouterr().err
    assert "error: round 1: no client finished" in err
    assert "#0 seed=13 rounds=1: round 1: no client finished" in err
    assert "Traceback" not in err
    assert "Hydra" not in err.replace("HYDRA", "")
    assert "HYDRA_FULL_ERROR" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["modle=cnn"], "unknown setting modle"),
        (["-m", "modle=cnn,mlp"], "unknown setting modle"),
        (["rounds=0"], "rounds=0: must be"),
        (["-m", "rounds=0"], "rounds=0: must be"),
        (["-m", "algorithm=splitfed_v9"], "error: algorithm=splitfed_v9: no such option; did you mean splitfed_v2?"),
        (["-m", "algorithm=fedavg,splitfed_v9"], "error: algorithm=splitfed_v9: no such option"),
        (["-m", "seed=1,2", "hydra/launcher=jobli"], "error: hydra/launcher=jobli: no such option"),
        (["-m", "seed=interval(1,2)"], "error: cannot compose seed=interval(1,2): BasicSweeper does not support"),
        (["--config-name", "nope", "seed=1"], "error: config-name=nope: there is no conf/nope.yaml"),
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
    assert "HYDRA_FULL_ERROR" not in err


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
    assert "algorithm: ares, dtfl, dtfl_localloss, dynsl, dynsl_profiled, fedavg, oracle" in text
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
    assert capsys.readouterr().err == "interrupted\n"


def heed_interruptions() -> None:
    """A shell lets what it starts in the background ignore them, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupting_a_run_names_its_folder(tmp_path):
    """Ctrl-C after the first checkpoint: the line is a command that goes on."""
    command = [Path(sys.executable).parent / "dynsl", "model=mlp", "wire=inprocess", "clients=2", "rounds=10000"]
    environment = {**os.environ, "DYNSL_RUNS": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=heed_interruptions,
    ) as run:
        watchdog = threading.Timer(120, run.kill)
        watchdog.start()
        assert run.stdout is not None
        for line in run.stdout:
            if re.match(r"round +2/", line):
                run.send_signal(signal.SIGINT)
                break
        _, err = run.communicate()
        watchdog.cancel()
    (folder,) = tmp_path.iterdir()
    assert run.returncode == 130
    assert err == f"interrupted; resume={folder} goes on from the run's last checkpoint\n"


def test_the_installed_command_is_this_one():
    command = Path(sys.executable).parent / "dynsl"
    done = subprocess.run([command, "rounds=0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: rounds=0: must be greater than or equal to 1\n"
