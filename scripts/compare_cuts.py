"""Time epochs of algorithm=dynsl and of every uniform cut 1..L, under the same conditions and one after the other.

    python scripts/compare_cuts.py 'fleet=demo rounds=2'

Clients are threads of this process (runtime=local). Run folders are temporary; --keep names a folder for them, and
--story a finished run to show first. Ends with 0 only if all runs did.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from dynsl_app.compose import compose, split_overrides
from dynsl_app.errors import DynslError
from dynsl_app.leaving import leave
from dynsl_app.local_grid import run_local
from dynsl_app.report.__main__ import main as report
from dynsl_app.report.run import Run, read_run


def measure(overrides: list[str], folder: Path) -> Run:
    """One run, and what its folder says."""
    run_local(compose([*overrides, f"run_dir='{folder}'", "logging.console=off"]))
    run = read_run(folder)
    print(f"{folder.name}: {run.mean_epoch_s:.2f} s an epoch", flush=True)
    return run


def measure_all(overrides: list[str], base: Path) -> list[Run]:
    """dynsl first, so that nothing is warm for it that is not for the others."""
    adaptive = measure([*overrides, "algorithm=dynsl"], base / "dynsl")
    return [
        adaptive,
        *(
            measure([*overrides, "algorithm=uniform", f"algorithm.cut={cut}"], base / f"cut-{cut}")
            for cut in range(1, adaptive.blocks + 1)
        ),
    ]


def main() -> int:
    """Run what the command line says; 0 if all runs completed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="?", default="fleet=demo rounds=2", help="Hydra overrides in one string")
    parser.add_argument("--keep", type=Path, help="where run folders go; must be empty or not exist")
    parser.add_argument("--story", type=Path, help="folder of a finished run to show too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dynsl-cuts-") as temporary:
        base = given.keep or Path(temporary)
        try:
            runs = measure_all(split_overrides(given.overrides), base.absolute())
        except DynslError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        print()
        return report([str(given.story or runs[0].path), "--compare", *(str(run.path) for run in runs)])


if __name__ == "__main__":
    leave(main())
