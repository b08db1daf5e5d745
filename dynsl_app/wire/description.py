"""A frame's description: its scalars (``meta``) and what its tensors are, each as JSON.

Both sides check by the same rules, so that what one may send the other takes. Batches repeat their tensors'
description, so both sides also remember: the sender by value, each receiver the text that came last.
"""

import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Scalar
from dynsl_app.wire.tensors import TensorSpec, layout

MAX_BYTES = 2**20
MAX_TENSORS = 4096
MAX_META = 256
MAX_NAME = 256
"""Bounds: bytes in all, tensors, entries of meta, characters of a name."""


@dataclass(frozen=True)
class Manifest:
    """A frame's tensors as sent: their text, what it says, and where each begins in the payload of ``bytes``."""

    text: bytes
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    bytes: int


def write_meta(meta: Mapping[str, Scalar]) -> bytes:
    """``meta`` as JSON, as every Python writes it: NaN and Infinity are allowed.

    Raises
    ------
    WireError
        It breaks a rule of the layout.
    """
    if not meta:
        return b"{}"
    _check_meta(meta)
    return _dump(dict(meta))


def read_meta(text: bytes) -> dict[str, Scalar]:
    """``meta`` from what somebody sent. Raises WireError where it breaks a rule of the layout."""
    meta = _load(text) if text != b"{}" else {}
    if not isinstance(meta, dict):
        raise WireError("its meta is not a JSON object")
    _check_meta(meta)
    return meta


@functools.lru_cache(maxsize=256)
def write_manifest(specs: tuple[TensorSpec, ...]) -> Manifest:
    """How these tensors are announced and where they lie. Raises WireError where they break a rule of the layout."""
    _check_specs(specs)
    return Manifest(_dump([[spec.name, spec.dtype, spec.shape, spec.strides] for spec in specs]), specs, *layout(specs))


def read_manifest(text: bytes) -> Manifest:
    """Tensors from what somebody announced. Raises WireError where it breaks a rule of the layout."""
    value = _load(text)
    if not isinstance(value, list) or len(value) > MAX_TENSORS:
        raise WireError(f"its tensors are not a JSON list of at most {MAX_TENSORS}")
    specs = tuple(_read_spec(item) for item in value)
    _check_specs(specs)
    return Manifest(text, specs, *layout(specs))


def _read_spec(value: Any) -> TensorSpec:
    match value:
        case [str(name), str(dtype), list(shape), list(strides)]:
            if all(type(number) is int for number in itertools.chain(shape, strides)):
                return TensorSpec(name, dtype, tuple(shape), tuple(strides))
    raise WireError("a tensor's description is not [name, dtype, shape, strides]")


def _check_specs(specs: tuple[TensorSpec, ...]) -> None:
    if len(specs) > MAX_TENSORS:
        raise WireError(f"{len(specs)} tensors; at most {MAX_TENSORS} fit a frame: send several")
    for spec in specs:
        _check_name(spec.name)
    if len({spec.name for spec in specs}) < len(specs):
        raise WireError("two of its tensors have the same name")


def _check_meta(meta: Mapping[str, Any]) -> None:
    if len(meta) > MAX_META:
        raise WireError(f"{len(meta)} entries of meta; at most {MAX_META}")
    for name, value in meta.items():
        _check_name(name)
        fits = value is None or isinstance(value, bool | float)
        fits = fits or (isinstance(value, int) and -(2**63) <= value < 2**63)
        fits = fits or (isinstance(value, str) and _is_text(value))
        if not fits:
            raise WireError(
                f"meta {name!r} is not a bool, a 64-bit int, a float, a text or None ({type(value).__name__})"
            )


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not _is_text(name):
        raise WireError(f"{name[:MAX_NAME]!r} is not a name of 1 to {MAX_NAME} characters")


def _is_text(value: str) -> bool:
    """Whether UTF-8 can carry it (JSON's escapes can spell halves of characters, which it cannot)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _load(text: bytes) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WireError(f"its description is not JSON in UTF-8: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise WireError("its description names a key twice")
    return value
