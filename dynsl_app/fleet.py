"""A fleet: which devices take part, what their links are like, and what changes while an epoch runs.

``fleet=<name>`` takes one from conf/fleet/, ``fleet.file=…`` from anywhere. A fleet says nothing about data, model,
optimizer or seeds. On this machine, devices are played (:mod:`dynsl_app.client.emulate`); the testbed simulates them
(:mod:`dynsl_app.testbed`), and only it needs what is said of links' classes, servers and generated devices.
docs/testbed.md has all fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass as value
from dataclasses import field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from dynsl_app.errors import SettingsError, named
from dynsl_app.plan import Power
from dynsl_app.rows import RowReader

_STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
LinkClass = Literal["wired", "wifi", "lte"]


@value(frozen=True)
class Line:
    """A link that does not vary: bytes per second up and down (None: unlimited), round trip in seconds."""

    up_Bps: float | None
    down_Bps: float | None
    rtt_s: float


WIRED = Line(up_Bps=117.5e6, down_Bps=117.5e6, rtt_s=0.5e-3)
"""Gigabit Ethernet, 940 Mbit/s of payload each way; round trip 0.5 ms (assumed)."""


@dataclass(frozen=True, config=_STRICT)
class Device:
    """One kind of device.

    ``compute``: by how much it is slower than this machine (1: as fast); or ``speed``: GFLOP/s that it trains with, or
    any unit where only the ratio to the fleet's other devices matters, the fastest being as fast as this machine.
    ``call_s``: seconds that it needs for a batch besides its blocks (loading data, packing frames), for the testbed
    only: devices that are played do need them. ``spread``: by how much one of them may be faster or slower than
    another, a fraction either way. ``memory_bytes``: None: unlimited. ``compute_W``, ``send_W``, ``receive_W``: the
    whole device's power meanwhile. ``basis``: where the figures are from.

    The link: ``links``: one of the classes wired, wifi, lte; or ``up_Bps``, ``down_Bps``: bytes per second to and from
    the server, None: unlimited; or ``up_trace``, ``down_trace``: files. ``rtt_s``: round trip, seconds; None: the
    class's, else 0.
    """

    name: str = Field(min_length=1)
    count: int = Field(default=1, ge=1)
    compute: float | None = Field(default=None, ge=1)
    speed: Positive | None = None
    call_s: Share = 0.0
    spread: float = Field(default=0.0, ge=0, lt=1)
    memory_bytes: Positive | None = None
    compute_W: float = Field(default=10.0, ge=0)
    send_W: float = Field(default=4.0, ge=0)
    receive_W: float = Field(default=4.0, ge=0)
    basis: str = ""
    links: LinkClass | None = None
    up_Bps: Positive | None = None
    down_Bps: Positive | None = None
    up_trace: str | None = None
    down_trace: str | None = None
    rtt_s: float | None = Field(default=None, ge=0)

    def __post_init__(self) -> None:
        if (self.compute is None) == (self.speed is None):
            raise ValueError("needs either compute (how much slower than this machine) or speed, and not both")
        rates = [name for name in ("up_Bps", "down_Bps", "up_trace", "down_trace") if getattr(self, name) is not None]
        if self.links is not None and rates:
            raise ValueError(f"links={self.links} and {rates[0]} both say what its link is; choose one")
        for way in ("up", "down"):
            if {f"{way}_Bps", f"{way}_trace"} <= set(rates):
                raise ValueError(f"{way}_Bps and {way}_trace both say what its link is; choose one")

    @property
    def has_link(self) -> bool:
        """Whether its own link has limits."""
        return self.links is not None or self.up_Bps is not None or self.down_Bps is not None or self.has_trace

    @property
    def has_trace(self) -> bool:
        """Whether its link follows a trace."""
        return self.up_trace is not None or self.down_trace is not None


@dataclass(frozen=True, config=_STRICT)
class Change:
    """Something that happens to devices in every round, and lasts until another change or the round's end.

    ``at_batch`` (counted from 0 over the client's round) or ``at_s`` (seconds since its round began) says when;
    ``client`` (id) or ``device`` (name) says to whom. ``compute`` multiplies the time that it computes, ``link`` its
    bytes per second, both relative to what the device has in the list: 1 ends what an earlier change began. Of several
    that have happened, the one listed last counts.
    """

    at_batch: int | None = Field(default=None, ge=0)
    at_s: float | None = Field(default=None, ge=0)
    client: int | None = Field(default=None, ge=0)
    device: str | None = None
    compute: Positive | None = None
    link: Positive | None = None

    def __post_init__(self) -> None:
        if (self.at_batch is None) == (self.at_s is None):
            raise ValueError("needs either at_batch or at_s, and not both")
        if (self.client is None) == (self.device is None):
            raise ValueError("needs either client (an id) or device (a name), and not both")
        if self.compute is None and self.link is None:
            raise ValueError("changes nothing: needs compute, link or both")


@dataclass(frozen=True, config=_STRICT)
class Server:
    """The testbed's server.

    ``speed``: GFLOP/s that it trains with; ``workers``: m; ``call_s``: h0, seconds a call; ``access_Bps``: its access
    link each way, bytes per second, None: unlimited.
    """

    speed: Positive
    workers: int = Field(default=1, ge=1)
    call_s: float = Field(default=2e-3, ge=0)
    access_Bps: Positive | None = 1.25e9
    name: str = "own"


SERVERS = {name: Server(speed, name=name) for name, speed in (("strong", 8000.0), ("medium", 2000.0), ("weak", 500.0))}
"""Servers to choose from (assumed): h0 of 2 ms, one worker, 10 Gbit/s."""


def _server(plain: object) -> object:
    if plain is None or isinstance(plain, Mapping | Server):
        return plain
    if not isinstance(plain, str) or plain not in SERVERS:
        raise ValueError(f"there are {', '.join(SERVERS)}; or give speed, workers, call_s, access_Bps of one")
    return SERVERS[plain]


@dataclass(frozen=True, config=_STRICT)
class Generate:
    """Devices drawn at random, for the testbed.

    ``count`` of them; speeds are log-normal about the median ``speed`` (GFLOP/s), ``sigma`` the deviation of their
    logarithm, clipped to ``slowest`` and ``fastest``. ``links``: shares of the classes wired, wifi and lte.
    ``memory_bytes`` and the three powers: as for a :class:`Device`.
    """

    count: Count
    speed: Positive
    sigma: Share
    slowest: Positive
    fastest: Positive
    links: dict[LinkClass, Share] = field(default_factory=lambda: {"wired": 1.0})
    memory_bytes: Positive | None = None
    compute_W: float = Field(default=10.0, ge=0)
    send_W: float = Field(default=4.0, ge=0)
    receive_W: float = Field(default=4.0, ge=0)

    def __post_init__(self) -> None:
        if not self.slowest <= self.speed <= self.fastest:
            raise ValueError(f"speed={self.speed:g} is not from slowest={self.slowest:g} to fastest={self.fastest:g}")
        if sum(self.links.values()) == 0:
            raise ValueError("links: all shares are 0; give one of wired, wifi, lte a share")


@dataclass(frozen=True, config=_STRICT)
class Fleet:
    """The devices of a run, client ids counted through them in order; none: every client is this machine as it is.

    ``file`` is where it was read from. ``links``: the class of all devices' links, but for those that say their own.
    ``server`` and ``generate`` (instead of devices) are for the testbed. ``reference_gflops``: what a device of
    ``compute=1`` is for it.
    """

    name: str = "none"
    file: str | None = None
    devices: list[Device] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    links: LinkClass | None = None
    server: Annotated[Server | None, BeforeValidator(_server)] = None
    generate: Annotated[Generate | None, BeforeValidator(lambda plain: plain or None)] = None
    reference_gflops: Positive | None = None

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two devices are called {name}; give them different names, or one a count")
        if len({device.speed is None for device in self.devices}) > 1:
            raise ValueError("some devices have compute and some speed, which cannot be compared; use one of them")
        if self.generate is not None and (self.devices or self.changes):
            raise ValueError("devices and changes are listed, and generate would draw others; choose one of them")
        if self.links is not None and self.generate is None and all(device.has_link for device in self.devices):
            raise ValueError(f"links={self.links}: there are no devices without a link of their own; leave it out")
        for number, change in enumerate(self.changes):
            try:
                self._check(change)
            except ValueError as error:
                raise ValueError(f"change {number}: {error}") from None

    @property
    def size(self) -> int:
        """Number of clients."""
        return self.generate.count if self.generate is not None else sum(device.count for device in self.devices)

    def device(self, client: int) -> Device:
        """What a client is.

        Raises
        ------
        SettingsError
            The fleet has no such client, or its devices are drawn and known to the testbed only.
        """
        return self.place(client)[0]

    def place(self, client: int) -> tuple[Device, int]:
        """What a client is, and its number among the devices of its kind, from 0.

        Raises
        ------
        SettingsError
            Like :meth:`device`.
        """
        if self.generate is not None:
            raise SettingsError(
                f"client {client}: fleet={self.name} draws its devices, which only the testbed can; choose another "
                f"fleet, or runtime=testbed"
            )
        for device, last in zip(self.devices, accumulate(device.count for device in self.devices), strict=True):
            if client < last:
                return device, client - (last - device.count)
        raise SettingsError(f"client {client}: fleet={self.name} has {self.size} devices; choose clients={self.size}")

    def compute(self, device: Device) -> float:
        """By how much a device of this fleet is slower than this machine, at least 1."""
        if device.speed is None:
            assert device.compute is not None
            return device.compute
        return max(other.speed or 0.0 for other in self.devices) / device.speed

    def gflops(self, device: Device) -> float:
        """What a device of this fleet trains with, GFLOP/s.

        Raises
        ------
        SettingsError
            Its speed is relative to a machine of which nothing is said.
        """
        if device.speed is not None:
            return device.speed
        if self.reference_gflops is None or device.compute is None:
            raise SettingsError(
                f"fleet={self.name}: device {device.name} has compute, relative to a machine that the testbed does not "
                f"know; set fleet.reference_gflops, or give the devices speed in GFLOP/s"
            )
        return self.reference_gflops / device.compute

    def links_of(self, device: Device) -> LinkClass | None:
        """The class of a device's link; None if it has one of its own, or none."""
        return device.links if device.has_link else self.links

    def line(self, device: Device) -> Line:
        """A device's link as this machine can play it.

        Raises
        ------
        SettingsError
            It is one that varies.
        """
        links = self.links_of(device)
        if links in ("wifi", "lte") or device.has_trace:
            what = "its trace" if device.has_trace else f"links={links}"
            raise SettingsError(
                f"fleet={self.name}: device {device.name}: {what} is known to the testbed only; set fleet.links=wired, "
                f"give up_Bps, down_Bps and rtt_s, or set runtime=testbed"
            )
        if links == "wired":
            return Line(WIRED.up_Bps, WIRED.down_Bps, WIRED.rtt_s if device.rtt_s is None else device.rtt_s)
        return Line(device.up_Bps, device.down_Bps, device.rtt_s or 0.0)

    def power(self, client: int) -> Power:
        """What a client's device draws, watts. Raises SettingsError like :meth:`device`."""
        device = self.device(client)
        return Power(device.compute_W, device.send_W, device.receive_W)

    def changes_of(self, client: int) -> tuple[Change, ...]:
        """What happens to a client, in the order of the list."""
        name = self.device(client).name
        return tuple(change for change in self.changes if change.client == client or change.device == name)

    def late_changes(self, batches: Mapping[int, int]) -> list[str]:
        """Changes at a batch that their clients do not have, so that they never happen: a line for each.

        Parameters
        ----------
        batches
            R_i, batches in a round, by client; of others nothing is said.
        """
        told = []
        for number, change in enumerate(self.changes):
            if change.at_batch is None:
                continue
            late = [
                client
                for client, count in batches.items()
                if change.at_batch >= count and change in self.changes_of(client)
            ]
            if late:
                most = max(batches[client] for client in late)
                told.append(
                    f"fleet={self.name}: change {number}, at_batch={change.at_batch}, never happens to {named(late)}: "
                    f"batches of a round are 0..{most - 1} there; lower at_batch, use at_s, or have more batches "
                    f"(data.limit, data.batch, local_epochs or testbed.batches)"
                )
        return told

    def _check(self, change: Change) -> None:
        if change.client is not None:
            if change.client >= self.size:
                raise ValueError(f"client={change.client} is not in the fleet; there are {self.size} clients, from 0")
            device = self.device(change.client)
        else:
            named = {device.name: device for device in self.devices}
            if change.device not in named:
                raise ValueError(f"device={change.device} is not in the fleet; there are {', '.join(named) or 'none'}")
            device = named[change.device]
        if self.compute(device) * (change.compute or 1.0) < 1:
            raise ValueError(f"compute={change.compute} would make {device.name} faster than this machine")
        if change.link is not None and not (device.has_link or self.links):
            raise ValueError(f"link={change.link}: {device.name} has neither up_Bps nor down_Bps that it could change")


_READER = RowReader(
    group="fleet",
    adapter=TypeAdapter(Fleet),
    kind=Fleet,
    parts={"devices": Device, "changes": Change, "server": Server, "generate": Generate},
    needs=("devices", "generate"),
    laid_over=("links", "server", "generate", "reference_gflops"),
    example="conf/fleet/demo.yaml",
)


def resolve(plain: Mapping[str, Any]) -> Fleet:
    """The fleet that settings ask for: listed in them, or in the file that they name.

    Raises
    ------
    SettingsError
        Naming the file, the device or change, the field and what is allowed.
    """
    return _READER.resolve(plain)


def read_fleet(path: Path) -> Fleet:
    """A fleet from a YAML file: ``devices`` or ``generate``, and optionally the other fields and ``name``.

    Raises
    ------
    SettingsError
        Naming the file, the device or change, the field and what is allowed.
    """
    return _READER.read(path)
