"""Frames as chunks: the layout as published, and everything that is not a frame refused by name."""

import json
import math
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Frame, Kind, Scalar, Transfer
from dynsl_app.wire.description import MAX_BYTES, MAX_META, MAX_TENSORS
from dynsl_app.wire.protocol import Decoder, encode

LIMIT = 2**24
PREFIX, HEAD = 12, 40


def chunks_of(frame: Frame, chunk_bytes: int = 4096) -> list[bytes]:
    return list(encode(frame, chunk_bytes))


def activation(values: int = 5000) -> Frame:
    tensors = {"activation": torch.arange(float(values)), "target": torch.tensor([1, 2, 3])}
    return Frame(Kind.ACTIVATION, client=2, round=3, batch=7, generation=1, meta={"loss": 0.5}, tensors=tensors)


def handmade(
    meta: str = "{}",
    tensors: str = "[]",
    payload: bytes = b"",
    *,
    magic: bytes = b"DYSL",
    version: int = 1,
    reserved: int = 0,
    index: int = 0,
    kind: int = 3,
    announced: int | None = None,
) -> bytes:
    """A one-chunk frame of client 2, round 3, batch 7, written by docs/wire.md and not by our encoder."""
    announced = len(payload) if announced is None else announced
    prefix = struct.pack("<4sHHI", magic, version, reserved, index)
    head = struct.pack("<I5iIIQ", kind, 2, 3, 7, 0, 1, len(meta.encode()), len(tensors.encode()), announced)
    return prefix + head + meta.encode() + tensors.encode() + payload


def test_layout_is_the_published_one() -> None:
    """Byte by byte as in docs/wire.md: whoever changes this changes the version."""
    frame = Frame(
        Kind.ACTIVATION,
        2,
        3,
        7,
        0,
        1,
        {"loss": 0.5},
        {"a": torch.tensor([1.0]), "b": torch.tensor(2, dtype=torch.int8)},
    )
    (chunk,) = chunks_of(frame)
    assert chunk == handmade(
        '{"loss":0.5}',
        '[["a","float32",[1],[1]],["b","int8",[],[]]]',
        struct.pack("<f", 1.0) + bytes(60) + b"\x02",
    )


def test_the_published_example_is_true() -> None:
    frame = Frame(Kind.GRADIENT, 2, 3, 7, meta={"loss": 0.5}, tensors={"gradient": torch.tensor(1.0)})
    (chunk,) = chunks_of(frame)
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    lines = page.split("*Example.*")[1].split("```")[1].strip().splitlines()
    heads = [bytes.fromhex(line.split("   ")[0]) for line in lines[:3]]
    text, payload = lines[3].split("  ")
    assert b"".join(heads) + text.encode() + bytes.fromhex(payload) == chunk
    assert f"{len(chunk)} bytes" in page


@pytest.mark.parametrize("chunk_bytes", [4096, 5000, 2**20])
def test_round_trip_in_chunks_of_any_size(chunk_bytes: int) -> None:
    clock = iter(range(100))
    decoder = Decoder(LIMIT, clock=lambda: float(next(clock)))
    frame = activation()
    encoding = encode(frame, chunk_bytes)
    chunks = list(encoding)
    assert all(len(chunk) <= chunk_bytes for chunk in chunks)
    assert encoding.size == sum(map(len, chunks))
    *early, arrived = [decoder.feed(chunk) for chunk in chunks]
    assert early == [None] * (len(chunks) - 1)
    assert arrived is not None
    assert (arrived.kind, arrived.client, arrived.round, arrived.batch, arrived.micro, arrived.generation) == (
        Kind.ACTIVATION, 2, 3, 7, 0, 1,
    )  # fmt: skip
    assert arrived.meta == {"loss": 0.5}
    assert list(arrived.tensors) == ["activation", "target"]
    assert all(torch.equal(arrived.tensors[name], frame.tensors[name]) for name in frame.tensors)
    received = arrived.received
    assert received is not None
    assert (received.first, received.last) == (0.0, len(chunks) - 1.0)
    assert (received.bytes, received.chunks) == (encoding.size, len(chunks))


def test_one_decoder_takes_frame_after_frame() -> None:
    decoder = Decoder(LIMIT)
    frames = [activation(), Frame(Kind.END, 1, 1), activation(1), activation(1)]
    arrived = [decoder.feed(chunk) for frame in frames for chunk in chunks_of(frame)]
    assert [frame.kind for frame in arrived if frame] == [frame.kind for frame in frames]


