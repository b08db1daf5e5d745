"""Tensors as bytes and back: dtype, shape and strides are kept, nothing is interpreted.

Strides matter: a channels_last activation and a contiguous one take different kernels, and so give different
bits. Alignment does too: payloads lie where torch itself would have put them (64-byte boundaries).
"""

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dynsl_app.errors import WireError

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes of the payload, as in memory that torch allocates."""

MAX_DIMS = 16
MAX_ELEMENTS = 2**40
"""Bounds on what a description may claim, zero-sized dimensions counted as one."""

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}
"""The dtypes that the layout names, by their name in torch."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its elements. ``dtype`` is a name in ``DTYPES``; strides count elements.

    Raises
    ------
    WireError
        No such dtype, out of bounds, or strides that leave gaps or overlap.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise WireError(f"tensor {self.name!r} has dtype {self.dtype!r}; the wire carries {', '.join(DTYPES)}")
        if len(self.shape) > MAX_DIMS or len(self.strides) != len(self.shape):
            raise WireError(
                f"tensor {self.name!r} has {len(self.shape)} dimensions and {len(self.strides)} strides; "
                f"they must be equal and at most {MAX_DIMS}"
            )
        sizes_fit = all(0 <= size <= MAX_ELEMENTS for size in self.shape)
        if not sizes_fit or math.prod(max(size, 1) for size in self.shape) > MAX_ELEMENTS:
            raise WireError(
                f"tensor {self.name!r} has shape {self.shape}; sizes are 0 to {MAX_ELEMENTS} elements in all"
            )
        if not all(0 <= stride <= MAX_ELEMENTS for stride in self.strides) or not is_dense(self.shape, self.strides):
            raise WireError(f"tensor {self.name!r} of shape {self.shape} has strides {self.strides}: not dense")

    @property
    def bytes(self) -> int:
        """Size of the elements, in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill a block of memory, each place once, in whatever order of dimensions.

    Strides of dimensions of size 1, and of tensors without elements, say nothing.
    """
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def describe(name: str, tensor: Tensor) -> TensorSpec:
    """What :func:`raw` will send of a tensor: its own strides where it is dense, else contiguous ones.

    Raises
    ------
    WireError
        The tensor is sparse or quantised, its dtype is not in the layout, or it has too many dimensions.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype not in _NAMES:
        raise WireError(
            f"tensor {name!r} ({tensor.layout}, {tensor.dtype}) cannot be sent; "
            f"the wire carries dense tensors of {', '.join(DTYPES)}"
        )
    return _spec(name, tensor.dtype, tensor.shape, tensor.stride())


@functools.lru_cache(maxsize=1024)
def _spec(name: str, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]) -> TensorSpec:
    """A batch's tensors look like the batch's before: remembered, a frame of 4 KB is a tenth faster."""
    if not is_dense(shape, strides):
        strides = torch.empty(shape, device="meta").stride()
    return TensorSpec(name, _NAMES[dtype], tuple(shape), strides)


def raw(tensor: Tensor, spec: TensorSpec) -> memoryview:
    """The elements in the memory order that ``spec`` describes; no copy for a dense tensor in main memory."""
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.stride() != spec.strides:
        tensor = torch.empty_strided(spec.shape, spec.strides, dtype=tensor.dtype).copy_(tensor)
    flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def isolate(tensor: Tensor) -> Tensor:
    """A copy as the wire would make it: same strides where dense, no history, in main memory."""
    spec = describe("", tensor)
    return torch.empty_strided(spec.shape, spec.strides, dtype=tensor.dtype).copy_(tensor.detach())


def layout(specs: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where each tensor starts in the payload, and the payload's size, both in bytes."""
    offsets, end = [], 0
    for spec in specs:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        end = start + spec.bytes
    return tuple(offsets), end


def restore(payload: Tensor, spec: TensorSpec, offset: int) -> Tensor:
    """A tensor over ``payload`` (uint8, owned by the receiver) from byte ``offset``, without a copy.

    It shares memory with the payload's other tensors, never elements, and is no view to autograd: changing one in place
    does not mark the others as changed.

    Raises
    ------
    WireError
        A bool tensor holds bytes other than 0 and 1, which torch does not define.
    """
    dtype = DTYPES[spec.dtype]
    if dtype == torch.bool and spec.bytes and int(payload[offset : offset + spec.bytes].max()) > 1:
        raise WireError(f"tensor {spec.name!r} is bool and holds bytes other than 0 and 1")
    tensor = torch.empty(0, dtype=dtype)
    return tensor.set_(payload.untyped_storage(), offset // dtype.itemsize, spec.shape, spec.strides)


if sys.byteorder != "little":
    raise WireError("the wire's layout is little-endian and this machine is not; run DynSL on a little-endian machine")
