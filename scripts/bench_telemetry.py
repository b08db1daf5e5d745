"""What telemetry costs: calls in a step times the cost of a call, as a share of the step. Target: under 1 %.

Calls are timed one by one, because a difference of wall-clock times of whole steps hides less than the noise. Counted
is everything that one batch causes on both sides of a cut: the marks of all L blocks and their hooks, the sums, and
feeding the estimators of compute, link and service, which are read once in 5 batches (allocator.period). A step is the
computation of all blocks alone, without the exchange. The device's sensors are read once a round, outside of steps.

    python scripts/bench_telemetry.py            exits with 1 if a share is 1 % or more of a step of 2 ms or longer
"""

import itertools
import sys
import timeit
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from dynsl_app.data.source import DataSpec
from dynsl_app.model.build import build_chain
from dynsl_app.model.segment import Segment, mean_loss
from dynsl_app.plan import BatchKey
from dynsl_app.settings import ModelSettings, OptimizerSettings
from dynsl_app.telemetry.device import DeviceSampler
from dynsl_app.telemetry.estimate import Slowdown
from dynsl_app.telemetry.link import LinkEstimate
from dynsl_app.telemetry.meter import BlockMeter
from dynsl_app.telemetry.service import Service
from dynsl_app.wire.base import Transfer

PERIOD = 5
"""Batches between two looks at the estimates."""

TARGET = 0.01

LEAST_STEP_S = 2e-3
"""Shorter steps are shown, not held to the target: they are shorter than the exchange, which is not counted here."""

CASES = (
    ("mlp", (1, 8, 8), 8),
    ("cnn", (1, 8, 8), 8),
    ("mlp", (3, 32, 32), 32),
    ("cnn", (3, 32, 32), 32),
    ("mobilenet_v2", (3, 32, 32), 32),
    ("resnet18", (3, 32, 32), 32),
)
"""Model, shape, batch; the first is the smallest step there is."""


def per_call(call: Callable[[], object], number: int = 20, repeats: int = 300) -> float:
    """Seconds of one call: the least of the repeats' means, which other load on the machine disturbs least."""
    return min(timeit.repeat(call, number=number, repeat=repeats)) / number


def hook_s() -> float:
    """Seconds to set a block's hook and to pass through it in the backward, without the mark itself."""

    def chain(hooked: bool) -> None:
        x = leaf
        for _ in range(depth):
            x = x * 1.0
            if hooked:
                x.register_hook(partial(passed, None, 1))
        x.backward(one)

    def passed(observer: object, block: int, gradient: torch.Tensor) -> None:
        pass

    depth, one = 10, torch.ones(1)
    leaf = torch.ones(1, requires_grad=True)
    with_hooks, without = (per_call(partial(chain, hooked), number=1, repeats=1000) for hooked in (True, False))
    return max(0.0, with_hooks - without) / depth


def mark_s() -> float:
    """Seconds of one mark, the clock's reading in it."""
    meter = BlockMeter()
    rounds = 100

    def marks() -> None:
        for _ in range(rounds):
            meter.forward(3)
        meter._marks.clear()

    return per_call(marks) / rounds


def take_s(blocks: int) -> float:
    """Seconds to add up one batch's marks."""
    meter = BlockMeter()

    def batch() -> None:
        for phase in (meter.forward, meter.backward, meter.step):
            meter.begin()
            for block in range(1, blocks + 1):
                phase(block)

    def taken() -> None:
        batch()
        meter.take()

    def dropped() -> None:
        batch()
        meter._marks.clear()

    return max(0.0, per_call(taken) - per_call(dropped))


def estimators_s(blocks: int) -> float:
    """Seconds to feed all estimators once, and to read them every ``PERIOD`` times."""
    slowdown = Slowdown("client 1", [0.01] * blocks)
    link = LinkEstimate(1, 1e6, 1e6, 0.001, 1 << 20)
    link.rtt.add(0.001)
    service = Service(0.001, [0.01] * blocks, 8)
    measured = dict.fromkeys(range(1, blocks + 1), 0.011)
    up, down = Transfer(0.0, 3.0, 4 << 20, 4), Transfer(0.0, 0.0, 60_000, 1)
    count = itertools.count()

    def feed() -> None:
        batch = next(count)
        slowdown.add(measured, batch)
        link.uploaded(up, batch)
        link.exchange(up, down, 4.3, batch)
        service.add_group(None, [(1, 8)], 0.012, 0.002)
        if batch % PERIOD == 0:
            for estimator in (slowdown.level, link.up, link.down):
                estimator.reading(batch)

    return per_call(feed)


def step_s(model: str, spec: DataSpec, batch: int) -> tuple[int, float]:
    """Blocks of a model, and the seconds of an unwatched training step of all of them, the least of some."""
    chain = build_chain(ModelSettings(name=model), spec, seed=0)
    segment = Segment(chain.span(0, len(chain)), OptimizerSettings())
    x = torch.randn(batch, *spec.shape)
    y = torch.randint(spec.classes, (batch,))

    def step(number: int) -> None:
        logits = segment.forward(x, [(BatchKey(0, 0, 0, number), batch)])
        segment.backward(mean_loss(logits, y))
        segment.step(1e-3)

    step(0)
    times = [timeit.timeit(partial(step, number), number=1) for number in range(1, 31)]
    return len(chain), min(times)


def main() -> int:
    torch.set_num_threads(1)
    sensors = per_call(DeviceSampler().sample, number=1)
    mark, hook = mark_s(), hook_s()
    console = Console(width=100)
    console.print(
        f"a mark {mark * 1e6:.2f} µs, a hook {hook * 1e6:.2f} µs, the sensors {sensors * 1e6:.0f} µs once a round"
    )
    table = Table("model", "shape", "batch", "blocks", "step, ms", "marks", "sums", "estimates", "all, µs", "share")
    worst = 0.0
    for model, shape, batch in CASES:
        blocks, step = step_s(model, DataSpec(shape, 10), batch)
        marks = (3 * blocks + 3) * mark + (blocks - 1) * hook
        parts = (marks, take_s(blocks), estimators_s(blocks))
        share = sum(parts) / step
        if step >= LEAST_STEP_S:
            worst = max(worst, share)
        numbers = (*(f"{part * 1e6:.1f}" for part in (*parts, sum(parts))), f"{share:.2%}")
        table.add_row(model, "×".join(map(str, shape)), str(batch), str(blocks), f"{step * 1e3:.2f}", *numbers)
    console.print(table)
    return int(worst >= TARGET)


if __name__ == "__main__":
    sys.exit(main())
