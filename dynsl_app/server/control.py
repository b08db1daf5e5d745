"""The control plane as the round loop sees it: orders out, replies in.

One implementation per way of running: Flower's Grid (the adapters), and in-process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dynsl_app.orders import Order, Reply


@dataclass(frozen=True)
class Concurrency:
    """How many clients can work at the same time; ``remedy`` tells people how to raise it."""

    clients: int
    remedy: str


class ControlPlane(Protocol):
    """Carries orders to clients and replies back. A client is its partition id."""

    def join(self, clients: int, timeout: float) -> Mapping[int, str]:
        """Wait until ``clients`` clients have registered, at most ``timeout`` seconds.

        Returns
        -------
        Mapping
            Node name by partition id, for 0..clients-1, sorted by partition id.

        Raises
        ------
        ClientLost
            If some are missing when time is up, or two nodes claim one partition id; the message names them.
        """
        ...

    def push(self, orders: Sequence[Order]) -> None:
        """Send orders without waiting for replies. A client has at most one order outstanding."""
        ...

    def poll(self, timeout: float) -> list[Reply]:
        """Replies since the last call, failures included; waits at most ``timeout`` seconds for the first."""
        ...

    def concurrency(self) -> Concurrency | None:
        """The limit on clients that work at the same time, known once they joined; None: there is none.

        Clients beyond it start only when others have finished, so with fewer than the round's clients nothing may
        wait for all of them.
        """
        ...
