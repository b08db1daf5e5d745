"""JSON that every parser accepts: one line, and null for what JSON has no number for."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Plain values as strict JSON; NaN and infinities become null.

    Raises
    ------
    TypeError
        If something is not a plain value (a tensor, a numpy scalar): that is the caller's mistake, and
        silently writing its ``repr`` would hide it.
    """
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, separators=separators, indent=indent, allow_nan=False)
    except ValueError:
        # Rare, so that the usual value is walked once, in C.
        return json.dumps(_finite(value), separators=separators, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
