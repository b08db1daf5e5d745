"""The cost of every cut for every client (ALGORITHMS §5), as arrays over clients i and cuts n.

Solver, rules and simulation read :class:`Costs`. Who plans from live estimates may build it directly; current
slowdowns (α_i, γ) are folded into the times by the caller.

With a shared head (b < L; choices, because the problem gives one time per block and batch):

* w(n) keeps its form, ``h0 + Σ_{l>n} s[l]``: a batch passes the shared blocks too, so they count in its own time and
  in the server's work;
* the serial part of a request is ``h0 + Σ_{l>b} s[l]``, the same at every cut. It cannot change which cuts are best
  for the bound, so the bound leaves it out; :attr:`Costs.shared_floor_s` gives the epoch's lower limit that it sets,
  ``Σ R_i·Σ_{l>b} s[l] + h0·max R_i`` (§5's with an unlimited merge), and the simulation honours it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dynsl_app.cost.instance import Instance
from dynsl_app.errors import DynslError
from dynsl_app.plan import Power

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class NoFeasibleCut(DynslError):
    """A client's floor, ceiling and the boundary leave it no cut, or none with a finite time."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Times of every cut for N clients and L cuts; column n-1 is cut n.

    Attributes
    ----------
    names
        The N clients' names, for errors.
    batches
        R, int64 (N,).
    compute_s
        C_i(n), seconds a batch on the client, (N, L).
    transfer_s
        τ_i(n), seconds a batch on its link, round trip included, (N, L); 0 at n = L.
    server_s
        w(n), seconds a batch at the server, (L,), not increasing; 0 at n = L.
    allowed
        Which cuts a client may take, bool (N, L).
    current
        Its present cut, int64 (N,); 0 where it has none.
    workers
        m.
    shared_s
        Part of w(n) that is serial over all requests (a shared head); 0 with separate heads.
    shared_floor_s
        No plan ends the epoch sooner than this, because of the shared head; 0 with separate heads.
    move_s
        M_i(n), seconds a client needs to move from its current cut to n, (N, L); ``None``: 0, when planning an epoch.
    move_bytes
        Bytes of state that such a move carries, (N, L); ``None``: moves are not compared by bytes.
    energy_J
        E_i(n), joules that a batch costs the client, (N, L); ``None``: not known.

    Raises
    ------
    NoFeasibleCut
        If a client has no allowed cut whose time is finite.
    """

    names: tuple[str, ...]
    batches: Ints
    compute_s: Floats
    transfer_s: Floats
    server_s: Floats
    allowed: NDArray[np.bool_]
    current: Ints
    workers: int
    shared_s: float = 0.0
    shared_floor_s: float = 0.0
    move_s: Floats | None = None
    move_bytes: Floats | None = None
    energy_J: Floats | None = None

    def __post_init__(self) -> None:
        stuck = ~np.isfinite(self.c).any(axis=1)
        if stuck.any():
            name = self.names[int(stuck.argmax())]
            raise NoFeasibleCut(
                f"client {name!r} has no feasible cut: its floor is above its ceiling or the boundary, or every time "
                f"in reach overflows; lower min_cut, raise max_cut or the boundary, or check its profile and throughput"
            )

    @cached_property
    def cycle_s(self) -> Floats:
        """Z_i(n): seconds of a batch away from the server, (N, L)."""
        return self.compute_s + self.transfer_s

    @cached_property
    def c(self) -> Floats:
        """c_i(n) = R_i(Z_i(n) + w(n)) + M_i(n), seconds, (N, L); ∞ where barred, 0 with no batches left."""
        with np.errstate(over="ignore", invalid="ignore"):
            seconds = self.batches[:, None] * (self.cycle_s + self.server_s)
            if self.move_s is not None:
                seconds = seconds + self.move_s
        seconds[self.batches == 0] = 0.0
        seconds[~(self.allowed & np.isfinite(seconds))] = np.inf
        return seconds

    @cached_property
    def v(self) -> Floats:
        """v_i(n) = R_i·w(n), the server's work in seconds, (N, L); ∞ where barred."""
        work: Floats = self.batches[:, None] * self.server_s
        work[np.isinf(self.c)] = np.inf
        return work

    def bound(self, cuts: Ints) -> float:
        """T(n) of §5 for one plan: the slowest client alone, or the server's work over its workers, seconds."""
        chosen = np.arange(len(cuts)), cuts - 1
        return float(max(self.c[chosen].max(), self.v[chosen].sum() / self.workers))


