"""Link traces from files, in two formats, as paths that loop.

- Rows of seconds and Mbit/s, separated by spaces or a comma: the rate that holds from then on. The first row is at 0,
  the last rate holds as long as the one before it.
- One whole number a line: a millisecond in which one packet of 1500 bytes may pass; several may pass in the same.
  In others nothing passes, however many there are: unlike in rows of rates, a gap is an outage. The last line ends the
  period. Source: the Mahimahi emulator's format.

Blank lines, lines that begin with ``#``, and a first line of column names are left out.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from dynsl_app.errors import SettingsError
from dynsl_app.testbed.links import Looped

MBIT = 125_000.0
"""Bytes in a megabit."""

PACKET_BYTES = 1500
"""What one opportunity carries. Source: Mahimahi."""

_GAP = 10
"""A row that holds so many times as long as most others do is taken for missing data (choice)."""


def load_trace(path: str | Path) -> Looped:
    """A trace from its file.

    Raises
    ------
    SettingsError
        It cannot be read, is empty, has gaps between rates, is not sorted, or has a rate that is not positive; naming
        file and line.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"trace {file}: cannot be read: {error}; give a text file") from None
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.replace(",", " ").split()
        if fields and not fields[0].startswith("#"):
            lines.append((number, fields))
    if lines and lines[0][1][0][0].isalpha():
        del lines[0]
    if not lines:
        raise SettingsError(f"trace {file}: is empty; give rows of seconds and Mbit/s, or of one millisecond a packet")
    width = len(lines[0][1])
    for number, fields in lines:
        if len(fields) != width or width > 2:
            raise _refused(
                file, number, f"has {len(fields)} fields; every line needs two (seconds, Mbit/s), or every line one"
            )
    rows = [(number, [_number(file, number, field) for field in fields]) for number, fields in lines]
    return _rates(file, rows) if width == 2 else _opportunities(file, rows)


def _rates(file: Path, rows: Sequence[tuple[int, list[float]]]) -> Looped:
    first, (start, _) = rows[0]
    if start != 0:
        raise _refused(file, first, f"begins at {start:g} s, so there is a gap before; let the first row be at 0")
    if len(rows) < 2:
        raise _refused(file, first, "is the only row, so that its length is unknown; give a second one")
    steps = []
    for (_, (before, _)), (number, (now, _)) in pairwise(rows):
        if now <= before:
            raise _refused(file, number, f"{now:g} s does not follow {before:g} s; sort the rows by time, each once")
        steps.append(now - before)
    usual = statistics.median(steps)
    for (number, _), step in zip(rows[1:], steps, strict=True):
        if step > _GAP * usual:
            raise _refused(
                file,
                number,
                f"there is a gap of {step:g} s before it, where most rows hold {usual:g} s; write rows for what is "
                f"missing",
            )
    for number, (_, rate) in rows:
        if rate <= 0:
            raise _refused(file, number, f"a rate of {rate:g} Mbit/s; write one above 0, such as 0.1 for an outage")
    times = [time for _, (time, _) in rows]
    return Looped([*times[1:], times[-1] + steps[-1]], [rate * MBIT for _, (_, rate) in rows])


def _opportunities(file: Path, rows: Sequence[tuple[int, list[float]]]) -> Looped:
    before = 0.0
    for number, (now,) in rows:
        if now != int(now) or now < 0:
            raise _refused(file, number, f"{now:g} is no millisecond; write a whole number, 0 or above")
        if now < before:
            raise _refused(file, number, f"{now:g} ms comes after {before:g} ms; sort the lines by time")
        before = now
    number, (last,) = rows[-1]
    if last == 0:
        raise _refused(file, number, "the last packet is at 0 ms, so the period has no length; give later ones too")
    period = int(last)
    packets = np.bincount([int(time) % period for _, (time,) in rows], minlength=period)
    # Runs of equal milliseconds are one piece.
    ends = np.append(np.flatnonzero(np.diff(packets)) + 1, period)
    return Looped((ends / 1e3).tolist(), (packets[ends - 1] * PACKET_BYTES * 1e3).tolist())


def _number(file: Path, line: int, field: str) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refused(file, line, f"{field!r} is no number; write a finite one")
    return value


def _refused(file: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(f"trace {file}, line {line}: {reason}")
