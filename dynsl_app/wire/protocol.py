"""Frames as chunks of bytes and back: the published layout, docs/wire.md.

The decoder trusts nothing: every size is bounded before anything is allocated for it, and whatever is not a
frame of this version raises :class:`~dynsl_app.errors.WireError`. There is no pickle and no code on the wire.
"""

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Frame, Kind, Scalar, Transfer
from dynsl_app.wire.description import MAX_BYTES, Manifest, read_manifest, read_meta, write_manifest, write_meta
from dynsl_app.wire.tensors import describe, raw, restore

VERSION = 1
"""Version of the layout; the first six bytes of a chunk, magic and version, have their place in every version."""

MAGIC = b"DYSL"
_PREFIX = struct.Struct("<4sHHI")
"""Of every chunk: magic, version, zero, index of the chunk in its frame."""

_HEAD = struct.Struct("<I5iIIQ")
"""Of a frame, in chunk 0: kind, client, round, batch, micro, generation, bytes of meta, manifest and payload."""


class Encoding:
    """A frame ready to be sent: iterating makes its chunks, copying each tensor byte once.

    Attributes
    ----------
    size
        Bytes of all chunks.
    ready
        When it was made, by ``time.monotonic``: from then on it waits for the link.
    """

    def __init__(self, frame: Frame, chunk_bytes: int) -> None:
        self.ready = time.monotonic()
        self._chunk_bytes = chunk_bytes
        self._tensors = frame.tensors.values()
        self._manifest = write_manifest(tuple(describe(name, tensor) for name, tensor in frame.tensors.items()))
        meta, text, payload = write_meta(frame.meta), self._manifest.text, self._manifest.bytes
        if len(meta) + len(text) > MAX_BYTES:
            raise WireError(f"its description has {len(meta) + len(text)} bytes; at most {MAX_BYTES} fit: send several")
        numbers = (frame.kind, frame.client, frame.round, frame.batch, frame.micro, frame.generation)
        try:
            head = _HEAD.pack(*numbers, len(meta), len(text), payload)
        except struct.error as error:
            raise WireError(f"its numbers {numbers} do not fit 32 bits: {error}") from error
        self._first = b"".join((_PREFIX.pack(MAGIC, VERSION, 0, 0), head, meta, text))
        room = chunk_bytes - _PREFIX.size
        beyond = max(0, payload - max(0, chunk_bytes - len(self._first)))
        self.size = len(self._first) + payload + _PREFIX.size * math.ceil(beyond / room)

    def __iter__(self) -> Iterator[bytes]:
        if self.size <= self._chunk_bytes:
            yield b"".join((self._first, *self._pieces()))
            return
        pieces: list[bytes | memoryview] = [self._first]
        room = max(0, self._chunk_bytes - len(self._first))
        chunk = 0
        for data in self._pieces():
            piece = memoryview(data)
            while piece:
                if room == 0:
                    yield b"".join(pieces)
                    chunk += 1
                    pieces = [_PREFIX.pack(MAGIC, VERSION, 0, chunk)]
                    room = self._chunk_bytes - _PREFIX.size
                taken, piece = piece[:room], piece[room:]
                pieces.append(taken)
                room -= len(taken)
        yield b"".join(pieces)

    def _pieces(self) -> list[bytes | memoryview]:
        """The payload: each tensor's bytes behind the zeros that align it."""
        pieces: list[bytes | memoryview] = []
        end = 0
        manifest = self._manifest
        for spec, offset, tensor in zip(manifest.specs, manifest.offsets, self._tensors, strict=True):
            if offset > end:
                pieces.append(bytes(offset - end))
            data = raw(tensor, spec)
            pieces.append(data)
            end = offset + len(data)
        return pieces


def encode(frame: Frame, chunk_bytes: int, limit: float = math.inf) -> Encoding:
    """Prepare a frame for sending in chunks of at most ``chunk_bytes`` (more only if its description needs it).

    Cheap: tensor bytes are read when the chunks are made, and must not change until then.

    Raises
    ------
    WireError
        The frame has more than ``limit`` bytes or holds what the layout cannot carry; the message names the frame,
        the tensor or the setting.
    """
    try:
        encoding = Encoding(frame, chunk_bytes)
    except WireError as error:
        raise WireError(f"cannot send the {title(frame)}: {error}") from error
    if encoding.size > limit:
        raise WireError(
            f"cannot send the {title(frame)}: it has {encoding.size} bytes, wire.max_frame_bytes allows {limit}; "
            "raise that, lower data.batch or choose another cut"
        )
    return encoding


def title(frame: Frame) -> str:
    """A frame's name in messages to people."""
    return _title(frame.kind, frame.client, frame.round, frame.batch)


def _title(kind: Kind, client: int, round_: int, batch: int, *_: int) -> str:
    return f"{kind.name} frame of client {client}, round {round_}, batch {batch}"


@dataclass(slots=True)
class _Partial:
    """A frame of which not all chunks have come: its numbers as in the head (kind first), and what it consists of."""

    numbers: tuple[Kind, int, int, int, int, int]
    meta: Mapping[str, Scalar]
    manifest: Manifest
    payload: torch.Tensor
    view: memoryview
    filled: int
    first: float
    last: float
    bytes: int
    chunks: int

    def fill(self, body: memoryview) -> None:
        end = self.filled + len(body)
        if end > len(self.view):
            raise WireError(f"{end - len(self.view)} bytes trail the {_title(*self.numbers)}")
        self.view[self.filled : end] = body
        self.filled = end


