"""Profiles: their value and file, measured on copies, and made from operations."""

import gc
import json
import math
import platform
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError, SettingsError
from dynsl_app.model.build import ZOO, build_chain
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.optim import make_optimizer
from dynsl_app.settings import ModelSettings, OptimizerSettings
from dynsl_app.telemetry import meter
from dynsl_app.telemetry.operations import OPERATIONS_PER_BYTE, trace
from dynsl_app.telemetry.profile import Profile, from_json, load_profile, to_json
from dynsl_app.telemetry.profiling import from_flops, identity_of, measure

SPEC = DataSpec((3, 32, 32), 10)
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "profile-resnet18.json"
ADAM = OptimizerSettings(name="adam")


def chain_of(name: str, spec: DataSpec = SPEC, **options: Any) -> Chain:
    return build_chain(ModelSettings(name=name, **options), spec, seed=0)


@pytest.fixture(scope="module")
def mlp() -> Profile:
    return measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp", batches=2)


def state_bytes(chain: Chain) -> bytes:
    return b"".join(value.numpy().tobytes() for value in chain.merged_state().values())


class TestMeasure:
    @pytest.mark.parametrize("name", ZOO)
    def test_every_model_of_the_zoo(self, name: str):
        """All blocks have times and bytes, and counting operations finds the same bytes."""
        chain = chain_of(name)
        profile = measure(chain, SPEC, 4, ADAM, model=name, batches=1)
        assert profile.source == "warmup"
        assert len(profile.blocks) == len(chain)
        assert sum(block.parameters for block in profile.blocks) == sum(p.numel() for p in chain.parameters())
        counted = from_flops(chain, SPEC, 4, ADAM, 1e9, model=name)
        counted.require(profile.identity)
        for exact, scaled in zip(profile.blocks, counted.blocks, strict=True):
            assert scaled.activation_bytes == exact.activation_bytes
            assert scaled.saved_bytes == pytest.approx(exact.saved_bytes, rel=0.2)
            assert scaled.state_bytes == exact.state_bytes
        assert from_json(to_json(profile)) == profile
        assert from_json(to_json(counted)) == counted

    def test_nothing_that_training_uses_is_changed(self):
        """Weights, running statistics, modes, gradients and generators; dropout included."""
        chain = chain_of("cnn", dropout=0.3)
        chain.block(1).eval()
        first = next(chain.parameters())
        first.grad = torch.ones_like(first)
        weights, modes = state_bytes(chain), [module.training for module in chain.modules()]
        torch.manual_seed(5)
        generator = torch.get_rng_state()
        measure(chain, SPEC, 4, ADAM, model="cnn", batches=2)
        from_flops(chain, SPEC, 4, ADAM, 1e9, model="cnn")
        assert state_bytes(chain) == weights
        assert [module.training for module in chain.modules()] == modes
        assert [parameter.grad is not None for parameter in chain.parameters()].count(True) == 1
        assert torch.equal(torch.get_rng_state(), generator)

    def test_medians_of_all_batches_but_the_first(self, monkeypatch: pytest.MonkeyPatch):
        """A slow first batch, and an odd one among the others, do not show."""
        costs = iter([100.0, 1.0, 50.0, 3.0])
        clock = {"now": 0.0, "tick": 0.0}

        def now() -> float:
            clock["now"] += clock["tick"]
            return clock["now"]

        class Metered(meter.BlockMeter):
            def __init__(self) -> None:
                super().__init__(now)
                clock["tick"] = next(costs)

            def take_phases(self) -> dict[int, meter.Phases]:
                phases = super().take_phases()
                clock["tick"] = next(costs, 0.0)
                return phases

        monkeypatch.setattr("dynsl_app.telemetry.profiling.meter_for", lambda device: Metered())
        profile = measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp", batches=3)
        assert {block.forward_s for block in profile.blocks} == {3.0}
        assert {block.step_s for block in profile.blocks} == {3.0}

    def test_progress_is_told(self):
        told: list[tuple[int, int]] = []
        measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp", batches=3, progress=lambda *n: told.append(n))
        assert told == [(1, 3), (2, 3), (3, 3)]

    def test_the_device_is_described_without_its_name(self, mlp: Profile):
        assert "CPU" in mlp.device
        assert platform.node() not in to_json(mlp)
        assert measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp", batches=1, label="shed").device == "shed"

    @pytest.mark.parametrize(
        "settings",
        [
            OptimizerSettings(name="sgd"),
            OptimizerSettings(name="sgd", momentum=0.9),
            OptimizerSettings(name="adam"),
            OptimizerSettings(name="adamw"),
        ],
    )
    def test_bytes_of_the_optimizers_state_are_those_it_has(self, settings: OptimizerSettings):
        profile = measure(chain_of("cnn"), SPEC, 2, settings, model="cnn", batches=1)
        for block, profiled in zip(chain_of("cnn").span(0, 5), profile.blocks, strict=True):
            parameters = list(block.parameters())
            optimizer = make_optimizer(parameters, settings)
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            values = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
            assert profiled.optimizer_bytes == sum(v.numel() * v.element_size() for v in values)

    def test_a_model_that_does_not_take_the_data_is_refused(self):
        with pytest.raises(ModelError, match=r"images of 1×28×28"):
            measure(chain_of("mlp"), DataSpec((1, 28, 28), 10), 4, ADAM, model="mlp")

    @pytest.mark.parametrize("where", ["dynsl_app.telemetry.profiling.trace", "torch.randn"])
    def test_a_model_that_does_not_fit_into_memory_is_refused(self, where: str, monkeypatch: pytest.MonkeyPatch):
        def full(*_: Any, **__: Any) -> None:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes")

        monkeypatch.setattr(where, full)
        with pytest.raises(ModelError, match=r"mlp with a batch of 4 does not fit .* lower data\.batch"):
            measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp")

    def test_no_batches_are_refused(self):
        with pytest.raises(SettingsError, match="batches=0"):
            measure(chain_of("mlp"), SPEC, 4, ADAM, model="mlp", batches=0)


