"""One planning problem as people write it, and its strict reading from INSTANCE.json (docs/planning.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from dynsl_app.errors import SettingsError

Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Block = Annotated[int, Field(strict=True, ge=1)]
_MOST = 10**9  # far above any epoch or server, and far inside int64 and float64

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class ClientCosts:
    """What a plan must know of one client.

    Attributes
    ----------
    name
        How errors and tables call the client.
    batches
        R_i: batches it still has to train.
    block_s
        p_i[l]: seconds for each block on one batch, forward, backward and step; L values.
    up_Bps, down_Bps
        β↑_i, β↓_i: throughput in bytes per second.
    rtt_s
        Round-trip time in seconds, paid once a batch when the client is cut below L.
    min_cut, max_cut
        Floor (privacy) and ceiling (memory) of its cut, in blocks; ``None``: L.
    cut
        Its current cut, if it has one. It may lie outside floor and ceiling: these can change.
    """

    name: Annotated[str, Field(strict=True, min_length=1)]
    batches: Annotated[int, Field(strict=True, ge=0, le=_MOST)]
    block_s: tuple[Amount, ...]
    up_Bps: Rate
    down_Bps: Rate
    rtt_s: Amount
    min_cut: Block = 1
    max_cut: Block | None = None
    cut: Block | None = None


@dataclass(frozen=True, config=_STRICT)
class Instance:
    """One planning problem; times in seconds, sizes in bytes, cuts 1..L.

    Attributes
    ----------
    workers
        m: heads that the server can run at the same time.
    boundary
        b: blocks 1..b are private to each client, the rest is one shared head. b = L: nothing is shared.
    server_block_s
        s[l]: seconds for each block on one batch at the server; L values.
    up_bytes, down_bytes
        A[n], G[n]: bytes of activation and gradient at cut n for one batch; L values, the last 0.
    clients
        At least one, with names that differ.
    server_call_s
        h0: the server's fixed time per call.

    Raises
    ------
    SettingsError
        If lengths differ, or a cut, floor or ceiling does not fit the model.
    """

    workers: Annotated[int, Field(strict=True, ge=1, le=_MOST)]
    boundary: Block
    server_block_s: Annotated[tuple[Amount, ...], Field(min_length=1)]
    up_bytes: tuple[Amount, ...]
    down_bytes: tuple[Amount, ...]
    clients: Annotated[tuple[ClientCosts, ...], Field(min_length=1)]
    server_call_s: Amount = 0.0

    def __post_init__(self) -> None:
        blocks = self.blocks
        if self.boundary > blocks:
            raise SettingsError(
                f"boundary={self.boundary} is outside 1..{blocks}, the blocks in server_block_s; "
                f"use {blocks} where nothing is shared"
            )
        for field, values in (("up_bytes", self.up_bytes), ("down_bytes", self.down_bytes)):
            if len(values) != blocks:
                raise SettingsError(
                    f"{field} has {len(values)} entries, server_block_s has {blocks}; "
                    f"give one for every cut 1..{blocks}"
                )
            if values[-1] != 0:
                raise SettingsError(
                    f"{field} ends with {values[-1]:g}, but at cut {blocks} the client is fully local and sends "
                    f"nothing; make the last entry 0"
                )
        names: set[str] = set()
        for client in self.clients:
            if client.name in names:
                raise SettingsError(f"two clients are named {client.name!r}; give each a name of its own")
            names.add(client.name)
            _check_client(client, blocks, self.boundary)

    @property
    def blocks(self) -> int:
        """L, the number of blocks in the model."""
        return len(self.server_block_s)


def _check_client(client: ClientCosts, blocks: int, boundary: int) -> None:
    """Refuse what contradicts the model: lengths, floor and ceiling, an impossible current cut."""
    who = f"client {client.name!r}"
    if len(client.block_s) != blocks:
        raise SettingsError(
            f"{who}: block_s has {len(client.block_s)} entries, the model has {blocks} blocks (server_block_s); "
            f"profile the client with the same model"
        )
    ceiling = blocks if client.max_cut is None else client.max_cut
    if ceiling > blocks:
        raise SettingsError(f"{who}: max_cut={ceiling} is above the model's {blocks} blocks; use 1..{blocks}")
    if client.min_cut > ceiling:
        raise SettingsError(
            f"{who}: min_cut={client.min_cut} is above max_cut={ceiling}; lower the floor or raise the ceiling"
        )
    if client.cut is not None and client.cut > boundary:
        raise SettingsError(
            f"{who}: cut={client.cut} is outside 1..{boundary}, the private blocks; "
            f"give its present cut, or leave it out"
        )


_INSTANCE = TypeAdapter(Instance)

_REMEDY = {
    "workers": "give the number of heads the server runs at once, 1 or more",
    "boundary": "give the last private block, or the number of blocks where nothing is shared",
    "server_call_s": "give seconds, 0 or more",
    "server_block_s": "give seconds, 0 or more, for every block",
    "up_bytes": "give bytes, 0 or more, for every cut, the last 0",
    "down_bytes": "give bytes, 0 or more, for every cut, the last 0",
    "clients": "give a list with an object for every client",
    "name": "give a text",
    "batches": "give a whole number, 0 or more",
    "block_s": "give seconds, 0 or more, for every block of the model",
    "up_Bps": "give the measured bytes per second, finite and above 0; leave out a client that cannot be reached",
    "down_Bps": "give the measured bytes per second, finite and above 0; leave out a client that cannot be reached",
    "rtt_s": "give seconds, 0 or more",
    "min_cut": "give a block, 1 or more",
    "max_cut": "give a block, 1 or more",
    "cut": "give the client's present cut, or leave it out",
}


def parse_instance(data: object) -> Instance:
    """A planning problem from the decoded JSON (docs/planning.md has the format).

    Raises
    ------
    SettingsError
        For unknown or missing keys, wrong types or lengths, and values out of range: it names the client, the field
        and the remedy.
    """
    try:
        return _INSTANCE.validate_python(data)
    except ValidationError as error:
        raise SettingsError("; also ".join(_explain(detail, data) for detail in error.errors()[:3])) from None


def _explain(detail: ErrorDetails, data: object) -> str:
    """One line for one thing pydantic refused."""
    where = list(detail["loc"])
    known: type = Instance
    who = ""
    if len(where) > 1 and where[0] == "clients":
        who, known = f"{_client(data, where[1])}: ", ClientCosts
        where = where[2:]
    path = ".".join(str(part) for part in where)
    field = str(where[0]) if where else ""
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{who}unknown key {path!r}; the keys are {', '.join(one.name for one in fields(known))}"
    if detail["type"] == "missing":
        return f"{who}{path} is missing; {_REMEDY[field]}"
    if not where:
        return f"{who or 'the instance: '}expected a JSON object, got {type(detail['input']).__name__}"
    return f"{who}{path}={detail['input']!r:.60}: {detail['msg']}; {_REMEDY.get(field, 'see docs/planning.md')}"


def _client(data: object, index: int | str) -> str:
    """How to call a client that did not validate: its name if it has a usable one, else its place."""
    if isinstance(data, Mapping) and isinstance(index, int) and isinstance(data.get("clients"), Sequence):
        entry = data["clients"][index]
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"]:
            return f"client {entry['name']!r}"
    return f"clients.{index}"
