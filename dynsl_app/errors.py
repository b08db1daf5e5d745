"""Errors that a user can act on.

Every one names what is wrong (client, setting or frame) and what to do about it.
"""

from collections.abc import Sequence
from pathlib import Path


class DynslError(Exception):
    """Base of all errors this package raises on purpose.

    ``run_dir`` is the folder of the run that the error ended, if it left one.
    """

    run_dir: Path | None = None


class SettingsError(DynslError):
    """A setting is unknown, mistyped, out of range, or contradicts another one."""


class DataError(DynslError):
    """Data is missing, empty or does not fit the model."""


class ModelError(DynslError):
    """A model cannot be built, cut where asked, or fed with this shape."""


class WireError(DynslError):
    """A frame or connection is not acceptable: version, token, size, shape, dtype, contents."""


class LinkClosed(WireError):
    """The peer is gone, or this side closed the link."""


class ClientLost(DynslError):
    """A client left in mid-round; the message names it and says why."""


class RoundFailed(DynslError):
    """No client finished the round with samples, so there is nothing to aggregate."""


class SweepError(DynslError):
    """A sweep cannot go on, whatever its runs did."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; the message says how it may go on."""


def named(clients: Sequence[int]) -> str:
    """How messages call clients: ``client 3``, or ``clients 0, 1, 2, … 299 (300 in all)``."""
    if len(clients) == 1:
        return f"client {clients[0]}"
    if len(clients) <= 8:
        return f"clients {', '.join(map(str, clients))}"
    return f"clients {', '.join(map(str, clients[:3]))}, … {clients[-1]} ({len(clients)} in all)"
