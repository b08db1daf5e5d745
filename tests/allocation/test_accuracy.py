"""How far the refined estimate is from an independent event simulation with jitter.

The simulation here is SimPy's: every stage of a batch (forward, upload, queue, service, download, backward) is an
event of its own, with its own noise. It shares no code with ``cost/queueing.py``, which lumps the client's stages
together. ``pytest -s`` shows the percentiles.
"""

from collections.abc import Callable, Generator

import numpy as np
import simpy

from dynsl_app.allocation.refine import refine
from dynsl_app.cost.instance import Instance
from dynsl_app.cost.model import Ints, costs_of


def measured_epoch_s(instance: Instance, cuts: Ints, jitter: float, seed: int) -> float:
    """The epoch's end by events, every duration multiplied by a draw around 1 with this standard deviation."""
    rng = np.random.default_rng(seed)
    env = simpy.Environment()
    workers = simpy.Resource(env, capacity=instance.workers)

    def noisy(seconds: float) -> simpy.Timeout:
        return env.timeout(seconds * max(0.2, rng.normal(1.0, jitter)))

    def client(index: int) -> Generator[simpy.Event, None, None]:
        mine, cut = instance.clients[index], int(cuts[index])
        compute = sum(mine.block_s[:cut])
        for _ in range(mine.batches):
            yield noisy(compute / 3)
            if cut < instance.blocks:
                yield noisy(instance.up_bytes[cut - 1] / mine.up_Bps + mine.rtt_s / 2)
                with workers.request() as turn:
                    yield turn
                    yield noisy(instance.server_call_s + sum(instance.server_block_s[cut:]))
                yield noisy(instance.down_bytes[cut - 1] / mine.down_Bps + mine.rtt_s / 2)
            yield noisy(compute * 2 / 3)

    for index in range(len(instance.clients)):
        env.process(client(index))
    env.run()
    return float(env.now)


def test_refined_estimate_is_within_3_percent_in_the_median(fleet: Callable[..., Instance]) -> None:
    errors, waits = [], []
    for seed in range(60):
        instance = fleet(1000 + seed, blocks=12, workers=1 + seed % 3)
        refined = refine(costs_of(instance))
        jitter = 0.10 + 0.05 * (seed % 6) / 5
        errors.append(refined.epoch_s / measured_epoch_s(instance, refined.cuts, jitter, seed) - 1)
        waits.append(refined.timeline.wait_s.max() / refined.epoch_s)
    low, middle, high = np.percentile(errors, [5, 50, 95])
    print(f"\n5th / 50th / 95th percentile of the estimate's error: {low:+.1%} / {middle:+.1%} / {high:+.1%}")
    assert np.median(waits) > 0.03, "the fleets do not contend, so the comparison would say little"
    assert abs(middle) < 0.03
    assert max(abs(low), abs(high)) < 0.08
