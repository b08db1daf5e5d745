"""Floors and ceilings of cuts, from the settings and from what a client's memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynsl_app.errors import SettingsError
from dynsl_app.settings import AllocatorSettings

_LARGEST_BYTES = 2**60


def cut_limits(settings: AllocatorSettings, clients: int, blocks: int) -> dict[int, tuple[int, int]]:
    """Floor and ceiling of every client's cut, by client id.

    Parameters
    ----------
    clients
        Number of clients; ids are 0..clients-1.
    blocks
        L of the model.

    Raises
    ------
    SettingsError
        If a floor is above a ceiling or either is outside the model's blocks, naming the client; or if a limit is for a
        client that does not exist.
    """
    for name, setting in (("min_cut", settings.min_cut), ("max_cut", settings.max_cut)):
        if isinstance(setting, dict):
            for client in setting:
                if not 0 <= client < clients:
                    raise SettingsError(
                        f"allocator.{name} names client {client}, and there are clients 0..{clients - 1}; "
                        f"correct the id or leave it out"
                    )
    limits = {}
    for client in range(clients):
        floor = _of(settings.min_cut, client, 1)
        ceiling = _of(settings.max_cut, client, blocks)
        for name, cut in (("min_cut", floor), ("max_cut", ceiling)):
            if not 1 <= cut <= blocks:
                raise SettingsError(
                    f"client {client}: allocator.{name}={cut} is outside 1..{blocks}, the model's blocks; choose one"
                )
        if floor > ceiling:
            raise SettingsError(
                f"client {client}: allocator.min_cut={floor} is above allocator.max_cut={ceiling}; "
                f"lower the floor or raise the ceiling"
            )
        limits[client] = floor, ceiling
    return limits


@dataclass(frozen=True)
class Memory:
    """What training needs of a client's memory, and may have.

    Attributes
    ----------
    peak_bytes
        To train blocks 1..n, for n = 1..L, not decreasing.
    share
        Of its free memory that training may fill (``allocator.memory_share``).
    """

    peak_bytes: Sequence[int]
    share: float

    def limits(self, client: int, limits: tuple[int, int], free_bytes: object) -> tuple[int, int]:
        """Floor and ceiling of a client's cut, the ceiling lowered to what its memory holds.

        Parameters
        ----------
        free_bytes
            As the client told it.

        Raises
        ------
        ValueError
            That is no number of bytes.
        SettingsError
            Its floor needs more, naming the client and the remedy.
        """
        if not isinstance(free_bytes, int) or isinstance(free_bytes, bool) or not 0 < free_bytes <= _LARGEST_BYTES:
            raise ValueError(f"client {client}: free memory of {free_bytes!r:.40} bytes is none; it is ignored")
        floor, ceiling = limits
        usable = self.share * free_bytes
        fitting = sum(need <= usable for need in self.peak_bytes)
        if fitting < floor:
            raise SettingsError(
                f"client {client}: training blocks 1..{floor}, its floor, needs {_mb(self.peak_bytes[floor - 1])}, and "
                f"allocator.memory_share={self.share:g} of its free memory is {_mb(usable)}; lower "
                f"allocator.min_cut or data.batch, or raise allocator.memory_share"
            )
        return floor, min(ceiling, fitting)


def _mb(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def _of(setting: int | dict[int, int] | None, client: int, otherwise: int) -> int:
    if setting is None:
        return otherwise
    return setting.get(client, otherwise) if isinstance(setting, dict) else setting
