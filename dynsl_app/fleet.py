"""A fleet: which devices take part, what their links are like, and what changes while an epoch runs.

``fleet=<name>`` takes one from conf/fleet/, ``fleet.file=…`` from anywhere. A fleet says nothing about data, model,
optimizer or seeds.
"""

import difflib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails
from yaml import YAMLError

from dynsl_app.errors import SettingsError

_STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, config=_STRICT)
class Device:
    """One kind of device.

    ``compute``: by how much it is slower than this machine (1: as fast); or ``speed``, relative to the fleet's other
    devices in any unit (GFLOP/s), the fastest being as fast as this machine. ``up_Bps``, ``down_Bps``: bytes per second
    to and from the server, None: unlimited; ``rtt_s``: round trip, seconds.
    """

    name: str = Field(min_length=1)
    count: int = Field(default=1, ge=1)
    compute: float | None = Field(default=None, ge=1)
    speed: Positive | None = None
    up_Bps: Positive | None = None
    down_Bps: Positive | None = None
    rtt_s: float = Field(default=0.0, ge=0)

    def __post_init__(self) -> None:
        if (self.compute is None) == (self.speed is None):
            raise ValueError("needs either compute (how much slower than this machine) or speed, and not both")

    @property
    def has_link(self) -> bool:
        """Whether its link has limits."""
        return self.up_Bps is not None or self.down_Bps is not None


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
class Fleet:
    """The devices of a run, client ids counted through them in order; none: every client is this machine as it is.

    ``file`` is where it was read from.
    """

    name: str = "none"
    file: str | None = None
    devices: list[Device] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two devices are called {name}; give them different names, or one a count")
        if len({device.speed is None for device in self.devices}) > 1:
            raise ValueError("some devices have compute and some speed, which cannot be compared; use one of them")
        for number, change in enumerate(self.changes):
            try:
                self._check(change)
            except ValueError as error:
                raise ValueError(f"change {number}: {error}") from None

    @property
    def size(self) -> int:
        """Number of clients."""
        return sum(device.count for device in self.devices)

    def device(self, client: int) -> Device:
        """What a client is.

        Raises
        ------
        SettingsError
            The fleet has no such client.
        """
        last = 0
        for device in self.devices:
            last += device.count
            if client < last:
                return device
        raise SettingsError(f"client {client}: fleet={self.name} has {self.size} devices; choose clients={self.size}")

    def compute(self, device: Device) -> float:
        """By how much a device of this fleet is slower than this machine, at least 1."""
        if device.speed is None:
            assert device.compute is not None
            return device.compute
        return max(other.speed or 0.0 for other in self.devices) / device.speed

    def changes_of(self, client: int) -> tuple[Change, ...]:
        """What happens to a client, in the order of the list."""
        name = self.device(client).name
        return tuple(change for change in self.changes if change.client == client or change.device == name)

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
        if change.link is not None and not device.has_link:
            raise ValueError(f"link={change.link}: {device.name} has neither up_Bps nor down_Bps that it could change")


_FLEET = TypeAdapter(Fleet)


def resolve(plain: Mapping[str, Any]) -> Fleet:
    """The fleet that settings ask for: listed in them, or in the file that they name.

    Raises
    ------
    SettingsError
        Naming the file, the device or change, the field and what is allowed.
    """
    file = plain.get("file")
    if file is None:
        return _make(plain, f"fleet={plain.get('name')}")
    if plain.get("devices") or plain.get("changes"):
        raise SettingsError(f"fleet.file={file} and fleet={plain.get('name')} both list devices; choose one of them")
    return read_fleet(Path(str(file)))


def read_fleet(path: Path) -> Fleet:
    """A fleet from a YAML file: ``devices``, and optionally ``changes`` and ``name`` (else the file's own).

    Raises
    ------
    SettingsError
        Naming the file, the device or change, the field and what is allowed.
    """
    path = path.expanduser().absolute()
    origin = f"fleet.file={path}"
    try:
        plain = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict) or not plain.get("devices"):
        raise SettingsError(f"{origin}: lists no devices; see conf/fleet/demo.yaml for what it may hold")
    if "file" in plain:
        raise SettingsError(f"{origin}: a fleet's file cannot name another file; put the devices into one")
    return _make({"name": path.stem, **plain, "file": str(path)}, origin)


def _make(plain: Mapping[Any, Any], origin: str) -> Fleet:
    try:
        return _FLEET.validate_python(plain)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise SettingsError(f"{origin}: " + "; ".join(_explain(problem, plain) for problem in problems)) from None


def _explain(problem: ErrorDetails, plain: Mapping[Any, Any]) -> str:
    row, key = _where(problem["loc"], plain)
    before = f"{row}: " if row else ""
    says = problem["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    match problem["type"]:
        case "value_error":
            return f"{before}{says}"
        case "missing":
            return f"{before}{key} is missing"
        case "unexpected_keyword_argument":
            names = [known.name for known in fields(_kind(problem["loc"]))]
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            return f"{before}{key} is unknown; {hint}"
    return f"{before}{key}={problem['input']!r}: {says}" if key else f"{row}={problem['input']!r}: {says}"


def _where(loc: tuple[int | str, ...], plain: Mapping[Any, Any]) -> tuple[str, str]:
    """The row that a problem is in, in words, and the field's name; either may be empty."""
    if len(loc) < 2:
        return "", "".join(map(str, loc))
    group, number, *inner = loc
    return f"{str(group).removesuffix('s')} {number}{_called(plain[group], number)}", ".".join(map(str, inner))


def _called(rows: Any, number: int | str) -> str:
    row = rows[number] if isinstance(rows, list) and isinstance(number, int) else None
    name = row.get("name") if isinstance(row, Mapping) else None
    return f" ({name})" if name else ""


def _kind(loc: tuple[int | str, ...]) -> type[Device] | type[Change] | type[Fleet]:
    return {"devices": Device, "changes": Change}.get(str(loc[0]), Fleet) if len(loc) > 1 else Fleet
