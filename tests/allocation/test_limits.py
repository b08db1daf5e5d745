"""Floors and ceilings, and what contradicts them."""

from typing import Any

import pytest

from dynsl_app.allocation.limits import cut_limits
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
