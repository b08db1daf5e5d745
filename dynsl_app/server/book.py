"""What the server has learnt of its clients, their links and itself, and what a plan would cost by it.

Lives for the whole run: a client that comes back is planned for by what was measured before. Knows no clocks and
no sockets; whoever measures tells it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynsl_app.cost.model import Costs, allowed_cuts, energies, move_costs, shared_times, transfer_times
from dynsl_app.plan import Power
from dynsl_app.server.director import Measured
from dynsl_app.telemetry.estimate import Slowdown
from dynsl_app.telemetry.link import LinkEstimate
from dynsl_app.telemetry.probing import Prober
from dynsl_app.telemetry.service import Service
from dynsl_app.wire.base import Transfer

_CALL_S = 5e-4
"""h0 before anything is measured: hand-over between threads and the loss, seconds (choice)."""

_PRIOR_BPS, _PRIOR_RTT_S = 12.5e6, 2e-3
"""A link of which nothing is known: 100 Mbit/s each way, 2 ms (choice)."""


FRAME_BYTES = 512
"""Of a batch's frame besides its tensors: head, description, what the client tells (measured, rounded up)."""


@dataclass(frozen=True)
class Sizes:
    """Bytes by cut 1..L for one batch, and by block 1..L for a move.

    Attributes
    ----------
    up, down
        Of the activation with its targets, and of the gradient; 0 at cut L.
    state
        Of a block with its optimizer state.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    state: tuple[int, ...]

    def without_gradients(self) -> "Sizes":
        """Where clients train on losses of their own: an acknowledgement returns."""
        return replace(self, down=(*[FRAME_BYTES] * (len(self.down) - 1), 0))


def batch_sizes(activations: Sequence[int], state: Sequence[int], batch: int) -> Sizes:
    """What crosses a link.

    Parameters
    ----------
    activations
        Bytes for one batch after each block 1..L; the last crosses nothing.
    state
        Bytes of each block 1..L with its optimizer state.
    batch
        Samples; each has a target of 8 bytes.
    """
    cut = activations[:-1]
    return Sizes(
        up=(*(size + 8 * batch + FRAME_BYTES for size in cut), 0),
        down=(*(size + FRAME_BYTES for size in cut), 0),
        state=tuple(state),
    )


@dataclass
class Client:
    """One client's estimates."""

    slowdown: Slowdown
    link: LinkEstimate
    prober: Prober

    @property
    def jumps(self) -> int:
        """Leaps of its estimates so far."""
        return self.slowdown.level.jumps + self.link.jumps

    @property
    def complaints(self) -> list[str]:
        """Nonsense that it reported, in words."""
        own = self.slowdown.level.complaint
        return [*([own] if own else []), *self.link.complaints]


