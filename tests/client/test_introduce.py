"""What a client tells before its first batch, and what it refuses to."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.client import introduce as module
from dynsl_app.client.emulate import Emulator
from dynsl_app.client.introduce import introduce
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Chain
from dynsl_app.settings import DataSettings, ModelSettings, NodeSettings, Settings, TelemetrySettings
from dynsl_app.telemetry.profile import Profile, to_json
from dynsl_app.telemetry.profiling import from_flops, measure

SPEC = DataSpec((1, 8, 8), 10)
MLP = ModelSettings(name="mlp")


def settings(**telemetry: Any) -> Settings:
    return Settings(model=MLP, data=DataSettings(batch=4), telemetry=TelemetrySettings(**telemetry))


@pytest.fixture
def chain() -> Chain:
    return build_chain(MLP, SPEC, 0)


@pytest.fixture
def profile(chain: Chain) -> Profile:
    return measure(chain, SPEC, 4, settings().optimizer, model="mlp", batches=1)


def node(**changes: Any) -> NodeSettings:
    return NodeSettings(3, 4, **changes)


def test_warm_up_measures_the_device_that_is_played(chain: Chain):
    fast = introduce(settings(), node(), 3, chain, SPEC, None)
    slow = introduce(settings(), node(), 3, chain, SPEC, Emulator(compute=50.0))
    assert len(fast.profile_s) == len(chain)
    assert sum(slow.profile_s) > 5 * sum(fast.profile_s) > 0
    assert fast.memory_bytes is not None
    assert fast.memory_bytes > 2**20


def test_warm_up_counts_where_the_whole_model_does_not_fit(chain: Chain, monkeypatch: pytest.MonkeyPatch):
    """To measure it would be to run out of memory."""

    def never(*_: Any, **__: Any) -> None:
        raise MemoryError

    counted = from_flops(chain, SPEC, 4, settings().optimizer, 1e9, model="mlp")
    needed = math.ceil(counted.peak_bytes()[-1] / settings().allocator.memory_share)
    monkeypatch.setattr(module, "measure", never)
    told = introduce(settings(), node(memory_bytes=needed - 2), 3, chain, SPEC, None)
    assert told.profile_s == counted.block_s
    assert told.memory_bytes == needed - 2
    with pytest.raises(MemoryError):
        introduce(settings(), node(memory_bytes=needed), 3, chain, SPEC, None)


@pytest.mark.parametrize("free", [None, 5 * 10**8])
def test_the_least_of_free_and_stated_memory_counts(chain: Chain, free: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "free_bytes", lambda device: free)
    quick = settings(profile="flops")
    assert introduce(quick, node(), 3, chain, SPEC, None).memory_bytes == free
    assert introduce(quick, node(memory_bytes=10**8), 3, chain, SPEC, None).memory_bytes == 10**8
    assert introduce(quick, node(memory_bytes=10**9), 3, chain, SPEC, None).memory_bytes == (free or 10**9)


@pytest.mark.parametrize("telemetry", [{"profile": "flops"}, {"profile": "file", "profile_file": {3: "x.json"}}])
def test_what_the_server_knows_is_not_told_again(chain: Chain, telemetry: dict[str, Any]):
    assert introduce(settings(**telemetry), node(), 3, chain, SPEC, None).profile_s == ()


@pytest.mark.parametrize("telemetry", [{}, {"profile": "flops"}, {"profile": "file", "profile_file": "/absent.json"}])
def test_a_nodes_own_file_comes_first(chain: Chain, profile: Profile, tmp_path: Path, telemetry: dict[str, Any]):
    own = tmp_path / "own.json"
    own.write_text(to_json(profile))
    told = introduce(settings(**telemetry), node(profile=str(own)), 3, chain, SPEC, None)
    assert told.profile_s == profile.block_s


def test_a_profile_that_nobody_has_is_refused(chain: Chain):
    with pytest.raises(SettingsError, match=r"client 3: telemetry\.profile=file, and neither .* dynsl-profile"):
        introduce(settings(profile="file", profile_file={0: "x.json"}), node(), 3, chain, SPEC, None)


def test_the_servers_file_is_never_read_on_the_device(chain: Chain):
    """Another machine's path must not decide what is opened here."""
    told = introduce(settings(profile="file", profile_file="/dev/null/x"), node(), 3, chain, SPEC, None)
    assert told.profile_s == ()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("blocks", 1, "forward_s"), 0.0, "block 2: forward_s=0.0: must be greater than 0"),
        (("blocks",), [], "at least 1 item"),
        (("blocks", 0, "name"), "other", "block 1 is 'other'"),
        (("model",), "cnn", "is for model=cnn, this run has mlp"),
        (("batch",), 8, "is for batch=8, this run has 4"),
        (("shape",), [3, 8, 8], "is for shape=3×8×8"),
    ],
)
def test_a_nodes_own_file_that_does_not_fit_is_refused_by_name(
    chain: Chain, profile: Profile, tmp_path: Path, path: tuple[Any, ...], value: Any, says: str
):
    plain = place = json.loads(to_json(profile))
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    own = tmp_path / "own.json"
    own.write_text(json.dumps(plain))
    with pytest.raises(SettingsError) as refused:
        introduce(settings(), node(profile=str(own)), 3, chain, SPEC, None)
    assert str(refused.value).startswith(f"client 3: --node-config profile={own}: ")
    assert says in str(refused.value)
    assert "dynsl-profile" in str(refused.value)


def test_a_file_with_a_missing_block_is_refused(chain: Chain, profile: Profile, tmp_path: Path):
    plain = json.loads(to_json(profile))
    del plain["blocks"][1]
    own = tmp_path / "own.json"
    own.write_text(json.dumps(plain))
    with pytest.raises(SettingsError, match=r"client 3: .*has 3 blocks, the model 4"):
        introduce(settings(), node(profile=str(own)), 3, chain, SPEC, None)
