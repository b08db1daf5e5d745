"""Dynamics: what happens to a fleet while the testbed plays an epoch.

``dynamics=<name>`` takes them from conf/dynamics/, ``dynamics.file=…`` from anywhere. They fit any fleet that has the
devices that they name; docs/testbed.md has all fields.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from dynsl_app.rows import RowReader

_STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)

Time = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=_STRICT)
class Row:
    """One thing that happens in every round that dynamics are of.

    When: ``at``, a fraction of T0 (the epoch that the best fixed cuts would have if nothing happened), or ``at_s``,
    seconds, both from the round's start; until the end of the round, or ``until``, in the same unit.

    To whom: ``client`` (id), ``device`` (name), ``share`` of the clients, spread evenly through the fleet from a seeded
    start, or ``server``.

    What: ``compute`` multiplies the time that it computes, ``link`` a client's bytes per second (0: dead); of several
    in force, the one listed last counts. ``action``: ``leave`` (properly, after the present batch), ``crash``, ``join``
    (a client whose first action this is is not there before); ``until`` undoes it. ``double``: for each client another
    of its kind joins; it concerns all.
    """

    at: Time | None = None
    at_s: Time | None = None
    until: Time | None = None
    client: int | None = Field(default=None, ge=0)
    device: str | None = None
    share: float | None = Field(default=None, gt=0, le=1)
    server: bool = False
    compute: float | None = Field(default=None, gt=0)
    link: float | None = Field(default=None, ge=0)
    action: Literal["join", "leave", "crash", "double"] | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.at_s is None):
            raise ValueError("needs either at (a fraction of T0) or at_s (seconds), and not both")
        if self.until is not None and self.until <= self.begin:
            raise ValueError(f"until={self.until:g} is not after {self.begin:g}, where it begins")
        named = (self.client is not None) + (self.device is not None) + (self.share is not None) + self.server
        if self.action == "double":
            if named or self.until is not None or self.compute is not None or self.link is not None:
                raise ValueError("action=double concerns all clients and has only a time; leave out the rest")
            return
        if named != 1:
            raise ValueError("needs one of client (an id), device (a name), share (of the clients) and server")
        if self.compute is None and self.link is None and self.action is None:
            raise ValueError("changes nothing: needs compute, link or action")
        if self.server and (self.link is not None or self.action is not None):
            raise ValueError("of the server only compute can change; leave link and action out")

    @property
    def begin(self) -> float:
        """When it begins, in its own unit."""
        return self.at if self.at is not None else self.at_s or 0.0

    def span_s(self, t0_s: float) -> tuple[float, float | None]:
        """When it begins and ends, in seconds; None: it lasts. ``t0_s`` is T0."""
        unit = t0_s if self.at is not None else 1.0
        return self.begin * unit, None if self.until is None else self.until * unit


@dataclass(frozen=True, config=_STRICT)
class Dynamics:
    """All that happens in a round; ``file`` is where it was read from.

    ``rounds``: in which it does, from 1, so that it can come as a surprise; None: in every one.
    """

    name: str = "none"
    file: str | None = None
    rows: list[Row] = field(default_factory=list)
    rounds: list[Annotated[int, Field(ge=1)]] | None = None

    def happens_in(self, round_: int) -> bool:
        """Whether it happens in a round, counted from 1."""
        return self.rounds is None or round_ in self.rounds


_READER = RowReader(
    group="dynamics",
    adapter=TypeAdapter(Dynamics),
    kind=Dynamics,
    parts={"rows": Row},
    needs=("rows",),
    laid_over=("rounds",),
    example="conf/dynamics/links_dip.yaml",
)


def resolve(plain: Mapping[str, Any]) -> Dynamics:
    """The dynamics that settings ask for: listed in them, or in the file that they name.

    Raises
    ------
    SettingsError
        Naming the file, the row, the field and what is allowed.
    """
    return _READER.resolve(plain)


def read_dynamics(path: Path) -> Dynamics:
    """Dynamics from a YAML file: ``rows``, and optionally ``name``. Raises SettingsError like :func:`resolve`."""
    return _READER.read(path)
