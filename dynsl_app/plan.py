"""The vocabulary that all parts share: frozen values, no torch, no I/O.

Symbols follow ALGORITHMS: L blocks numbered 1..L; client i holds blocks 1..n_i (its *cut*), the server
n_i+1..L; blocks 1..b are private to each client wherever they are placed (b is the *boundary*), blocks
b+1..L are one shared head.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dynsl_app.errors import SettingsError

SEPARATE = -1
"""``heads.count`` for separate heads: every client has its own copy of every block, nothing is shared."""

PROMPT = 0.01
"""Share of a batch's time that a client with all blocks may wait for the answer to its progress (choice)."""


@dataclass(frozen=True)
class Plan:
    """Who runs what in one round.

    Attributes
    ----------
    blocks
        L, the number of blocks in the model.
    boundary
        b: blocks 1..b are private, b+1..L are in a shared head. b = L: nothing is shared.
    cuts
        n_i by client id: the client holds blocks 1..n_i. In 1..b, or L when b = L.
    heads
        Number of shared heads, 0 when b = L; client i uses head ``i % heads``.

    Raises
    ------
    SettingsError
        If a cut is outside 1..b, or heads and boundary contradict each other.
    """

    blocks: int
    boundary: int
    cuts: Mapping[int, int]
    heads: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.boundary <= self.blocks:
            raise SettingsError(
                f"heads.boundary={self.boundary} is outside 1..{self.blocks}, the model's blocks; "
                f"choose a block after which the head is shared"
            )
        if (self.boundary < self.blocks) != (self.heads > 0):
            raise SettingsError(
                f"{self.heads} shared heads do not go with a boundary of {self.boundary} in a model of "
                f"{self.blocks} blocks: a shared head needs heads.boundary below {self.blocks}, separate "
                f"heads (heads.count=-1) have no boundary"
            )
        for client, cut in self.cuts.items():
            if not 1 <= cut <= self.boundary:
                raise SettingsError(
                    f"client {client}: cut {cut} is outside 1..{self.boundary}; a client holds at least block 1 "
                    f"and at most the private blocks"
                )

    def head_of(self, client: int) -> int | None:
        """The shared head that a client uses, or None with separate heads."""
        return client % self.heads if self.heads else None

    def lane_of(self, client: int) -> int:
        """What the client's batches run in, one after another: its shared head, or a lane of its own."""
        head = self.head_of(client)
        return client if head is None else head


@dataclass(frozen=True)
class Power:
    """Watts of a whole device while computing, sending and receiving: P_comp, P_tx, P_rx."""

    compute_W: float
    send_W: float
    receive_W: float


@dataclass(frozen=True)
class BatchKey:
    """What a batch's randomness depends on, wherever it is computed: never on placement or arrival.

    ``batch`` counts from 0 over the whole round (all local epochs), per client.
    """

    seed: int
    client: int
    round: int
    batch: int
