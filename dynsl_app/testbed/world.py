"""The truth that the testbed simulates: devices, links, server, and what happens to them.

Only the simulation and the oracles see it; everything else sees what telemetry tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from dynsl_app.plan import Power


class RatePath(Protocol):
    """A link's throughput over virtual time: piecewise constant, defined from 0 on without end."""

    def segments(self, start_s: float) -> Iterator[tuple[float, float]]:
        """From ``start_s`` on: until when a rate holds (the last may be infinite), and bytes per second (0: dead)."""
        ...


@dataclass(frozen=True)
class Client:
    """One device and its link.

    Attributes
    ----------
    name, device
        ``orange_pi_5b.3`` and its type.
    block_s
        p_i[l]: seconds by block on one batch, as long as nothing slows the device; L values.
    up, down
        Its link, changes apart.
    rtt_s
        Round trip, seconds.
    batches
        R_i of an epoch.
    memory_bytes
        None: unlimited.
    call_s
        Seconds that a batch takes besides its blocks, slowed like them: loading data, packing frames.
    """

    name: str
    device: str
    block_s: tuple[float, ...]
    up: RatePath
    down: RatePath
    rtt_s: float
    batches: int
    power: Power
    memory_bytes: float | None = None
    call_s: float = 0.0


@dataclass(frozen=True)
class Server:
    """s[l], seconds by block on one batch; h0; m; bytes per second of its access link each way, None: unlimited."""

    block_s: tuple[float, ...]
    call_s: float
    workers: int
    access_Bps: float | None = None


@dataclass(frozen=True)
class Happening:
    """Something that happens in every round, ``at_s`` seconds after its start, and lasts until another of its kind.

    ``client``: id; None for the server. ``factor``: of a client's or the server's compute time, or of a link's bytes
    per second (0: dead), relative to what is usual. ``join``: the client is not there before; ``leave``: it ends its
    epoch properly after its present batch, ``crash``: it is lost; either may join again.
    """

    at_s: float
    client: int | None
    kind: Literal["compute", "link", "join", "leave", "crash"]
    factor: float = 1.0


@dataclass(frozen=True)
class World:
    """Everything true.

    Attributes
    ----------
    clients
        By id.
    up_bytes, down_bytes
        What crosses a link for one batch at cut 1..L; 0 at L.
    state_bytes
        What a move carries for each block 1..L.
    happenings
        In order of time.
    compute_jitter, link_jitter
        Relative standard deviation of every batch's compute time, and of every transfer's rate.
    """

    clients: tuple[Client, ...]
    server: Server
    up_bytes: tuple[float, ...]
    down_bytes: tuple[float, ...]
    state_bytes: tuple[float, ...]
    happenings: tuple[Happening, ...] = ()
    compute_jitter: float = 0.05
    link_jitter: float = 0.10

    @property
    def blocks(self) -> int:
        """L."""
        return len(self.server.block_s)
