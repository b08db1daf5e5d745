"""Classes of links, and each client's own link of its class.

Constants are facts or fits that were fixed before any result: none is tuned.
"""

import math
from dataclasses import dataclass

import numpy as np

from dynsl_app.fleet import WIRED, LinkClass
from dynsl_app.seeds import derive_seed
from dynsl_app.testbed.links import Constant, Walk, WalkLaw
from dynsl_app.testbed.traces import MBIT
from dynsl_app.testbed.world import RatePath

WIFI_MEDIAN_BPS, WIFI_SIGMA, WIFI_LOW_BPS, WIFI_HIGH_BPS = 100 * MBIT, 0.5, 20 * MBIT, 300 * MBIT
"""Log-normal across clients, clipped; a client's rate is the same both ways, as both share the air (assumed)."""

WIFI_RTT_S = 4e-3

LTE_UP = WalkLaw(4.08 * MBIT, sigma=0.84, phi=0.69, low_Bps=0.10 * MBIT, high_Bps=29.7 * MBIT)
"""Source: scripts/fit_links.py on the uplinks ATT-LTE-driving-2016, TMobile-LTE-short and Verizon-LTE-short of the
Mahimahi emulator's collection, 400 s in all, steps of a second."""

LTE_DOWN = WalkLaw(15.05 * MBIT, sigma=0.69, phi=0.70, low_Bps=0.10 * MBIT, high_Bps=82.2 * MBIT)
"""Source: the same on the three downlinks of these, and on one log each by bicycle, bus, car, foot and train of the
Ghent 4G logs (van der Hooft et al. 2016), 2931 s in all."""

LTE_RTT_S = 50e-3
"""Choice: the traces have none; usual for LTE."""


@dataclass(frozen=True)
class Link:
    """A client's link: bytes per second each way over time, round trip in seconds."""

    up: RatePath
    down: RatePath
    rtt_s: float


_WIRED = Constant(WIRED.up_Bps or math.inf), Constant(WIRED.down_Bps or math.inf)


def class_link(links: LinkClass, client: int, seed: int) -> Link:
    """A client's link of a class; what is drawn depends on seed and client alone."""
    match links:
        case "wired":
            return Link(*_WIRED, WIRED.rtt_s)
        case "wifi":
            away = np.random.default_rng(derive_seed(seed, "wifi", client)).standard_normal()
            Bps = min(max(WIFI_MEDIAN_BPS * math.exp(WIFI_SIGMA * away), WIFI_LOW_BPS), WIFI_HIGH_BPS)
            path = Constant(Bps)
            return Link(path, path, WIFI_RTT_S)
        case "lte":
            up, down = (derive_seed(seed, "lte", way, client) for way in ("up", "down"))
            return Link(Walk(LTE_UP, up), Walk(LTE_DOWN, down), LTE_RTT_S)
