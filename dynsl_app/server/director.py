"""Who decides on moves in mid-epoch, as the controller sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dynsl_app.wire.base import Scalar, Transfer


@dataclass(frozen=True)
class Measured:
    """What a client's frame tells: of the batch before it, or of its own where the client has all blocks.

    Attributes
    ----------
    block_s
        Seconds of forward, backward and step by block that the client holds; empty: not measured.
    up, down
        When its activation came to the server and its gradient to the client, each by the receiver's clock, or a
        probe there and back; None for a fully local client's batch without one.
    away_s
        From the client's sending to its having the reply, minus what the server held it.
    """

    block_s: Mapping[int, float]
    up: Transfer | None = None
    down: Transfer | None = None
    away_s: float = 0.0


class Director(Protocol):
    """Told what happens and asked for commands; called by any thread, must be quick."""

    def opened(
        self, client: int, batches: int, profile_s: tuple[float, ...] | None, memory_bytes: Scalar = None
    ) -> None:
        """A client begins its round of so many batches; where it was asked, with what it told of itself, unchecked.

        Parameters
        ----------
        profile_s
            Seconds by block 1..L.
        memory_bytes
            Free for training.
        """
        ...

    def measured(self, client: int, measured: Measured) -> None:
        """A client's frame told of its last batch."""
        ...

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        """The server has done one client's batch, or several as one in ``head``: each as its cut and its samples."""
        ...

    def beat(self, client: int, seconds: float) -> None:
        """A heartbeat went to the client and back; the time it was held there is not in the seconds."""
        ...

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        """A frame of the client is under way for so many seconds since its first chunk; ``part`` has come of it."""
        ...

    def arrived(self, client: int, up: Transfer) -> None:
        """A client's activation or probe has come; it is told again as :attr:`Measured.up`, with the rest of it."""
        ...

    def done(self, client: int) -> None:
        """A client has done a batch."""
        ...

    def command(self, client: int, cut: int) -> int | None:
        """The cut that the client shall have from one of its next batches on, given its cut now.

        Returns
        -------
        int or None
            In 1..b, or L with separate heads; None or ``cut`` to stay.
        """
        ...

    def probe(self, client: int) -> int:
        """Bytes with which a fully local client shall probe its link; 0: none. Asked once a batch, if nothing moves."""
        ...

    def moved(self, client: int, cut: int) -> None:
        """A move is complete: the client has the new cut."""
        ...

    def left(self, client: int) -> None:
        """The client has done its batches, or is lost."""
        ...


class Stay:
    """Fixed cuts: listens to nothing, commands nothing."""

    def opened(
        self, client: int, batches: int, profile_s: tuple[float, ...] | None, memory_bytes: Scalar = None
    ) -> None:
        """See :meth:`Director.opened`."""

    def measured(self, client: int, measured: Measured) -> None:
        """See :meth:`Director.measured`."""

    def served(self, head: int | None, entries: Sequence[tuple[int, int]], service_s: float, wait_s: float) -> None:
        """See :meth:`Director.served`."""

    def beat(self, client: int, seconds: float) -> None:
        """See :meth:`Director.beat`."""

    def coming(self, client: int, part: Transfer, seconds: float) -> None:
        """See :meth:`Director.coming`."""

    def arrived(self, client: int, up: Transfer) -> None:
        """See :meth:`Director.arrived`."""

    def done(self, client: int) -> None:
        """See :meth:`Director.done`."""

    def command(self, client: int, cut: int) -> int | None:
        """See :meth:`Director.command`."""
        return None

    def probe(self, client: int) -> int:
        """See :meth:`Director.probe`."""
        return 0

    def moved(self, client: int, cut: int) -> None:
        """See :meth:`Director.moved`."""

    def left(self, client: int) -> None:
        """See :meth:`Director.left`."""
