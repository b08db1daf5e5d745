"""``python -m dynsl_app.report``: tables of finished runs, from their folders."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dynsl_app.errors import DynslError
from dynsl_app.report.comparison import compare, comparison
from dynsl_app.report.run import read_run
from dynsl_app.report.story import story


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 1 after an error on stderr."""
    parser = argparse.ArgumentParser(prog="python -m dynsl_app.report", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run, whose clients and cuts are shown")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="folders of a run with algorithm=dynsl and of runs with fixed cuts, whose epoch times are compared",
    )
    given = parser.parse_args(arguments)
    # A pipe has no width of its own; 100 columns keep the tables whole.
    console = Console() if sys.stdout.isatty() else Console(width=100)
    try:
        console.print(story(read_run(given.run)))
        if given.compare:
            console.print(comparison(compare([read_run(folder) for folder in given.compare])))
    except DynslError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
