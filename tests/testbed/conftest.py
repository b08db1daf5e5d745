"""A small model and the worlds that it makes."""

from collections.abc import Callable

import pytest

from dynsl_app.data.source import DataSpec
from dynsl_app.fleet import Fleet
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Chain
from dynsl_app.settings import ModelSettings, OptimizerSettings
from dynsl_app.testbed.make_world import make_world
from dynsl_app.testbed.world import World

SPEC = DataSpec((1, 8, 8), 10)


@pytest.fixture(scope="session")
def chain() -> Chain:
    return build_chain(ModelSettings(name="cnn"), SPEC, 0)


@pytest.fixture
def world_of(chain: Chain) -> Callable[..., World]:
    """A fleet's world; ``batch`` 8, ``batches`` 45 and ``seed`` 0 unless said otherwise."""

    def world_of(fleet: Fleet, **other: object) -> World:
        say = {"batch": 8, "batches": 45, "optimizer": OptimizerSettings(), "seed": 0, "model": "cnn"} | other
        return make_world(fleet, chain, SPEC, **say)

    return world_of