class Book:
    """Estimates of all clients and of the server.

    Parameters
    ----------
    profile_s
        s[l]: seconds by block on the server; what is known of a client before it has measured anything, too.
    batch
        Samples of a full batch.
    sizes
        What crosses a link.
    chunk_bytes
        ``wire.chunk_bytes``.
    powers
        By client, where they are known: what its device draws.
    """

    def __init__(
        self,
        profile_s: Sequence[float],
        batch: int,
        sizes: Sizes,
        chunk_bytes: int,
        powers: Mapping[int, Power] | None = None,
    ) -> None:
        self._powers = powers or {}
        self._profile_s, self._batch, self._sizes, self._chunk = tuple(profile_s), batch, sizes, chunk_bytes
        self._clients: dict[int, Client] = {}
        self.service = Service(_CALL_S, profile_s, batch)

    def client(self, client: int) -> Client:
        """A client's estimates, at their priors when nothing is known."""
        if client not in self._clients:
            self.introduce(client, self._profile_s)
        return self._clients[client]

    def introduce(self, client: int, profile_s: Sequence[float]) -> None:
        """Take a client's own profile: seconds by block 1..L, all positive and finite.

        Raises
        ------
        ValueError
            It is nonsense.
        """
        if len(profile_s) != len(self._profile_s) or not all(0 < s < math.inf for s in profile_s):
            raise ValueError(
                f"client {client}: its profile {list(profile_s)!r:.200} is not {len(self._profile_s)} positive times; "
                f"the server's own is taken instead"
            )
        known = self._clients.get(client)
        link = known.link if known else LinkEstimate(client, _PRIOR_BPS, _PRIOR_BPS, _PRIOR_RTT_S, self._chunk)
        self._clients[client] = Client(Slowdown(f"client {client}", profile_s), link, Prober(link))

    def guess(self, client: int) -> None:
        """Take a client of which nothing is known for a typical one: medians over those that are known."""
        known = list(self._clients.values())
        if client in self._clients or not known:
            return
        block_s = np.median([one.slowdown.block_s for one in known], axis=0)
        links = [(one.link.up.value, one.link.down.value, one.link.rtt.value) for one in known]
        up_Bps, down_Bps, rtt_s = np.median(links, axis=0).tolist()
        link = LinkEstimate(client, up_Bps, down_Bps, rtt_s, self._chunk)
        self._clients[client] = Client(Slowdown(f"client {client}", block_s.tolist()), link, Prober(link))

    def measured(self, client: int, measured: Measured, batch: float) -> None:
        """Take what a client's frame tells; ``batch`` grows with its batches over the whole run."""
        known = self.client(client)
        if measured.block_s:
            known.slowdown.add(measured.block_s, batch)
        if measured.up is not None and measured.down is not None:
            known.link.exchange(measured.up, measured.down, measured.away_s, batch)
            known.prober.spent(measured.away_s)

    def probe(self, client: int, batch: float) -> int:
        """Bytes to probe the client's link with, 0 for none, now that it has done a batch on its own."""
        known = self.client(client)
        known.prober.earn(sum(known.slowdown.block_s))
        return known.prober.ask(batch)

    def beat(self, client: int, seconds: float) -> None:
        """Take a heartbeat's round trip, the peer's hold time apart."""
        self.client(client).link.rtt.add(seconds)

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        """Take a look at a client's frame that has come in part, ``seconds`` after its first chunk."""
        self.client(client).link.coming(part, seconds)

    def arrived(self, client: int, up: Transfer, batch: float) -> None:
        """Take a client's upload as soon as it is there; ``batch`` as in :meth:`measured`."""
        self.client(client).link.uploaded(up, batch)

    def costs(
        self,
        batches: Mapping[int, int],
        cuts: Mapping[int, int],
        boundary: int,
        workers: int,
        limits: Mapping[int, tuple[int, int]],
        *,
        moving: bool,
        heads: int = 0,
    ) -> Costs:
        """What every cut of every client costs now (ALGORITHMS §5); energy where all powers are known.

        Parameters
        ----------
        batches
            R_i, by client; rows are in this order.
        cuts
            Present cut by client; 0 for none.
        limits
            Floor and ceiling by client.
        moving
            Whether a change of cut moves state in mid-epoch.
        heads
            Shared heads, of which client i uses i modulo their number; 0 when nothing is shared.
        """
        blocks = len(self._profile_s)
        known = [self.client(client) for client in batches]
        current = np.array([cuts[client] for client in batches], dtype=np.int64)
        floor, ceiling = np.array([limits[client] for client in batches], dtype=np.int64).T
        rates = [(one.link.up.value, one.link.down.value, one.link.rtt.value) for one in known]
        up_Bps, down_Bps, rtt_s = np.array(rates).T[:, :, None]
        up, down = np.array(self._sizes.up, dtype=float), np.array(self._sizes.down, dtype=float)
        move_s = move_bytes = None
        if moving:
            move_s, move_bytes = move_costs(np.array(self._sizes.state, dtype=float), current, up_Bps, down_Bps)
        # All heads are the same blocks on the same machine, so what is known of one is known of all.
        keys: Sequence[int | None] = range(heads) if heads else [None]
        service = [[self.service.at(key, cut, self._batch) for cut in range(1, blocks)] for key in keys]
        server = np.append(np.mean(service, axis=0), 0.0)
        # What was measured need not fall from cut to cut; what a plan assumes must.
        server = np.maximum.accumulate(server[::-1])[::-1]
        rest = np.array(list(batches.values()), dtype=np.int64)
        head = np.array([client % heads if heads else 0 for client in batches], dtype=np.int64)
        call_s = float(np.mean([self.service.call_s(key, boundary) for key in keys]))
        shared_s, floor_s = shared_times(server, min(call_s, server[boundary - 1]), boundary, rest, head)
        compute_s = np.cumsum([one.slowdown.block_s for one in known], axis=1)
        powers = [self._powers[client] for client in batches if client in self._powers]
        energy_J = None
        if len(powers) == len(known):
            energy_J = energies(powers, compute_s, up, down, up_Bps, down_Bps)
        return Costs(
            names=tuple(str(client) for client in batches),
            batches=rest,
            compute_s=compute_s,
            transfer_s=transfer_times(up, down, up_Bps, down_Bps, rtt_s),
            server_s=server,
            allowed=allowed_cuts(floor, np.minimum(ceiling, boundary), blocks),
            current=current,
            workers=workers,
            shared_s=shared_s,
            shared_floor_s=floor_s,
            move_s=move_s,
            move_bytes=move_bytes,
            energy_J=energy_J,
        )
