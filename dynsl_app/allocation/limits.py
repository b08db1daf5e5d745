"""Floors and ceilings of cuts, from the settings."""

from dynsl_app.errors import SettingsError
from dynsl_app.settings import AllocatorSettings


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


def _of(setting: int | dict[int, int] | None, client: int, otherwise: int) -> int:
    if setting is None:
        return otherwise
    return setting.get(client, otherwise) if isinstance(setting, dict) else setting
