"""Who the testbed's clients are: each one's own speed, link, memory and power, drawn from its fleet.

What is drawn for a client depends on the seed and its id alone, so that more clients leave the others as they are. Ids
beyond the fleet's size are newcomers: client c is another device of the kind of client c modulo the size.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Device, Fleet, Generate, LinkClass
from dynsl_app.plan import Power
from dynsl_app.seeds import derive_seed
from dynsl_app.testbed.classes import Link, class_link
from dynsl_app.testbed.links import Constant, Looped
from dynsl_app.testbed.traces import load_trace
from dynsl_app.testbed.world import RatePath

GENERATED = "generated"
"""The kind of devices that are drawn."""

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Member:
    """One client.

    Attributes
    ----------
    name
        ``orange_pi_5b.3``.
    kind
        Its kind of device: ``orange_pi_5b``.
    source
        What the fleet says of its kind.
    factor
        Its speed over its kind's (the median, of devices that are drawn).
    """

    name: str
    kind: str
    source: Device | Generate
    factor: float
    link: Link

    @property
    def power(self) -> Power:
        """Watts."""
        return Power(self.source.compute_W, self.source.send_W, self.source.receive_W)


class Population:
    """All clients that a fleet may have under one seed.

    Raises
    ------
    SettingsError
        The fleet has no devices.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        if not fleet.size:
            raise SettingsError(
                f"fleet={fleet.name} has no devices to simulate; choose another, such as fleet=colext24"
            )
        self._fleet, self._seed = fleet, seed
        self._traces: dict[Path, Looped] = {}

    @property
    def size(self) -> int:
        """Number of clients without newcomers."""
        return self._fleet.size

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of devices."""
        drawn = self._fleet.generate is not None
        return (GENERATED,) if drawn else tuple(device.name for device in self._fleet.devices)

    def kind(self, client: int) -> str:
        """The name of a client's kind of device."""
        return GENERATED if self._fleet.generate is not None else self._fleet.device(client % self.size).name

    def gflops(self, one: Member) -> float:
        """GFLOP/s that a client trains with; raises SettingsError like :meth:`Fleet.gflops`."""
        of_kind = one.source.speed if isinstance(one.source, Generate) else self._fleet.gflops(one.source)
        return of_kind * one.factor

    def member(self, client: int) -> Member:
        """A client, from 0 on.

        Raises
        ------
        SettingsError
            A trace of its link cannot be read.
        """
        if self._fleet.generate is not None:
            return self._drawn(self._fleet.generate, client)
        times, base = divmod(client, self.size)
        device, number = self._fleet.place(base)
        factor = 1.0
        if device.spread:
            draw = np.random.default_rng(derive_seed(self._seed, "spread", client))
            factor = float(draw.uniform(1 - device.spread, 1 + device.spread))
        # The first of a kind begins at a trace's start, the others are spread over its period (choice).
        phase = (number / device.count + times * _GOLDEN) % 1
        link = self._link(device, client, phase)
        return Member(f"{device.name}.{number + times * device.count}", device.name, device, factor, link)

    def _drawn(self, generate: Generate, client: int) -> Member:
        base = np.random.default_rng(derive_seed(self._seed, GENERATED, client % self.size))
        speed = generate.speed * math.exp(generate.sigma * base.standard_normal())
        factor = min(max(speed, generate.slowest), generate.fastest) / generate.speed
        links = self._fleet.links or _share(generate, base.random())
        return Member(f"{GENERATED}.{client}", GENERATED, generate, factor, class_link(links, client, self._seed))

    def _link(self, device: Device, client: int, phase: float) -> Link:
        links = self._fleet.links_of(device)
        if links is not None:
            link = class_link(links, client, self._seed)
            return link if device.rtt_s is None else replace(link, rtt_s=device.rtt_s)
        up = self._path(device.up_trace, device.up_Bps, phase)
        return Link(up, self._path(device.down_trace, device.down_Bps, phase), device.rtt_s or 0.0)

    def _path(self, trace: str | None, Bps: float | None, phase: float) -> RatePath:
        if trace is None:
            return Constant(Bps or math.inf)
        # A relative path is meant from the fleet's file, if it is from one.
        folder = Path(self._fleet.file).parent if self._fleet.file is not None else Path()
        file = folder / Path(trace).expanduser()
        if file not in self._traces:
            self._traces[file] = load_trace(file)
        whole = self._traces[file]
        return whole.shifted(phase * whole.period_s)


def _share(generate: Generate, at: float) -> LinkClass:
    """The class that a draw from 0 to 1 falls on."""
    left = at * sum(generate.links.values())
    for links, share in generate.links.items():
        left -= share
        if left < 0:
            return links
    return max(generate.links, key=lambda links: generate.links[links])  # the sum was rounded
