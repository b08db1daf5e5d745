"""What a client tells inside its frames, of its blocks and of its last batch: the one place that knows the names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dynsl_app.wire.base import Frame, Scalar, Transfer

_PROFILE, _MEMORY, _BLOCK_S = "profile", "memory_bytes", "telemetry/block_s"
_WAIT, _DOWN_S, _DOWN_BYTES, _DOWN_CHUNKS = "wait_s", "down_s", "down_bytes", "down_chunks"


@dataclass(frozen=True)
class Report:
    """Meta and tensors to add to a frame; empty before there is a measurement."""

    meta: Mapping[str, Scalar] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported:
    """A report as it came: seconds by block, seconds from sending to the reply, and the reply's transfer."""

    block_s: Mapping[int, float]
    wait_s: float | None
    down: Transfer | None


def report(block_s: Mapping[int, float], wait_s: float, down: Transfer | None) -> Report:
    """What to tell of a batch.

    Parameters
    ----------
    block_s
        Seconds of forward, backward and step of blocks 1, 2, … that the client holds; empty: not measured.
    wait_s
        Seconds from sending the activation to having the reply.
    down
        When the gradient came; None for a fully local batch.
    """
    meta: dict[str, Scalar] = {}
    if down is not None:
        meta = {
            _WAIT: wait_s,
            _DOWN_S: down.last - down.first,
            _DOWN_BYTES: down.bytes,
            _DOWN_CHUNKS: down.chunks,
        }
    if not block_s:
        return Report(meta)
    return Report(meta, {_BLOCK_S: torch.tensor([block_s[block] for block in sorted(block_s)], dtype=torch.float64)})


def reported(frame: Frame) -> Reported | None:
    """What a frame tells; None if it tells nothing. Nonsense is passed on for the estimators to name and refuse."""
    wait_s, seconds, size, chunks = (frame.meta.get(name) for name in (_WAIT, _DOWN_S, _DOWN_BYTES, _DOWN_CHUNKS))
    times = frame.tensors.get(_BLOCK_S)
    if times is None or times.dim() != 1 or times.dtype != torch.float64:
        if wait_s is None:
            return None
        times = torch.empty(0)
    block_s = {block: float(seconds) for block, seconds in enumerate(times, start=1)}
    if not (isinstance(wait_s, float) and isinstance(seconds, float) and math.isfinite(seconds)):
        return Reported(block_s, None, None)
    if not (isinstance(size, int) and isinstance(chunks, int)):
        return Reported(block_s, None, None)
    return Reported(block_s, wait_s, Transfer(0.0, seconds, size, chunks))


def introduction(profile_s: Sequence[float], memory_bytes: int | None) -> Report:
    """What to add to HELLO: seconds by block 1..L and the free memory, where they are known."""
    meta: dict[str, Scalar] = {} if memory_bytes is None else {_MEMORY: memory_bytes}
    return Report(meta, {_PROFILE: torch.tensor(profile_s, dtype=torch.float64)} if profile_s else {})


def reported_profile(hello: Frame) -> tuple[float, ...] | None:
    """Seconds by block as :func:`introduction` told them; None if it did not. Nonsense is passed on."""
    profile = hello.tensors.get(_PROFILE)
    return None if profile is None or profile.dim() != 1 else tuple(float(seconds) for seconds in profile)


def reported_memory(hello: Frame) -> Scalar:
    """Free memory in bytes as :func:`introduction` told it; None if it did not. Nonsense is passed on."""
    return hello.meta.get(_MEMORY)
