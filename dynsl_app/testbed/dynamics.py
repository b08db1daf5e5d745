"""From dynamics to what happens to whom, and when: the rows of a file, in seconds and client ids."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dynsl_app.dynamics import Dynamics, Row
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Fleet
from dynsl_app.seeds import derive_seed
from dynsl_app.testbed.make_world import client_of
from dynsl_app.testbed.population import Population
from dynsl_app.testbed.world import Happening, World

_Span = tuple[float, float, float]
"""From when and until when a factor is meant to hold, in seconds, and the factor."""


@dataclass(frozen=True)
class Script:
    """What happens, in order of time, and how many clients there are, newcomers included."""

    happenings: tuple[Happening, ...]
    clients: int


def with_happenings(world: World, fleet: Fleet, dynamics: Dynamics, t0_s: float, seed: int) -> World:
    """The world in which the fleet's own changes and these dynamics happen, with the newcomers that they bring.

    A newcomer is another device of the kind of an old client, with a spread and a link of its own, and the same number
    of batches. A fleet's change at a batch happens at that share of T0 (choice: batches take as long as each other).

    Parameters
    ----------
    world
        Made by :func:`~dynsl_app.testbed.make_world.make_world` from the same fleet and seed; nothing happens in it.
    t0_s
        T0, seconds.

    Raises
    ------
    SettingsError
        Like :func:`script`.
    """
    people = Population(fleet, seed)
    script = _script([*_changes(world, fleet), *_named(dynamics)], people, t0_s, seed)
    newcomers = []
    for number in range(people.size, script.clients):
        model, one = number % people.size, people.member(number)
        relative = people.member(model).factor / one.factor
        block_s = tuple(seconds * relative for seconds in world.clients[model].block_s)
        newcomers.append(client_of(one, block_s, world.clients[model].batches))
    return replace(world, clients=(*world.clients, *newcomers), happenings=script.happenings)


def script(dynamics: Dynamics, people: Population, t0_s: float, seed: int) -> Script:
    """What happens to whom.

    Parameters
    ----------
    t0_s
        T0, seconds.
    seed
        Of which clients a ``share`` is.

    Raises
    ------
    SettingsError
        A row names a client or device that is not there, lets somebody leave who is not there, or join who is; or T0
        is none. Naming the row.
    """
    return _script(_named(dynamics), people, t0_s, seed)


def _script(rows: Sequence[tuple[str, Row]], people: Population, t0_s: float, seed: int) -> Script:
    if not 0 < t0_s < math.inf:
        raise SettingsError(
            f"an epoch of this fleet takes {t0_s:g} s, so that nothing can be timed; check speeds, rates and batches"
        )
    clients = people.size * 2 ** sum(row.action == "double" for _, row in rows)
    factors: dict[tuple[int | None, Literal["compute", "link"]], list[_Span]] = {}
    presence: dict[int, list[tuple[float, str, str]]] = {}
    size = people.size
    for name, row in sorted(rows, key=lambda named: named[1].span_s(t0_s)[0]):
        if row.action == "double":
            for number in range(size, 2 * size):
                presence.setdefault(number, []).append((row.span_s(t0_s)[0], "join", name))
            size *= 2
    for number, (name, row) in enumerate(rows):
        if row.action == "double":
            continue
        begin, end = row.span_s(t0_s)
        whom = _whom(name, row, people, clients, derive_seed(seed, "share", number))
        for client in whom:
            if row.compute is not None:
                factors.setdefault((client, "compute"), []).append((begin, end or math.inf, row.compute))
            if row.link is not None:
                factors.setdefault((client, "link"), []).append((begin, end or math.inf, row.link))
            # Newcomers are not there to come or go with others of their kind; a row may name one.
            if row.action is not None and client is not None and (client < people.size or row.client is not None):
                course = presence.setdefault(client, [])
                course.append((begin, row.action, name))
                if end is not None:
                    course.append((end, "leave" if row.action == "join" else "join", name))
    happenings = [
        Happening(at_s, client, kind, factor)
        for (client, kind), spans in factors.items()
        for at_s, factor in _course(spans)
    ]
    for client, course in presence.items():
        happenings += _comings(client, course, new=client >= people.size)
    happenings.sort(key=lambda one: (one.at_s, -1 if one.client is None else one.client))
    return Script(tuple(happenings), clients)


def _named(dynamics: Dynamics) -> list[tuple[str, Row]]:
    """Rows, and what errors call them."""
    return [(f"dynamics={dynamics.name}: row {number}", row) for number, row in enumerate(dynamics.rows)]


def _changes(world: World, fleet: Fleet) -> Iterable[tuple[str, Row]]:
    """A fleet's own changes as rows, but for those at a batch that their client does not have."""
    if fleet.generate is not None or not fleet.changes:
        return
    for number, change in enumerate(fleet.changes):
        for client in range(fleet.size):
            batches = world.clients[client].batches
            if change not in fleet.changes_of(client) or (change.at_batch or 0) >= batches:
                continue
            at = None if change.at_batch is None else change.at_batch / batches
            row = Row(at=at, at_s=change.at_s, client=client, compute=change.compute, link=change.link)
            yield f"fleet={fleet.name}: change {number}", row


def _whom(name: str, row: Row, people: Population, clients: int, seed: int) -> list[int | None]:
    """Ids of the clients that a row is about; None for the server."""
    if row.server:
        return [None]
    if row.client is not None:
        if row.client >= clients:
            raise SettingsError(f"{name}: client={row.client} is not there; there are {clients} clients, from 0")
        return [row.client]
    if row.device is not None:
        if row.device not in people.kinds:
            raise SettingsError(
                f"{name}: device={row.device} is not in the fleet, which has {', '.join(people.kinds)}; name one of "
                f"these, or choose another fleet"
            )
        return [client for client in range(clients) if people.kind(client) == row.device]
    assert row.share is not None
    chosen = max(1, round(row.share * people.size))
    start = np.random.default_rng(seed).random()
    return [int((place + start) * people.size / chosen) for place in range(chosen)]


def _course(spans: Sequence[_Span]) -> list[tuple[float, float]]:
    """When the factor that is in force changes, and to what; it begins as 1."""
    course = []
    now = 1.0
    for at_s in sorted({time for begin, end, _ in spans for time in (begin, end) if time < math.inf}):
        factor = next((factor for begin, end, factor in reversed(spans) if begin <= at_s < end), 1.0)
        if factor != now:
            course.append((at_s, factor))
            now = factor
    return course


def _comings(client: int, course: Sequence[tuple[float, str, str]], *, new: bool) -> list[Happening]:
    """A client's comings and goings, checked in order of time; ``new``: it is certainly not there at first."""
    happenings = []
    there = False if new else None
    for at_s, action, name in sorted(course, key=lambda one: one[0]):
        if action == "join":
            if there:
                raise SettingsError(f"{name}: client {client} would join at {at_s:g} s, when it is there; let it leave")
            happenings.append(Happening(at_s, client, "join"))
        else:
            if there is False:
                raise SettingsError(
                    f"{name}: client {client} would {action} at {at_s:g} s, when it is not there; let it join before"
                )
            happenings.append(Happening(at_s, client, "crash" if action == "crash" else "leave"))
        there = action == "join"
    return happenings