class TestOperations:
    def test_arithmetic_by_torchs_formulas_and_the_rest_by_bytes(self):
        """A linear layer: 2·B·in·out; a ReLU after it: its output read and written."""
        linear, relu = Block(1, [("a", nn.Linear(6, 4))]), Block(2, [("b", nn.ReLU())])
        first, second = trace([linear, relu], torch.ones(5, 6))
        assert first.operations == 2 * 5 * 6 * 4
        assert second.operations == 2 * 5 * 4 * 4 * OPERATIONS_PER_BYTE
        assert (first.activation_bytes, second.activation_bytes) == (80, 80)
        # The layer keeps its input for the weights' gradient, the activation its output.
        assert (first.saved_bytes, second.saved_bytes) == (5 * 6 * 4, 80)

    def test_attention_counts_on_a_cpu_too(self):
        """Torch's own registry leaves it out there: 4·B·heads·T²·d."""

        class Attention(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return nn.functional.scaled_dot_product_attention(x, x, x)

        (forward,) = trace([Block(1, [("attention", Attention())])], torch.ones(2, 3, 50, 64))
        assert forward.operations == 4 * 2 * 3 * 50**2 * 64

    def test_counting_leaves_other_threads_alone(self):
        """Clients train in threads: no hook may be set for the whole process while one of them counts."""
        counting, done = threading.Event(), threading.Event()
        seen: list[int] = []

        class Waiting(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                counting.set()
                done.wait(30)
                return x

        def other() -> None:
            counting.wait(30)
            seen.append(len(torch.nn.modules.module._global_forward_hooks))
            seen.append(len(torch.nn.modules.module._global_forward_pre_hooks))
            nn.Linear(100, 100)(torch.ones(50, 100))
            done.set()

        thread = threading.Thread(target=other)
        thread.start()
        (forward,) = trace([Block(1, [("wait", Waiting()), ("a", nn.Linear(6, 4))])], torch.ones(5, 6))
        thread.join()
        assert seen == [0, 0]
        assert forward.operations == 2 * 5 * 6 * 4

    def test_times_are_operations_over_speed(self):
        slow, fast = (from_flops(chain_of("cnn"), SPEC, 8, ADAM, speed, model="cnn") for speed in (1e9, 1e10))
        assert slow.source == "flops"
        assert "1e+09 operations a second, assumed" in slow.device
        for one, other in zip(slow.blocks, fast.blocks, strict=True):
            assert one.backward_s == pytest.approx(2 * one.forward_s)
            assert one.total_s == pytest.approx(10 * other.total_s)

    def test_a_batch_of_one_can_be_counted_where_batchnorm_could_not_train_on_it(self):
        profile = from_flops(chain_of("resnet18"), SPEC, 1, ADAM, 1e9, model="resnet18")
        whole = from_flops(chain_of("resnet18"), SPEC, 32, ADAM, 1e9, model="resnet18")
        assert whole.blocks[3].forward_s == pytest.approx(32 * profile.blocks[3].forward_s, rel=1e-3)

    def test_a_block_that_only_reshapes_is_not_free(self):
        chain = Chain([Block(1, [("flat", nn.Flatten())]), Block(2, [("fc", nn.Linear(3072, 10))])])
        assert from_flops(chain, SPEC, 2, ADAM, 1e9, model="own").blocks[0].forward_s > 0

    @pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
    def test_a_speed_that_is_none_is_refused(self, speed: float):
        with pytest.raises(SettingsError, match="operations per second is none"):
            from_flops(chain_of("mlp"), SPEC, 4, ADAM, speed, model="mlp")


class TestValue:
    def test_memory_grows_with_the_cut_and_holds_state_gradients_and_activations(self, mlp: Profile):
        peaks = mlp.peak_bytes()
        assert list(peaks) == sorted(peaks)
        first = mlp.blocks[0]
        assert first.state_bytes == first.parameter_bytes + first.buffer_bytes + first.optimizer_bytes
        needed = 2 * first.parameter_bytes + first.buffer_bytes + first.optimizer_bytes + first.saved_bytes
        assert peaks[0] == needed + 2 * first.activation_bytes
        assert mlp.block_s[0] == first.forward_s + first.backward_s + first.step_s

    def test_another_models_profile_is_refused(self, mlp: Profile):
        mlp.require(identity_of(chain_of("mlp"), SPEC, 4, "mlp"))
        with pytest.raises(SettingsError, match="for model=mlp, this run has cnn; make one for this run"):
            mlp.require(identity_of(chain_of("cnn"), SPEC, 4, "cnn"))
        with pytest.raises(SettingsError, match="for batch=4, this run has 8"):
            mlp.require(identity_of(chain_of("mlp"), SPEC, 8, "mlp"))
        small = DataSpec((1, 8, 8), 10)
        with pytest.raises(SettingsError, match="for shape=3×32×32, this run has 1×8×8"):
            mlp.require(identity_of(chain_of("mlp", small), small, 4, "mlp"))
        with pytest.raises(SettingsError, match="has 4 blocks, the model 3"):
            mlp.require(identity_of(chain_of("mlp", params={"hidden": [9, 9]}), SPEC, 4, "mlp"))
        with pytest.raises(
            SettingsError, match=r"block 2 is 'hidden2' with 32896 parameters, the model's .* with 2313"
        ):
            mlp.require(identity_of(chain_of("mlp", params={"hidden": [256, 9, 64]}), SPEC, 4, "mlp"))


class TestFile:
    def test_a_measured_profile_becomes_one_from_a_file(self, mlp: Profile, tmp_path: Path):
        path = tmp_path / "p.json"
        path.write_text(to_json(mlp))
        assert load_profile(path) == replace(mlp, source="file")
        guessed = from_flops(chain_of("mlp"), SPEC, 4, ADAM, 1e9, model="mlp")
        path.write_text(to_json(guessed))
        assert load_profile(str(path)) == guessed

    def test_the_example_is_one_of_the_zoos(self):
        profile = load_profile(EXAMPLE)
        assert profile.source == "file"
        profile.require(identity_of(chain_of("resnet18"), SPEC, 32, "resnet18"))

    @pytest.mark.parametrize(
        ("path", "value", "says"),
        [
            (("blocks", 1, "forward_s"), 0.0, "block 2: forward_s=0.0: must be greater than 0"),
            (("blocks", 0, "backward_s"), -1.0, "block 1: backward_s=-1.0: must be greater than 0"),
            (("blocks", 0, "step_s"), 0.0, "block 1: step_s must be above 0"),
            (("blocks", 0, "forward_s"), math.nan, "block 1: forward_s=nan: must be a finite number"),
            (("blocks", 0, "forward_s"), math.inf, "block 1: forward_s=inf: must be a finite number"),
            (("blocks", 0, "forward_s"), "fast", "block 1: forward_s='fast': must be a valid number"),
            (("blocks", 0, "forward_s"), True, "block 1: forward_s=True: must be a valid number"),
            (("blocks", 0, "activation_bytes"), 0, "block 1: activation_bytes=0: must be greater than or equal to 1"),
            (("blocks", 0, "parameter_bytes"), 0, "block 1: parameters and parameter_bytes must both be 0"),
            (("blocks", 0, "parameters"), 1.5, "block 1: parameters=1.5: must be a valid integer"),
            (("blocks",), [], "blocks=[]: Tuple should have at least 1 item"),
            (("blocks",), None, "blocks=None: must be a valid array"),
            (("batch",), 0, "batch=0: must be greater than or equal to 1"),
            (("shape",), [3, 32], "shape.2 is missing"),
            (("source",), "guess", "source='guess': must be 'warmup', 'file' or 'flops'"),
            (("format",), 2, "format=2: must be 1"),
            (("colour",), "red", "unknown key 'colour'"),
            (("blocks", 0, "colour"), "red", "block 1: unknown key 'colour'"),
        ],
    )
    def test_bad_values_are_named(self, mlp: Profile, path: tuple[Any, ...], value: Any, says: str):
        data = json.loads(to_json(mlp))
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(SettingsError) as refused:
            from_json(json.dumps(data), "the profile p.json")
        assert str(refused.value).startswith("the profile p.json: ")
        assert says in str(refused.value)
        assert "Make it again with dynsl-profile" in str(refused.value)

    def test_missing_values_are_named(self, mlp: Profile):
        data = json.loads(to_json(mlp))
        del data["model"], data["blocks"][2]["step_s"]
        with pytest.raises(SettingsError, match="model is missing; block 3: step_s is missing"):
            from_json(json.dumps(data))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 10_000])
    def test_what_is_no_profile_is_refused(self, text: str):
        with pytest.raises(SettingsError):
            from_json(text)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path):
        with pytest.raises(SettingsError, match=r"none\.json cannot be read: No such file"):
            load_profile(tmp_path / "none.json")
        (tmp_path / "latin.json").write_bytes(b"\xff\xfe{}")
        with pytest.raises(SettingsError, match=r"latin\.json: "):
            load_profile(tmp_path / "latin.json")


def test_what_was_traced_can_be_forgotten() -> None:
    """Hooks on saved tensors make cycles that no collector sees, if they return an output itself."""
    chain = chain_of("resnet18").train()
    alive = [weakref.ref(parameter) for parameter in chain.parameters()]
    trace(chain.span(0, len(chain)), torch.zeros(2, *SPEC.shape))
    del chain
    gc.collect()
    assert [reference for reference in alive if reference() is not None] == []
