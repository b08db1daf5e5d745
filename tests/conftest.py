"""What all tests share: one torch thread, reproducible examples, and the option for the whole matrix."""

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# Bit identity needs the same number of threads everywhere; one also keeps tests from fighting for cores.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("default"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the whole matrix of models, cuts and optimizers too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits agree for the same number of torch threads only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
