"""Block times: by a clock that the test moves, on a real segment, and across moves."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dynsl_app.model.chain import Block
from dynsl_app.model.segment import Segment, mean_loss
from dynsl_app.plan import BatchKey
from dynsl_app.settings import OptimizerSettings
from dynsl_app.telemetry.meter import BlockMeter, Phases, meter_for


class Clock:
    """Moves only when the work it is inside of says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, stage):
        ctx.stage = stage
        stage.clock.now += stage.forward_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.stage.clock.now += ctx.stage.backward_s
        return gradient, None


class Slow(nn.Module):
    """A linear layer that takes known times of a test's clock."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return _Slow.apply(self.linear(x), self)


def members(batch: int = 0, size: int = 3) -> list[tuple[BatchKey, int]]:
    return [(BatchKey(0, 0, 1, batch), size)]


def train(segment: Segment, wait: Callable[[], None] = lambda: None) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    y = segment.forward(x, members())
    wait()
    segment.backward(y, torch.ones_like(y))
    wait()
    segment.step(0.1)


def test_each_block_gets_its_own_time_and_waits_belong_to_nobody():
    clock = Clock()
    times = {1: (1.0, 2.0), 2: (4.0, 8.0), 3: (16.0, 32.0)}
    blocks = [Block(index, [(f"b{index}", Slow(clock, *seconds))]) for index, seconds in times.items()]
    meter = BlockMeter(clock)
    segment = Segment(blocks, OptimizerSettings(), observer=meter)

    def wait() -> None:
        clock.now += 1000.0

    for _ in range(3):
        train(segment, wait)
        wait()
        assert meter.take_phases() == {index: Phases(*seconds) for index, seconds in times.items()}


def test_a_block_below_which_nothing_trains_gets_its_own_backward():
    """A first block without parameters has none, and gives none of it to itself."""
    clock = Clock()
    meter = BlockMeter(clock)
    blocks = [Block(1, [("flatten", nn.Flatten())])]
    blocks += [Block(index, [(f"b{index}", Slow(clock, index, 10.0 * index))]) for index in (2, 3)]
    train(Segment(blocks, OptimizerSettings(), observer=meter))
    assert meter.take_phases() == {1: Phases(), 2: Phases(2.0, 20.0), 3: Phases(3.0, 30.0)}
    train(Segment(blocks[:1], OptimizerSettings(), observer=meter))
    assert meter.take_phases() == {1: Phases()}


def test_take_sums_the_phases_and_starts_anew():
    clock = Clock()
    meter = BlockMeter(clock)
    meter.begin()
    for mark, block, seconds in ((meter.forward, 5, 1.0), (meter.backward, 5, 2.0), (meter.step, 5, 4.0)):
        clock.now += seconds
        mark(block)
    assert meter.take() == {5: 7.0}
    assert meter.take() == {}
    # In the middle of a batch, what follows still has a base.
    clock.now += 0.5
    meter.forward(6)
    assert meter.take() == {6: 0.5}


def test_a_mark_before_any_begin_has_no_time():
    clock = Clock()
    meter = BlockMeter(clock)
    meter.forward(1)
    clock.now += 1.0
    meter.forward(2)
    assert meter.take() == {2: 1.0}


def test_blocks_may_change_between_batches():
    """A move gives the client other blocks; one meter serves on."""
    clock = Clock()
    blocks = [Block(index, [(f"b{index}", Slow(clock, index, 10.0 * index))]) for index in (1, 2, 3)]
    meter = BlockMeter(clock)
    train(Segment(blocks[:1], OptimizerSettings(), observer=meter))
    assert meter.take() == {1: 11.0}
    train(Segment(blocks, OptimizerSettings(), observer=meter))
    assert meter.take() == {1: 11.0, 2: 22.0, 3: 33.0}
    train(Segment(blocks[:2], OptimizerSettings(), observer=meter))
    assert meter.take() == {1: 11.0, 2: 22.0}


def test_being_watched_changes_no_bit():
    """Identity holds with telemetry on."""
    torch.manual_seed(3)
    plain = [Block(1, [("a", nn.Linear(4, 8))]), Block(2, [("b", nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))])]
    segments = [
        Segment(copy.deepcopy(plain), OptimizerSettings(), observer=observer) for observer in (None, meter_for("cpu"))
    ]
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0])
    for batch in range(3):
        for segment in segments:
            segment.backward(mean_loss(segment.forward(x, members(batch, 6)), y))
            segment.step(0.05)
    alone, watched = (segment.weights() for segment in segments)
    assert all(torch.equal(alone[name], watched[name]) for name in alone)


def test_on_a_gpu_times_are_those_of_events(monkeypatch: pytest.MonkeyPatch):
    """Milliseconds between events of the device's stream, read when the last of them has passed."""
    recorded: list[Any] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.done = False

        def record(self, stream: str) -> None:
            assert stream == "stream of cuda:1"
            self.at = float(2 ** len(recorded))
            recorded.append(self)

        def synchronize(self) -> None:
            self.done = True

        def elapsed_time(self, end: "Event") -> float:
            assert end.done
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    meter = meter_for("cuda:1")
    meter.begin()
    meter.forward(1)
    meter.forward(2)
    assert not any(event.done for event in recorded)
    assert meter.take() == pytest.approx({1: 0.001, 2: 0.002})
