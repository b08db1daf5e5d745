import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynsl_app.seeds import derive_seed

PARTS = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=5)), max_size=4)


@settings(deadline=None)
@given(PARTS, PARTS)
def test_equal_parts_and_only_those_give_equal_seeds_in_range(a: list[int | str], b: list[int | str]) -> None:
    assert 0 <= derive_seed(*a) < 2**63
    assert (derive_seed(*a) == derive_seed(*b)) == (a == b)


def test_types_and_boundaries_between_parts_count() -> None:
    different = [(1, 23), (12, 3), (1, "23"), ("1", 23), ("1,23",), (123,), (), ("",)]
    assert len({derive_seed(*parts) for parts in different}) == len(different)


def test_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = "from dynsl_app.seeds import derive_seed; print(derive_seed(7, 'order', 2, 1, 0))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert int(run.stdout) == derive_seed(7, "order", 2, 1, 0) == 7582641370127694286


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        derive_seed(object())  # type: ignore[arg-type]
