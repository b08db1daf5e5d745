"""The decoder under fire: whatever comes, a frame or a WireError, and memory within bounds (user case 39)."""

import struct
from collections.abc import Iterable
from unittest import mock

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.protocol import Decoder, encode
from dynsl_app.wire.tensors import DTYPES

LIMIT = 2**16
CHUNK = 256

numbers = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | text


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel() * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    raw = torch.tensor(list(data), dtype=torch.uint8)
    raw = raw % 2 if dtype == torch.bool else raw
    return raw.view(dtype).reshape(shape).permute(draw(st.permutations(range(len(shape)))))


frames = st.builds(
    Frame,
    st.sampled_from(Kind),
    numbers,
    numbers,
    numbers,
    numbers,
    numbers,
    st.dictionaries(names, scalars, max_size=4),
    st.dictionaries(names, tensors(), max_size=4),
)


def same(a: Frame, b: Frame) -> bool:
    """Equal to the bit: encoding writes down everything that is sent."""
    return list(encode(a, CHUNK)) == list(encode(b, CHUNK))


def fed(decoder: Decoder, chunks: Iterable[bytes]) -> list[Frame]:
    """Frames until the chunks end or one is refused, as a link would take them."""
    taken = []
    for chunk in chunks:
        try:
            frame = decoder.feed(chunk)
        except WireError:
            return taken
        if frame is not None:
            taken.append(frame)
    return taken


@given(st.lists(frames, max_size=3), st.integers(64, 1024))
def test_frames_arrive_as_sent(sent: list[Frame], chunk_bytes: int) -> None:
    arrived = fed(Decoder(LIMIT), [chunk for frame in sent for chunk in encode(frame, chunk_bytes)])
    assert len(arrived) == len(sent)
    assert all(same(a, b) for a, b in zip(arrived, sent, strict=True))
    assert all(
        a.tensors[name].stride() == b.tensors[name].stride()
        for a, b in zip(arrived, sent, strict=True)
        for name in b.tensors
    )


@given(st.lists(st.binary(max_size=200), max_size=5))
@example([b"DYSL\x01\x00" + bytes(46)])
def test_random_bytes(chunks: list[bytes]) -> None:
    fed(Decoder(LIMIT), chunks)


@settings(max_examples=300)
@given(frames, st.data())
def test_changed_frames(frame: Frame, data: st.DataObject) -> None:
    """Bytes changed, cut, inserted or taken out, mostly in the head and the description, where it hurts."""
    chunks = [bytearray(chunk) for chunk in encode(frame, CHUNK)]
    for _ in range(data.draw(st.integers(1, 4))):
        chunk = data.draw(st.sampled_from(chunks))
        place = data.draw(st.integers(0, max(0, len(chunk) - 1)))
        match data.draw(st.sampled_from(["change", "cut", "insert", "remove"])):
            case "change":
                chunk[place : place + 1] = bytes([data.draw(st.integers(0, 255))])
            case "cut":
                del chunk[place:]
            case "insert":
                chunk[place:place] = data.draw(st.binary(min_size=1, max_size=8))
            case "remove":
                del chunk[place : place + data.draw(st.integers(1, 8))]
    for arrived in fed(Decoder(LIMIT), map(bytes, chunks)):
        for tensor in arrived.tensors.values():
            tensor.clone()  # reads every element: its memory is there
        list(encode(arrived, CHUNK))


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_chunks_lost_doubled_and_out_of_order(sent: list[Frame], data: st.DataObject) -> None:
    """What does arrive was sent: never a mixture of two frames."""
    chunks = [chunk for frame in sent for chunk in encode(frame, CHUNK)]
    order = data.draw(st.lists(st.integers(0, len(chunks) - 1), max_size=2 * len(chunks)))
    written = [list(encode(frame, CHUNK)) for frame in sent]
    by_start: dict[bytes, list[list[bytes]]] = {}
    for frame_chunks in written:
        by_start.setdefault(frame_chunks[0], []).append(frame_chunks)
    for arrived in fed(Decoder(LIMIT), [chunks[index] for index in order]):
        again = list(encode(arrived, CHUNK))
        assert again[0] in by_start
        # Later chunks carry only their index, so they may come from a like frame; gRPC's order rules that out.
        assert [len(chunk) for chunk in again] in [[len(chunk) for chunk in one] for one in by_start[again[0]]]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**17) | st.integers(0, 2**40),
)
def test_memory_stays_within_the_limit(meta: int, manifest: int, payload: int, elements: int) -> None:
    """Whatever sizes a head and a description claim, no more is allocated than the limit."""
    text = f'[["x","int8",[{elements}],[1]]]'.encode()
    heads = [
        struct.pack("<4sHHI I5iIIQ", b"DYSL", 1, 0, 0, 3, 0, 0, 0, 0, 0, meta, manifest, payload) + bytes(50),
        struct.pack("<4sHHI I5iIIQ", b"DYSL", 1, 0, 0, 3, 0, 0, 0, 0, 0, 2, len(text), elements) + b"{}" + text,
    ]
    with mock.patch.object(torch, "empty", wraps=torch.empty) as empty:
        for head in heads:
            fed(Decoder(LIMIT), [head])
    assert all(call.args[0] <= LIMIT for call in empty.call_args_list)
    assert bool(empty.call_args_list) == (elements + 54 <= LIMIT)
