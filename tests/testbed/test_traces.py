"""Trace files: both formats, their loop, and what is refused."""

import math
import re
from itertools import islice
from pathlib import Path

import pytest

from dynsl_app.errors import SettingsError
from dynsl_app.testbed.links import finish
from dynsl_app.testbed.traces import load_trace

MBIT = 125_000


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "some.trace"
        file.write_text(text)
        return file

    return write


def test_rows_of_rates_loop_without_a_gap(write):
    trace = load_trace(write("# a walk\nseconds,mbit_per_s\n0, 8\n1.5, 4\n\n2.5 2\n"))
    assert trace.period_s == 3.5
    pieces = list(islice(trace.segments(0), 5))
    assert pieces == [(1.5, 8 * MBIT), (2.5, 4 * MBIT), (3.5, 2 * MBIT), (5.0, 8 * MBIT), (6.0, 4 * MBIT)]
    assert finish(trace, [], 2.5, 2 * MBIT + 8 * MBIT) == 4.5
    assert next(trace.shifted(2.0).segments(0)) == (0.5, 4 * MBIT)


def test_packets_pass_in_their_milliseconds(write):
    trace = load_trace(write("0\n2\n2\n5\n10\n"))
    assert trace.period_s == 0.010
    # The one at the period's end is at its start, too: two pass there.
    assert finish(trace, [], 0, 3000) == pytest.approx(0.001)
    assert finish(trace, [], 0.001, 3000) == pytest.approx(0.003)
    assert finish(trace, [], 0.001, 4500) == pytest.approx(0.006)
    assert finish(trace, [], 0.006, 1500) == pytest.approx(0.0105)
    assert finish(trace, [], 0, 5 * 1500 * 1000) == pytest.approx(10 - 0.004)


def test_nothing_passes_where_no_packet_is_however_long(write):
    """Between rates a gap is missing data, and refused; here it is an outage."""
    trace = load_trace(write("1\n400000\n"))
    assert (trace.period_s, trace.silence_s) == (400.0, pytest.approx(399.998))
    assert finish(trace, [], 0.0, 3000) == pytest.approx(0.002)
    assert finish(trace, [], 0.002, 1500) == pytest.approx(400.001)
    assert load_trace(write("0 8\n1 4\n")).silence_s == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": is empty; give rows"),
        ("# nothing\n\nseconds mbit\n", ": is empty; give rows"),
        ("0 8\n1 4\n1 5\n", ", line 3: 1 s does not follow 1 s; sort the rows"),
        ("0 8\n2 4\n1 5\n", ", line 3: 1 s does not follow 2 s; sort the rows"),
        ("0 8\n1 0\n", ", line 2: a rate of 0 Mbit/s; write one above 0"),
        ("0 8\n1 -3\n", ", line 2: a rate of -3 Mbit/s; write one above 0"),
        ("1 8\n2 3\n", ", line 1: begins at 1 s, so there is a gap before"),
        ("0 8\n1 3\n2 3\n60 1\n", ", line 4: there is a gap of 58 s before it, where most rows hold 1 s"),
        ("0 8\n", ", line 1: is the only row"),
        ("0 8\n1\n", ", line 2: has 1 fields"),
        ("0 8 1\n", ", line 1: has 3 fields"),
        ("0 8\n1 fast\n", ", line 2: 'fast' is no number"),
        ("0 8\n1 nan\n", ", line 2: 'nan' is no number"),
        ("0\n4\n3\n", ", line 3: 3 ms comes after 4 ms; sort the lines"),
        ("0\n-4\n", ", line 2: -4 is no millisecond"),
        ("0\n1.5\n", ", line 2: 1.5 is no millisecond"),
        ("0\n0\n", ", line 2: the last packet is at 0 ms"),
    ],
)
def test_refusals_name_file_and_line(write, text, says):
    file = write(text)
    with pytest.raises(SettingsError, match=re.escape(f"trace {file}{says}")):
        load_trace(file)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(SettingsError, match=r"trace .*absent: cannot be read"):
        load_trace(tmp_path / "absent")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"trace .*bytes: cannot be read"):
        load_trace(tmp_path / "bytes")


def test_a_long_transfer_takes_whole_loops(write):
    trace = load_trace(write("0 8\n1 4\n2 2\n"))
    per_loop = (8 + 4 + 2) * MBIT
    assert finish(trace, [], 0.5, 1000 * per_loop) == pytest.approx(3000.5)
    assert finish(trace, [(0.0, 0.0)], 0.5, per_loop) == math.inf
