"""The script that fits walks finds again what a walk was made from, in both formats."""

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dynsl_app.testbed.links import Walk, WalkLaw
from dynsl_app.testbed.traces import MBIT

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "fit_links.py"
LAW = WalkLaw(12 * MBIT, sigma=0.5, phi=0.6, low_Bps=0.2 * MBIT, high_Bps=200 * MBIT)


@pytest.mark.parametrize("packets", [False, True])
def test_a_walks_law_is_found_again(tmp_path, packets):
    files = []
    for seed in range(3):
        rates = [Bps / MBIT for _, Bps in islice(Walk(LAW, seed).segments(0), 2000 + seed)]
        if packets:
            bytes_by = np.concatenate([[0.0], np.cumsum(np.array(rates) * MBIT)])
            ms = np.interp(np.arange(0, bytes_by[-1], 1500), bytes_by, np.arange(len(bytes_by)) * 1000.0)
            file = tmp_path / f"{seed}.up"
            file.write_text("".join(f"{int(time)}\n" for time in ms))
        else:
            file = tmp_path / f"{seed}.csv"
            file.write_text("seconds,mbit_per_s\n" + "".join(f"{n},{rate}\n" for n, rate in enumerate(rates)))
        files.append(file)
    done = subprocess.run([sys.executable, SCRIPT, *files], capture_output=True, text=True, check=True)
    *each, last = done.stdout.splitlines()
    assert len(each) == 3
    median, sigma, phi, low, high = (float(figure) for figure in re.findall(r"\d+\.\d+", last))
    assert median == pytest.approx(12, rel=0.05)
    assert sigma == pytest.approx(0.5, rel=0.05)
    assert phi == pytest.approx(0.6, abs=0.04)
    assert 0.2 <= low < 6
    assert 24 < high <= 200
