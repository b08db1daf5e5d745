"""Floors and ceilings, and what contradicts them."""

from typing import Any

import pytest

from dynsl_app.allocation.limits import Memory, cut_limits
from dynsl_app.compose import compose
from dynsl_app.errors import SettingsError
from dynsl_app.settings import AllocatorSettings
from dynsl_app.validate import from_json, from_yaml, to_json, to_yaml


def test_for_all_and_by_client() -> None:
    assert cut_limits(AllocatorSettings(), 2, 5) == {0: (1, 5), 1: (1, 5)}
    assert cut_limits(AllocatorSettings(min_cut=2, max_cut=4), 2, 5) == {0: (2, 4), 1: (2, 4)}
    assert cut_limits(AllocatorSettings(min_cut={1: 3}, max_cut={0: 2}), 2, 5) == {0: (1, 2), 1: (3, 5)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_cut": {1: 4}, "max_cut": 3}, r"client 1: allocator.min_cut=4 is above allocator.max_cut=3; lower"),
        ({"min_cut": 6}, r"client 0: allocator.min_cut=6 is outside 1..5"),
        ({"min_cut": 0}, r"client 0: allocator.min_cut=0 is outside 1..5"),
        ({"max_cut": {1: 9}}, r"client 1: allocator.max_cut=9 is outside 1..5"),
        ({"max_cut": {2: 3}}, r"allocator.max_cut names client 2, and there are clients 0..1"),
    ],
)
def test_contradictions_name_the_client(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        cut_limits(AllocatorSettings(**settings), 2, 5)


def test_by_client_from_the_command_line_and_back() -> None:
    settings = compose(["allocator.min_cut={0: 2, 3: 1}", "allocator.max_cut=4"])
    assert settings.allocator.min_cut == {0: 2, 3: 1}
    assert settings.allocator.max_cut == 4
    assert from_json(to_json(settings)) == settings
    assert from_yaml(to_yaml(settings)) == settings


@pytest.mark.parametrize(
    ("free", "ceiling"), [(10**9, 5), (5 * 10**6, 4), (5 * 10**6 - 1, 3), (2.5 * 10**6, 2), (1_250_000, 1)]
)
def test_memory_lowers_the_ceiling_to_the_largest_cut_that_fits(free: float, ceiling: int) -> None:
    """80 % of what is free holds blocks 1..n; the last cut that fits exactly counts."""
    memory = Memory((1_000_000, 2_000_000, 3_000_000, 4_000_000, 9_000_000), 0.8)
    assert memory.limits(3, (1, 5), int(free)) == (1, ceiling)
    assert memory.limits(3, (1, 2), int(free)) == (1, min(2, ceiling))


def test_a_floor_above_what_memory_holds_is_an_error_that_names_the_client() -> None:
    memory = Memory((1_000_000, 2_000_000, 3_000_000), 0.5)
    with pytest.raises(SettingsError, match=r"client 3: training blocks 1..2, its floor, needs 2 MB.*0.5 .* is 1.5 MB"):
        memory.limits(3, (2, 3), 3_000_000)
    with pytest.raises(SettingsError, match=r"client 3: training blocks 1..1.*lower allocator.min_cut or data.batch"):
        memory.limits(3, (1, 3), 1)


@pytest.mark.parametrize("free", [0, -1, 1.5e9, "8 GB", True, None, float("nan"), 10**400])
def test_memory_that_is_none_is_refused_by_name(free: object) -> None:
    with pytest.raises(ValueError, match=r"client 3: free memory of .* is none; it is ignored"):
        Memory((1, 2), 0.8).limits(3, (1, 2), free)