def costs_of(instance: Instance, *, move_s: Floats | None = None, move_bytes: Floats | None = None) -> Costs:
    """The cost arrays of a planning problem.

    A client with R = 0 keeps its cut, or takes ``min_cut`` if it has none: no other cut is allowed to it.

    Parameters
    ----------
    move_s, move_bytes
        M_i(n) in seconds and the bytes moved, (N, L); see :class:`Costs`.

    Raises
    ------
    NoFeasibleCut
        If a floor lies above the boundary of a shared head.
    """
    blocks, boundary, clients = instance.blocks, instance.boundary, instance.clients
    batches = np.array([client.batches for client in clients], dtype=np.int64)
    current = np.array([client.cut or 0 for client in clients], dtype=np.int64)
    floor = np.array([client.min_cut for client in clients], dtype=np.int64)
    ceiling = np.array([client.max_cut or blocks for client in clients], dtype=np.int64)
    up, down, rtt = np.array([(client.up_Bps, client.down_Bps, client.rtt_s) for client in clients]).T[:, :, None]

    with np.errstate(over="ignore"):
        compute_s = np.cumsum(np.array([client.block_s for client in clients], dtype=np.float64), axis=1)
        transfer_s = transfer_times(np.array(instance.up_bytes), np.array(instance.down_bytes), up, down, rtt)
        server_s = server_times(np.array(instance.server_block_s, dtype=np.float64), instance.server_call_s)

    cut = np.arange(1, blocks + 1)
    allowed = allowed_cuts(floor, np.minimum(ceiling, boundary), blocks)
    kept, new = (batches == 0) & (current > 0), (batches == 0) & (current == 0)
    allowed[kept] = cut == current[kept, None]
    allowed[new] &= cut == floor[new, None]

    shared_s, floor_s = shared_times(server_s, instance.server_call_s, boundary, batches, np.zeros_like(batches))
    return Costs(
        names=tuple(client.name for client in clients),
        batches=batches,
        compute_s=compute_s,
        transfer_s=transfer_s,
        server_s=server_s,
        allowed=allowed,
        current=current,
        workers=instance.workers,
        shared_s=shared_s,
        shared_floor_s=floor_s,
        move_s=move_s,
        move_bytes=move_bytes,
    )


def transfer_times(up_bytes: Floats, down_bytes: Floats, up_Bps: Floats, down_Bps: Floats, rtt_s: Floats) -> Floats:
    """τ_i(n) = A[n]/β↑_i + G[n]/β↓_i + rtt_i for n < L, and 0 at n = L; seconds a batch, (N, L).

    Parameters
    ----------
    up_bytes, down_bytes
        A and G, (L,).
    up_Bps, down_Bps, rtt_s
        Of each client, (N, 1).
    """
    seconds: Floats = up_bytes / up_Bps + down_bytes / down_Bps + rtt_s
    seconds[:, -1] = 0.0
    return seconds


def energies(
    powers: Sequence[Power], compute_s: Floats, up_bytes: Floats, down_bytes: Floats, up_Bps: Floats, down_Bps: Floats
) -> Floats:
    """E_i(n) = P_comp·C_i(n) + P_tx·A[n]/β↑_i + P_rx·G[n]/β↓_i, joules a batch, (N, L).

    Source: ALGORITHMS §9, after Samikwa et al. 2022. Choice: waiting, for the server or a round trip, costs nothing.

    Parameters
    ----------
    powers
        Of each client.
    compute_s
        C, seconds, (N, L).
    up_bytes, down_bytes
        A and G, (L,).
    up_Bps, down_Bps
        Of each client, (N, 1).
    """
    compute_W, send_W, receive_W = np.array([(p.compute_W, p.send_W, p.receive_W) for p in powers]).T[:, :, None]
    joules: Floats = compute_W * compute_s + send_W * (up_bytes / up_Bps) + receive_W * (down_bytes / down_Bps)
    return joules


def move_costs(state_bytes: Floats, current: Ints, up_Bps: Floats, down_Bps: Floats) -> tuple[Floats, Floats]:
    """M_i(n), seconds, and the bytes of state that a move from the present cut to n carries, (N, L) each.

    A client without a present cut has nothing to move.

    Parameters
    ----------
    state_bytes
        Of each block with its optimizer state, (L,).
    current
        Present cuts, (N,); 0 for none.
    up_Bps, down_Bps
        Of each client, (N, 1); 0: a dead link.
    """
    state = np.concatenate([[0.0], np.cumsum(state_bytes)])
    # Towards the client if positive.
    moved: Floats = np.where(current[:, None] > 0, state[1:] - state[current][:, None], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds: Floats = np.where(moved > 0, moved / down_Bps, np.where(moved < 0, -moved / up_Bps, 0.0))
    return seconds, np.abs(moved)


def allowed_cuts(floor: Ints, ceiling: Ints, blocks: int) -> NDArray[np.bool_]:
    """Which of the cuts 1..L lie from floor to ceiling, (N,) each; bool (N, L)."""
    cut = np.arange(1, blocks + 1)
    allowed: NDArray[np.bool_] = (cut >= floor[:, None]) & (cut <= ceiling[:, None])
    return allowed


def shared_times(server_s: Floats, call_s: float, boundary: int, batches: Ints, head: Ints) -> tuple[float, float]:
    """What is serial because of shared heads: ``shared_s`` and ``shared_floor_s`` of :class:`Costs`; 0 and 0 at b = L.

    With k heads a request waits for every k-th only, so that a k-th of the serial part counts (choice: right for heads
    with as many clients each); no plan ends before the busiest head has done its own.

    Parameters
    ----------
    server_s
        w(n), (L,).
    call_s
        h0 of it, seconds.
    boundary
        b.
    batches
        R, (N,).
    head
        Which head each client uses, (N,).
    """
    if boundary == len(server_s):
        return 0.0, 0.0
    serial_s, heads = float(server_s[boundary - 1]), np.unique(head)
    floors = [
        (serial_s - call_s) * int(own.sum()) + call_s * int(own.max()) for own in (batches[head == k] for k in heads)
    ]
    return serial_s / len(heads), max(floors)


def server_times(block_s: Floats, call_s: float) -> Floats:
    """w(n) = h0 + Σ_{l>n} s[l] for n < L, and 0 at n = L; seconds a batch, (L,)."""
    above = np.append(np.cumsum(block_s[:0:-1])[::-1], 0.0)
    above[:-1] += call_s
    return above
