"""A profile as a table that a person reads, and a bar while it is made (``dynsl-profile``)."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dynsl_app.telemetry.profile import Profile

_COLUMNS = (
    ("forward", "ms"),
    ("backward", "ms"),
    ("step", "ms"),
    ("so far", "%"),
    ("at cut", "MB"),
    ("state", "MB"),
    ("memory", "MB"),
)
"""Numbers of the table and their units."""


def show(profile: Profile, written: Sequence[str] = ()) -> None:
    """Print a profile to standard output, and the files it was ``written`` to."""
    # A pipe has no width of its own; 100 columns keep the table whole.
    console = Console() if sys.stdout.isatty() else Console(width=100)
    console.print(Group(_heading(profile), _blocks(profile), _sums(profile)))
    if written:
        console.print(f"written: {', '.join(written)}", soft_wrap=True, highlight=False)


@contextmanager
def progress_bar() -> Iterator["_Advance"]:
    """A bar on standard error; what it gives is told the batches done, and of how many."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Advance(progress)


class _Advance:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("batches", total=None)

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


def _heading(profile: Profile) -> Text:
    how = {
        "warmup": "measured",
        "file": "measured earlier",
        "flops": "from operations over an assumed speed, not measured",
    }
    shape = "×".join(map(str, profile.shape))
    threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
    return Text(
        f"{profile.model}, {profile.batch} × {shape}, {profile.classes} classes, {profile.optimizer}\n"
        f"{profile.device}, {threads}, torch {profile.torch}: {how[profile.source]}",
    )


def _blocks(profile: Profile) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cut", justify="right", no_wrap=True)
    table.add_column("block", overflow="ellipsis", no_wrap=True, max_width=25)
    for name, unit in _COLUMNS:
        table.add_column(f"{name}\n{unit}", justify="right", no_wrap=True)
    whole, so_far = sum(profile.block_s), 0.0
    for index, (block, peak) in enumerate(zip(profile.blocks, profile.peak_bytes(), strict=True), start=1):
        so_far += block.total_s
        local = index == len(profile.blocks)
        table.add_row(
            "local" if local else str(index),
            Text(block.name),
            *(f"{1e3 * seconds:.2f}" for seconds in (block.forward_s, block.backward_s, block.step_s)),
            f"{100 * so_far / whole:.1f}",
            "-" if local else f"{block.activation_bytes / 1e6:.3f}",
            f"{block.state_bytes / 1e6:.2f}",
            f"{peak / 1e6:.1f}",
        )
    return table


def _sums(profile: Profile) -> Text:
    seconds = sum(profile.block_s)
    return Text(
        f"One batch: {1e3 * seconds:.2f} ms, {profile.batch / seconds:.0f} samples a second.\n"
        f"At cut: sent up there, and as much back down. Memory: to train all blocks down to this one."
    )
