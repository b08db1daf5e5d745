"""Fit an AR(1) random walk of ln(rate) to measured link traces: python scripts/fit_links.py TRACE...

Files that end in .up or .down are milliseconds at which 1500 bytes could pass (Mahimahi); any other holds rows of
seconds and Mbit/s. Rates are means over whole seconds. Every trace counts the same: the median is the geometric mean of
the traces' own, sigma the root mean square of their deviations, phi the mean of their lag-1 correlations, the limits
the lowest and highest second of all. Give uplinks and downlinks in separate calls. LTE_UP and LTE_DOWN in
dynsl_app/testbed/classes.py are what this prints.
"""

import argparse
import itertools
import math
import statistics
from pathlib import Path

import numpy as np

FLOOR = 0.1
"""Mbit/s that a second without any byte counts as (choice): ln(0) is none."""


def seconds(file: Path) -> np.ndarray:
    """Mean rate of every whole second, Mbit/s."""
    if file.suffix in (".up", ".down"):
        at = np.loadtxt(file, dtype=int)
        return np.bincount(at // 1000)[: at[-1] // 1000] * 1500 * 8 / 1e6
    rows = [line.replace(",", " ").split() for line in file.read_text().splitlines() if line[:1].isdigit()]
    times, rates = np.array(rows, dtype=float).T
    # Bits until each row, and between rows; the last rate's length is unknown.
    bits = np.append(0.0, np.cumsum(np.diff(times) * rates[:-1]))
    return np.diff(np.interp(np.arange(math.floor(times[-1]) + 1), times, bits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    fits, rates = [], []
    for file in parser.parse_args().traces:
        rate = np.maximum(seconds(file), FLOOR)
        log = np.log(rate)
        away = log - log.mean()
        phi = sum(a * b for a, b in itertools.pairwise(away)) / (away @ away)
        fits.append((log.mean(), log.std(), phi))
        rates.append(rate)
        print(f"{file.name}: {len(rate)} s, {say(log.mean(), log.std(), phi)}")
    means, deviations, phis = zip(*fits, strict=True)
    sigma = math.hypot(*deviations) / math.sqrt(len(fits))
    seen = np.concatenate(rates)
    limits = f"limits {seen.min():.2f} to {seen.max():.1f} Mbit/s"
    print(f"{say(statistics.mean(means), sigma, statistics.mean(phis))}, {limits}")


def say(mean: float, sigma: float, phi: float) -> str:
    return f"median {math.exp(mean):.2f} Mbit/s, sigma {sigma:.2f}, phi {phi:.2f}"


if __name__ == "__main__":
    main()
