"""Tensors as bytes: dtype, shape, strides and bits survive, whatever they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.protocol import Decoder, encode
from dynsl_app.wire.tensors import DTYPES, TensorSpec, describe, is_dense, isolate


def sent(tensor: Tensor, chunk_bytes: int = 4096) -> Tensor:
    """What arrives of a tensor."""
    decoder = Decoder(2**30)
    frames = [decoder.feed(chunk) for chunk in encode(Frame(Kind.ACTIVATION, 0, 0, tensors={"x": tensor}), chunk_bytes)]
    assert frames[:-1] == [None] * (len(frames) - 1)
    assert frames[-1] is not None
    return frames[-1].tensors["x"]


def bits(tensor: Tensor) -> list[int]:
    """Elements in logical order as bytes, so that NaN equals itself."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).tolist()


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bits as a contiguous tensor; every bit pattern of the dtype may occur."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 5)])
def test_every_dtype_keeps_its_bits(name: str, shape: tuple[int, ...]) -> None:
    """User cases 15 (dtypes that numpy lacks) and 18 (0-d tensors)."""
    tensor = random(DTYPES[name], *shape)
    arrived = sent(tensor)
    assert (arrived.dtype, arrived.shape, arrived.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert bits(arrived) == bits(tensor)


@given(
    st.lists(st.integers(0, 4), max_size=6).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
    ),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)
def test_any_dense_strides_survive(case: tuple[list[int], list[int]], dtype: torch.dtype) -> None:
    shape, order = case
    tensor = random(dtype, *shape).permute(order)
    arrived = sent(tensor)
    assert arrived.stride() == tensor.stride()
    assert bits(arrived) == bits(tensor)
    copied = isolate(tensor)
    assert (copied.stride(), bits(copied)) == (tensor.stride(), bits(tensor))


def test_channels_last_stays_channels_last() -> None:
    tensor = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert sent(tensor).is_contiguous(memory_format=torch.channels_last)
    single = torch.randn(2, 1, 4, 4).to(memory_format=torch.channels_last)
    assert sent(single).stride() == single.stride()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(20.0)[::2],
        torch.arange(24.0).reshape(4, 6)[:, 1:3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(9.0).reshape(3, 3)[1:],
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.randn(5, requires_grad=True),
    ],
    ids=["stepped", "window", "expanded", "offset", "conjugated", "negated", "requires_grad"],
)
def test_views_arrive_as_plain_values(tensor: Tensor) -> None:
    for arrived in (sent(tensor), isolate(tensor)):
        assert torch.equal(arrived, tensor)
        assert is_dense(arrived.shape, arrived.stride())
        assert not arrived.requires_grad
        assert not arrived.is_conj()
        assert not arrived.is_neg()


def test_arrived_tensors_are_aligned_and_separate() -> None:
    """Kernels may round differently on memory that torch would not have handed out."""
    decoder = Decoder(2**20)
    frame = None
    for chunk in encode(Frame(Kind.ACTIVATION, 0, 0, tensors={"a": torch.ones(3), "b": torch.zeros(5)}), 4096):
        frame = decoder.feed(chunk)
    assert frame is not None
    a, b = frame.tensors["a"], frame.tensors["b"]
    assert a.data_ptr() % 64 == 0
    assert b.data_ptr() % 64 == 0
    versions = a._version, b._version
    a.add_(1.0)
    assert b.tolist() == [0.0] * 5
    assert (a._version, b._version) == (versions[0] + 1, versions[1]), "to autograd, only one of them changed"


def test_isolated_copy_shares_nothing() -> None:
    tensor = torch.zeros(4)
    copy = isolate(tensor)
    tensor += 1
    assert copy.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.zeros([1] * 17),
    ],
    ids=["sparse", "17 dimensions"],
)
def test_what_the_layout_cannot_carry_is_refused(tensor: Tensor) -> None:
    with pytest.raises(WireError, match="'weird'"):
        describe("weird", tensor)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 3), (1, 1)), ((2, 3), (4, 1)), ((2,), (0,)), ((4,), (2,)), ((2, 2), (2,)), ((-1,), (1,)), ((2**41,), (1,))],
)
def test_strides_that_overlap_or_leave_gaps_are_refused(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    with pytest.raises(WireError):
        TensorSpec("x", "float32", shape, strides)
