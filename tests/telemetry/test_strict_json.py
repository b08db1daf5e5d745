import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.telemetry import strict_json

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def expected(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: expected(item) for key, item in value.items()}
    return [expected(item) for item in value] if isinstance(value, list) else value


@given(plain)
def test_any_plain_value_is_one_line_of_strict_json(value: Any) -> None:
    text = strict_json.dumps(value)
    assert "\n" not in text
    assert json.loads(text, parse_constant=refuse) == expected(value)


def test_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError):
        strict_json.dumps({"loss": torch.tensor(1.0)})
