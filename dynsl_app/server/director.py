"""Who decides on moves in mid-epoch, as the controller sees it."""

from typing import Protocol


class Director(Protocol):
    """Asked for each client after each of its batches; called by any thread, must be quick."""

    def command(self, client: int, batch: int, cut: int) -> int | None:
        """The cut that the client shall have from one of its next batches on.

        Parameters
        ----------
        batch
            The batch that it has just done, from 0.
        cut
            Its cut now.

        Returns
        -------
        int or None
            In 1..b, or L with separate heads; None or ``cut`` to stay.
        """
        ...

    def moved(self, client: int, cut: int) -> None:
        """A move is complete: the client has the new cut."""
        ...


class Stay:
    """Fixed cuts."""

    def command(self, client: int, batch: int, cut: int) -> int | None:
        """See :meth:`Director.command`."""
        return None

    def moved(self, client: int, cut: int) -> None:
        """See :meth:`Director.moved`."""