class Decoder:
    """Puts one stream's chunks together to frames.

    Parameters
    ----------
    limit
        Bytes that a frame may have, chunk prefixes apart; may be changed at any time and counts from the next frame.
    clock
        Seconds, monotonic; stamps each frame's ``received``.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._partial: _Partial | None = None
        self._manifest = write_manifest(())

    @property
    def pending(self) -> str | None:
        """The frame that has come in part, in words."""
        partial = self._partial
        if partial is None:
            return None
        return f"{_title(*partial.numbers)} ({partial.filled} of {len(partial.view)} payload bytes)"

    @property
    def incoming(self) -> Transfer | None:
        """What has come of it; None between frames. Any thread may ask."""
        partial = self._partial
        return None if partial is None else Transfer(partial.first, partial.last, partial.bytes, partial.chunks)

    def feed(self, chunk: bytes) -> Frame | None:
        """Take the next chunk; a frame when this was its last one, else None.

        Raises
        ------
        WireError
            The chunk does not continue a valid frame. The stream is of no use afterwards.
        """
        now = self._clock()
        index = _read_prefix(chunk)
        partial = self._partial
        if partial is None:
            if index:
                raise WireError(f"chunk {index} came without the start of its frame")
            partial = self._partial = self._begin(chunk, now)
        else:
            if index != partial.chunks:
                raise WireError(f"chunk {partial.chunks} of the {self.pending} is missing: chunk {index} came")
            if len(chunk) == _PREFIX.size:
                raise WireError(f"chunk {index} of the {self.pending} is empty")
            partial.fill(memoryview(chunk)[_PREFIX.size :])
        partial.last = now
        partial.bytes += len(chunk)
        partial.chunks += 1
        if partial.filled < len(partial.view):
            return None
        self._partial = None
        manifest = partial.manifest
        tensors = {
            spec.name: restore(partial.payload, spec, offset)
            for spec, offset in zip(manifest.specs, manifest.offsets, strict=True)
        }
        received = Transfer(partial.first, now, partial.bytes, partial.chunks)
        return Frame(*partial.numbers, partial.meta, tensors, received)

    def _begin(self, chunk: bytes, now: float) -> _Partial:
        """Read a frame's head and description; nothing is allocated that the limit does not cover."""
        start = _PREFIX.size + _HEAD.size
        if len(chunk) < start:
            raise WireError(f"truncated: a frame's head has {start} bytes, {len(chunk)} came")
        number, *ids, meta_bytes, text_bytes, payload = _HEAD.unpack_from(chunk, _PREFIX.size)
        try:
            numbers = (Kind(number), *ids)
        except ValueError:
            raise WireError(f"unknown kind of frame {number}") from None
        middle, end = start + meta_bytes, start + meta_bytes + text_bytes
        size = end - _PREFIX.size + payload
        if size > self.limit or end - start > MAX_BYTES:
            raise WireError(
                f"oversize: the {_title(*numbers)} has {size} bytes ({end - start} of description); at most "
                f"{self.limit} ({MAX_BYTES}) are taken (wire.max_frame_bytes, and less before the token is accepted)"
            )
        if len(chunk) < end:
            raise WireError(f"truncated: the description of the {_title(*numbers)} has {end - start} bytes")
        try:
            meta = read_meta(chunk[start:middle])
            text = chunk[middle:end]
            manifest = self._manifest if text == self._manifest.text else read_manifest(text)
        except WireError as error:
            raise WireError(f"bad {_title(*numbers)}: {error}") from error
        if manifest.bytes != payload:
            raise WireError(
                f"the {_title(*numbers)} announces {payload} payload bytes; its tensors have {manifest.bytes}"
            )
        self._manifest = manifest
        buffer = torch.empty(payload, dtype=torch.uint8)
        partial = _Partial(numbers, meta, manifest, buffer, buffer.numpy().data, 0, now, now, 0, 0)
        partial.fill(memoryview(chunk)[end:])
        return partial


def _read_prefix(chunk: bytes) -> int:
    """Check magic and version; the chunk's index."""
    if len(chunk) < _PREFIX.size:
        raise WireError(f"truncated: a chunk has at least {_PREFIX.size} bytes, {len(chunk)} came")
    magic, version, reserved, index = _PREFIX.unpack_from(chunk)
    if magic != MAGIC:
        raise WireError(f"not a DynSL frame: it begins with {magic!r}, not {MAGIC!r}; is this the right port?")
    check_version(version)
    if reserved:
        raise WireError(f"reserved bytes of a chunk are {reserved}, not 0")
    return int(index)


def check_version(version: object) -> None:
    """Refuse any version of the layout but this one.

    Raises
    ------
    WireError
        Names both versions and the remedy.
    """
    if version != VERSION:
        raise WireError(
            f"the peer speaks wire version {version}, this side version {VERSION}: "
            "install the same release of dynsl on the server and on every client"
        )
