"""What a model costs on a device, block by block: the curve p_i[l] that planning starts from.

A value and its file. It is made by :mod:`dynsl_app.telemetry.profiling`; nothing here needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass as value
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from dynsl_app.errors import SettingsError

Source = Literal["warmup", "file", "flops"]
"""``warmup``: measured just now; ``file``: measured earlier; ``flops``: operations over a speed, never measured."""

_STRICT = ConfigDict(extra="forbid", strict=True)

Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MeasuredSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


@value(frozen=True)
class Identity:
    """What a profile is of; two profiles of the same can stand for each other on their devices.

    Attributes
    ----------
    model
        Its name, or the target that built it.
    shape, classes
        Of the data: (C, H, W) of a sample, and the number of classes.
    batch
        Samples in a batch.
    blocks
        Name and number of parameters of each block, L pairs.
    """

    model: str
    shape: tuple[int, int, int]
    classes: int
    batch: int
    blocks: tuple[tuple[str, int], ...]


@dataclass(frozen=True, config=_STRICT)
class BlockProfile:
    """One block on one batch.

    Attributes
    ----------
    name
        Its stages in the plain model (``layer1.0``).
    parameters
        Number of elements that are trained.
    forward_s, backward_s, step_s
        Seconds.
    parameter_bytes, buffer_bytes, optimizer_bytes
        Its state: what a move carries, and what averages.
    saved_bytes
        What its forward keeps for its backward, weights apart.
    activation_bytes
        A[l]: its output, raw; what crosses a cut after it.
    """

    name: Text
    parameters: Bytes
    forward_s: MeasuredSeconds
    backward_s: MeasuredSeconds
    step_s: Seconds
    parameter_bytes: Bytes
    buffer_bytes: Bytes
    optimizer_bytes: Bytes
    saved_bytes: Bytes
    activation_bytes: Count

    def __post_init__(self) -> None:
        if (self.parameters == 0) != (self.parameter_bytes == 0):
            raise ValueError("parameters and parameter_bytes must both be 0, or neither")
        if self.parameters and self.step_s == 0:
            raise ValueError("step_s must be above 0 in a block with parameters")

    @property
    def total_s(self) -> float:
        """p[l]: forward, backward and step, in seconds."""
        return self.forward_s + self.backward_s + self.step_s

    @property
    def state_bytes(self) -> int:
        """What a move carries: parameters, buffers and optimizer state."""
        return self.parameter_bytes + self.buffer_bytes + self.optimizer_bytes

    @property
    def memory_bytes(self) -> int:
        """What training it needs: its state, gradients, and what the backward waits for."""
        return self.state_bytes + self.parameter_bytes + self.saved_bytes


@dataclass(frozen=True, config=_STRICT)
class Profile:
    """A model on a device.

    Attributes
    ----------
    source
        How it was made; see :data:`Source`.
    model, shape, classes, batch
        See :class:`Identity`.
    optimizer
        Its name: steps, and bytes of its state, depend on it.
    device
        What it was made on or for, for people.
    threads
        torch's threads.
    torch
        torch's version.
    blocks
        L of them.
    format
        Version of the file's layout.
    """

    source: Source
    model: Text
    shape: tuple[Count, Count, Count]
    classes: Count
    batch: Count
    optimizer: Text
    device: Text
    threads: Count
    torch: Text
    blocks: Annotated[tuple[BlockProfile, ...], Field(min_length=1)]
    format: Literal[1] = 1

    @property
    def block_s(self) -> tuple[float, ...]:
        """p[l] for l = 1..L, seconds on one batch."""
        return tuple(block.total_s for block in self.blocks)

    @property
    def identity(self) -> Identity:
        """What it is a profile of."""
        blocks = tuple((block.name, block.parameters) for block in self.blocks)
        return Identity(self.model, self.shape, self.classes, self.batch, blocks)

    def peak_bytes(self) -> tuple[int, ...]:
        """Memory to train blocks 1..n, for n = 1..L, in bytes: an estimate.

        The blocks' own memory, and the largest activation twice, as a gradient passes and as a copy is sent. The
        process itself, and what kernels take for a moment, come on top.
        """
        own = accumulate(block.memory_bytes for block in self.blocks)
        largest = accumulate((block.activation_bytes for block in self.blocks), max)
        return tuple(memory + 2 * activation for memory, activation in zip(own, largest, strict=True))

    def require(self, identity: Identity) -> None:
        """See that it is a profile of ``identity``.

        Raises
        ------
        SettingsError
            Naming the first thing that differs.
        """
        remedy = "make one for this run with dynsl-profile"
        mine = self.identity
        for name in ("model", "shape", "classes", "batch"):
            if getattr(mine, name) != getattr(identity, name):
                raise SettingsError(
                    f"the profile is for {name}={_text(getattr(mine, name))}, this run has "
                    f"{_text(getattr(identity, name))}; {remedy}"
                )
        if len(mine.blocks) != len(identity.blocks):
            raise SettingsError(
                f"the profile has {len(mine.blocks)} blocks, the model {len(identity.blocks)}; {remedy}"
            )
        for index, (have, want) in enumerate(zip(mine.blocks, identity.blocks, strict=True), start=1):
            if have != want:
                raise SettingsError(
                    f"the profile's block {index} is {have[0]!r} with {have[1]} parameters, the model's is {want[0]!r} "
                    f"with {want[1]}; {remedy}"
                )


_PROFILE = TypeAdapter(Profile)


def to_json(profile: Profile) -> str:
    """The text of a profile's file."""
    return _PROFILE.dump_json(profile, indent=1).decode() + "\n"


def from_json(text: str | bytes, what: str = "the profile") -> Profile:
    """Inverse of :func:`to_json`, strict.

    Parameters
    ----------
    what
        How errors call it.

    Raises
    ------
    SettingsError
        If it is no JSON, or a value is missing, unknown, mistyped, zero or not finite; naming the first three.
    """
    try:
        return _PROFILE.validate_json(text)
    except ValidationError as error:
        says = "; ".join(_explain(detail) for detail in error.errors(include_url=False)[:3])
        raise SettingsError(f"{what}: {says}. Make it again with dynsl-profile") from None


def load_profile(path: str | Path) -> Profile:
    """A profile from its file; its source becomes ``file`` unless it was never measured.

    Raises
    ------
    SettingsError
        If it cannot be read, and like :func:`from_json`.
    """
    try:
        text = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"the profile {path} cannot be read: {error.strerror}; dynsl-profile makes one") from None
    profile = from_json(text, f"the profile {path}")
    return profile if profile.source == "flops" else replace(profile, source="file")


def _text(part: Any) -> str:
    return "×".join(map(str, part)) if isinstance(part, Sequence) and not isinstance(part, str) else str(part)


def _explain(detail: ErrorDetails) -> str:
    """One line for one thing pydantic refused; blocks by their number from 1."""
    where = list(detail["loc"])
    who = ""
    if len(where) > 1 and where[0] == "blocks" and isinstance(where[1], int):
        who, where = f"block {where[1] + 1}: ", where[2:]
    field = ".".join(str(part) for part in where)
    match detail["type"]:
        case "missing":
            return f"{who}{field} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{who}unknown key {field!r}"
        case "json_invalid":
            return f"it is not JSON ({detail['msg'].removeprefix('Invalid JSON: ')})"
    says = detail["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return f"{who}{field}={detail['input']!r:.60}: {says}" if field else f"{who}{says}"
