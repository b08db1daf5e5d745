"""Run experiments of conf/experiment/ in virtual time, and write their tables and figures.

    python scripts/experiments.py all --out docs/results
    python scripts/experiments.py static slowdown --jobs 4
    python scripts/experiments.py accuracy --cifar /data/cifar10

The same seeds give the same files, but for profiles_measured, which are this machine's. Ends with 0 only if all runs
did.
"""

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported here and in the processes that follow

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dynsl_app.errors import DynslError
from dynsl_app.report import accuracy, blocks, dropped, estimates, figures, goals, timings
from dynsl_app.results import Training
from dynsl_app.testbed.experiments import blocks as run_blocks
from dynsl_app.testbed.experiments import dropped as run_dropped
from dynsl_app.testbed.experiments import estimates as run_estimates
from dynsl_app.testbed.experiments.grid import Grid, read_grid
from dynsl_app.testbed.experiments.timing import time_case
from dynsl_app.testbed.experiments.training import train

TITLES = {
    "static": "Nothing happens, wired",
    "static_links": "Nothing happens, wifi and LTE",
    "slowdown": "A class of devices slows down",
    "throughput": "Links lose nine tenths",
    "growing": "The population doubles",
    "changes": "Background load, leaving and returning, a loaded server",
    "repeated": "The same changes in every round",
    "uniform_cuts": "One cut for all",
    "shared_head": "Epoch times with a shared head",
}
"""Experiments that give epoch times."""

OTHERS = ("profiles", "estimates", "accuracy")
COMPARED = ("static", "static_links", "slowdown", "throughput", "growing", "changes", "repeated")


class Run:
    """What the experiments of one call share: processes, the folder, how far they are."""

    def __init__(self, pool: ProcessPoolExecutor, progress: Progress, given: argparse.Namespace) -> None:
        self.out, self.cifar, self._seeds = given.out, given.cifar, given.seeds
        self._pool, self._progress = pool, progress

    def map(self, name: str, work: Callable[..., object], tasks: Sequence[tuple[object, ...]]) -> list:
        """Results in the order of the tasks."""
        bar = self._progress.add_task(name, total=len(tasks))
        futures = [self._pool.submit(work, *task) for task in tasks]
        for future in futures:
            future.add_done_callback(lambda _: self._progress.advance(bar))
        return [future.result() for future in futures]

    def grid(self, name: str) -> Grid:
        grid = read_grid(name)
        return dataclasses.replace(grid, seeds=grid.seeds[: self._seeds])

    def write(self, name: str, text: str) -> None:
        (self.out / name).write_text(text, encoding="utf-8")


def time_all(run: Run, name: str) -> None:
    grid = run.grid(name)
    tasks = [(grid, case, seed) for case in grid.cases for seed in grid.seeds]
    found = timings.collect(one for result in run.map(name, time_case, tasks) for one in result)
    run.write(f"{name}.csv", timings.timings_csv(found))
    found = timings.read_timings(run.out / f"{name}.csv")  # as rounded there, so that all files say the same
    text = f"# {TITLES[name]}\n\n{_shown(grid, name)}\n{timings.timings_markdown(found)}"
    cases = timings.by_case(found)
    if name == "uniform_cuts":
        figures.uniform_figure(cases, run.out / f"{name}.svg")
    else:
        figures.timings_figure(cases, run.out / f"{name}.svg")
    if name == "throughput":
        tasks = [
            (grid, case, seed)
            for case in grid.cases
            for seed in grid.seeds
            if (case["fleet.links"], case["dynamics"]) == ("wifi", "links_drop")
        ]
        fallen = [one for result in run.map("links_drop", run_dropped.dropped, tasks) for one in result]
        run.write("links_drop.csv", dropped.dropped_csv(fallen))
        run.write("links_drop.md", dropped.dropped_markdown(fallen, cases))
    run.write(f"{name}.md", text)


def compare(run: Run) -> None:
    """The goals, from all tables that are in the folder."""
    files = [run.out / f"{name}.csv" for name in COMPARED]
    cases = timings.by_case(one for file in files if file.exists() for one in timings.read_timings(file))
    if goals.comparable(cases):
        run.write("goals.csv", goals.goals_csv(cases))
        run.write("comparison.csv", goals.comparison_csv(cases))
        run.write("goals.md", goals.goals_markdown(cases))