def test_meta_keeps_types_and_non_finite_numbers() -> None:
    meta: dict[str, Scalar] = {
        "nan": math.nan, "inf": -math.inf, "one": 1, "float": 1.0, "true": True, "none": None, "text": "δοκιμή \n",
        "big": -(2**63),
    }  # fmt: skip
    (chunk,) = chunks_of(Frame(Kind.ACK, 0, 0, meta=meta))
    arrived = Decoder(LIMIT).feed(chunk)
    assert arrived is not None
    assert math.isnan(float(arrived.meta["nan"]))  # type: ignore[arg-type]
    assert {k: (type(v), v) for k, v in arrived.meta.items() if k != "nan"} == {
        k: (type(v), v) for k, v in meta.items() if k != "nan"
    }


def test_a_long_description_stays_in_the_first_chunk() -> None:
    frame = Frame(Kind.ACK, 0, 0, meta={"text": "x" * 10_000}, tensors={"a": torch.ones(4)})
    encoding = encode(frame, 4096)
    chunks = list(encoding)
    assert len(chunks) == 2
    assert encoding.size == sum(map(len, chunks))
    decoder = Decoder(LIMIT)
    assert decoder.feed(chunks[0]) is None
    arrived = decoder.feed(chunks[1])
    assert arrived is not None
    assert arrived.tensors["a"].tolist() == [1.0] * 4


ONE = '[["a","float32",[1],[1]]]'


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (b"", "truncated"),
        (b"DYSL\x01\x00\x00", "truncated"),
        (pickle.dumps({"a": 1}), "not a DynSL frame"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a DynSL frame"),
        (handmade(version=2), "version 2, this side version 1: install the same release"),
        (handmade(reserved=1), "reserved"),
        (handmade(index=1), "without the start"),
        (handmade()[: PREFIX + HEAD - 1], "truncated"),
        (handmade()[: PREFIX + HEAD + 2], "truncated"),
        (handmade(kind=0), "kind of frame 0"),
        (handmade(kind=99), "kind of frame 99"),
        (handmade() + b"x", "1 bytes trail"),
        (handmade(tensors=ONE, payload=bytes(8)), "announces 8 payload bytes; its tensors have 4"),
        (handmade(tensors=ONE, payload=bytes(3), announced=3), "announces 3"),
        (handmade(announced=2**63), "oversize"),
        (handmade(announced=LIMIT), "oversize"),
        (handmade(meta=json.dumps({"x": "y" * MAX_BYTES})), "oversize"),
        (handmade(meta="{"), "not JSON"),
        (handmade(meta="[" * 50_000), "not JSON"),
        (handmade(meta="[]"), "not a JSON object"),
        (handmade(meta='{"a":1,"a":2}'), "names a key twice"),
        (handmade(meta='{"a":[1]}'), "'a'"),
        (handmade(meta='{"a":{}}'), "'a'"),
        (handmade(meta='{"a":9223372036854775808}'), "64-bit"),
        (handmade(meta='{"a":1' + "0" * 5000 + "}"), "not JSON"),
        (handmade(meta='{"a":"\\ud800"}'), "'a'"),
        (handmade(meta='{"":1}'), "not a name"),
        (handmade(meta=json.dumps({str(i): i for i in range(MAX_META + 1)})), "at most 256"),
        (handmade(tensors="{}"), "not a JSON list"),
        (handmade(tensors="[[]]"), "name, dtype, shape, strides"),
        (handmade(tensors='[["a","float32",[1.0],[1]]]', payload=bytes(4)), "name, dtype, shape, strides"),
        (handmade(tensors='[["a","float32",[true],[1]]]', payload=bytes(4)), "name, dtype, shape, strides"),
        (handmade(tensors='[["a","float32",[1],[1],0]]', payload=bytes(4)), "name, dtype, shape, strides"),
        (handmade(tensors='[["a","object",[1],[1]]]', payload=bytes(8)), "'object'"),
        (handmade(tensors='[["a","float32",[-1],[1]]]'), "shape"),
        (handmade(tensors='[["a","float32",[2,3],[1,1]]]', payload=bytes(24)), "not dense"),
        (handmade(tensors='[["a","float32",[2],[2]]]', payload=bytes(8)), "not dense"),
        (handmade(tensors='[["a","float32",[0,4611686018427387904],[1,1]]]'), "shape"),
        (handmade(tensors=f'[["a","float32",{[1] * 17},{[1] * 17}]]', payload=bytes(4)), "17 dimensions"),
        (handmade(tensors='[["a","int8",[],[]],["a","int8",[],[]]]', payload=bytes(65)), "same name"),
        (handmade(tensors='[["","int8",[],[]]]', payload=bytes(1)), "not a name"),
        (handmade(tensors=json.dumps([[str(i), "int8", [0], [1]] for i in range(MAX_TENSORS + 1)])), "at most 4096"),
        (handmade(tensors='[["a","bool",[2],[1]]]', payload=b"\x01\x02"), "other than 0 and 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_a_frame_is_refused(chunk: bytes, message: str) -> None:
    """User case 39: nothing on the wire is code, and what is no frame is told so."""
    with pytest.raises(WireError, match=message):
        Decoder(LIMIT).feed(chunk)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2], "chunk 1 of the ACTIVATION frame of client 2, round 3, batch 7 .* is missing: chunk 2 came"),
        ([0, 1, 1], "missing"),
        ([0, 1, 0], "missing"),
        ([1], "without the start"),
    ],
)
def test_chunks_out_of_order_are_refused(order: list[int], message: str) -> None:
    chunks = chunks_of(activation())
    decoder = Decoder(LIMIT)
    for index in order[:-1]:
        assert decoder.feed(chunks[index]) is None
    with pytest.raises(WireError, match=message):
        decoder.feed(chunks[order[-1]])