def profiles(run: Run) -> None:
    grid = run.grid("profiles")
    found = [one for result in run.map("profiles", run_blocks.assumed, _each(grid)) for one in result]
    run.write("profiles.csv", blocks.assumed_csv(found))
    run.write(
        "profiles.md",
        "# Models block by block\n\nTimes on devices and servers are **assumed**: 3 × the forward's operations over a "
        f"speed that is assumed (docs/testbed.md).\n\n{blocks.assumed_markdown(found)}",
    )
    figures.blocks_figure(found, run.out / "profiles.svg")
    measured = [one for result in run.map("profiles_measured", run_blocks.measured, _each(grid)) for one in result]
    table, csv = blocks.measured_tables(measured)
    run.write("profiles_measured.csv", csv)
    run.write(
        "profiles_measured.md",
        "# Models block by block, measured\n\nOn the machine that ran this, one thread, busy with other work: another "
        f"run gives other numbers.\n\n{table}",
    )


def watch(run: Run) -> None:
    grid = run.grid("estimates")
    results = run.map("estimates", run_estimates.watch, [(grid, seed) for seed in grid.seeds])
    found = [one for result in results for one in result]
    table, csv = estimates.estimates_tables(found)
    run.write("estimates.csv", csv)
    run.write("estimates.md", f"# Estimated throughput against the truth\n\n{_shown(grid, 'estimates')}\n{table}")
    figures.estimates_figure(found, run.out / "estimates.svg")


def train_all(run: Run) -> None:
    _train(run, "accuracy", ["accuracy", "accuracy_shared"], [])
    if run.cifar is not None:
        images = (run.cifar / "train").is_dir()
        where = ["data=image_folder"] if images else []
        where += [f"data.root='{run.cifar.absolute()}'"]
        _train(run, "accuracy_cifar10", ["accuracy_cifar10", "accuracy_cifar10_shared"], where)


def _train(run: Run, name: str, experiments: Sequence[str], overrides: Sequence[str]) -> None:
    grids = [run.grid(experiment) for experiment in experiments]
    tasks = [
        (grid, algorithm, seed, overrides) for grid in grids for algorithm in grid.algorithms for seed in grid.seeds
    ]
    found: list[Training] = run.map(name, train, tasks)
    soon, soon_csv = accuracy.time_to_accuracy(found)
    run.write(f"{name}.csv", accuracy.accuracy_csv(found))
    run.write(f"{name}_time.csv", soon_csv)
    figures.accuracy_figure(found, run.out / f"{name}.svg")
    tables = accuracy.accuracy_markdown(found)
    run.write(
        f"{name}.md",
        f"# Accuracy\n\n{_shown(grids[0], name)}\n{tables}\n## Time to accuracy\n\nVirtual seconds.\n\n{soon}",
    )


def _each(grid: Grid) -> list[tuple[object, ...]]:
    return [(grid, case) for case in grid.cases]


def _shown(grid: Grid, figure: str) -> str:
    interpretation = " `sfsl` is an interpretation." if "sfsl" in grid.algorithms else ""
    seeds = ", ".join(map(str, grid.seeds))
    return (
        f"Mean over seeds {seeds} ± half of its 95 % interval (Student's t).{interpretation}\n\n"
        f"![figure]({figure}.svg)\n"
    )


def _ignore_interruptions() -> None:
    """Ctrl-C goes to all processes; the first one takes care of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> int:
    """Run what the command line says; 0 if all runs completed."""
    known = (*TITLES, *OTHERS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help=f"all, or of {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for tables and figures (results)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (as many as cores)")
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10: torchvision's, or images in train/ and test/")
    parser.add_argument("--seeds", type=int, metavar="N", help="only the first N, for a quick look")
    given = parser.parse_args()
    names = known if "all" in given.names else tuple(given.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no experiment {', '.join(unknown)}; there are all, {', '.join(known)}")
    if given.seeds is not None and given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: give 1 or more, or leave it out for all")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: give 1 or more")
    if given.cifar is not None and not given.cifar.is_dir():
        parser.error(f"--cifar {given.cifar}: there is no such folder")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=given.out):
            pass
    except OSError as error:
        parser.error(f"--out {given.out}: cannot write there ({error.strerror}); choose a writable folder")
    works = {"profiles": profiles, "estimates": watch, "accuracy": train_all}
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    pool = ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), initializer=_ignore_interruptions)
    console = Console(stderr=True)
    with pool, Progress(*columns, console=console) as progress:
        run = Run(pool, progress, given)
        try:
            for name in names:
                began = time.monotonic()
                works[name](run) if name in works else time_all(run, name)
                progress.console.print(f"{name}: {time.monotonic() - began:.0f} s")
            compare(run)
        except DynslError as error:
            pool.shutdown(wait=False, cancel_futures=True)
            console.print(f"error: {error}", style="red")
            return 1
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            console.print("interrupted; ends with the runs that are under way, experiments before this one are written")
            return 130
    print(f"tables and figures  {given.out.absolute()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