def test_later_chunks_hold_neither_nothing_nor_too_much() -> None:
    chunks = chunks_of(activation())
    for bad, message in [(chunks[1][:PREFIX], "empty"), (chunks[1] + bytes(2**16), "trail")]:
        decoder = Decoder(LIMIT)
        decoder.feed(chunks[0])
        with pytest.raises(WireError, match=message):
            decoder.feed(bad)


def test_limit_counts_from_the_next_frame() -> None:
    """User case 26: sizes are bounded, less so once the sender is known."""
    chunk = handmade(tensors='[["a","int8",[1000],[1]]]', payload=bytes(1000))
    size = len(chunk) - PREFIX
    with pytest.raises(WireError, match=f"at most {size - 1}"):
        Decoder(size - 1).feed(chunk)
    decoder = Decoder(100)
    decoder.limit = size
    assert decoder.feed(chunk) is not None


def test_announced_bytes_are_not_allocated_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[Any] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, **kw: sizes.append(size) or empty(size, **kw))
    with pytest.raises(WireError, match="oversize"):
        Decoder(2**16).feed(handmade(tensors=f'[["a","int8",[{2**39}],[1]]]', announced=2**39))
    assert sizes == []


@pytest.mark.parametrize(
    ("meta", "tensors"),
    [
        ({"x": [1]}, {}),
        ({"x": 2**63}, {}),
        ({"x": 10**5000}, {}),
        ({"\ud800": 1}, {}),
        ({}, {"": torch.ones(1)}),
        ({}, {"a": torch.eye(2).to_sparse()}),
        ({"x": "y" * MAX_BYTES}, {}),
    ],
)
def test_what_a_frame_cannot_hold_is_refused_when_sent(meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    with pytest.raises(WireError, match="cannot send the GRADIENT frame of client 4, round 5, batch 6"):
        encode(Frame(Kind.GRADIENT, 4, 5, 6, meta=meta, tensors=tensors), 4096)


def test_numbers_beyond_32_bits_are_refused_when_sent() -> None:
    with pytest.raises(WireError, match="32 bits"):
        encode(Frame(Kind.GRADIENT, 4, 5, 2**31), 4096)


def test_too_large_frames_are_refused_when_sent() -> None:
    """User case 26."""
    frame = activation()
    size = encode(frame, 4096).size
    encode(frame, 4096, limit=size)
    with pytest.raises(WireError, match=r"wire\.max_frame_bytes allows"):
        encode(frame, 4096, limit=size - 1)


def test_a_frame_under_way_is_seen_chunk_by_chunk() -> None:
    """By the decoder's clock; nothing between frames."""
    times = iter([5.0, 7.0, 11.0, 12.0])
    decoder = Decoder(2**20, clock=lambda: next(times))
    chunks = list(encode(Frame(Kind.ACTIVATION, 0, 0, tensors={"x": torch.zeros(10_000, dtype=torch.uint8)}), 4096))
    seen = [decoder.incoming]
    for chunk in chunks:
        frame = decoder.feed(chunk)
        seen.append(decoder.incoming)
    assert seen == [None, Transfer(5.0, 5.0, 4096, 1), Transfer(5.0, 7.0, 8192, 2), None]
    assert frame is not None
    assert frame.received == Transfer(5.0, 11.0, sum(map(len, chunks)), 3)
