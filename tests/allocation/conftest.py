"""Random fleets for the allocation tests."""

from collections.abc import Callable

import numpy as np
import pytest

from dynsl_app.cost.instance import ClientCosts, Instance

Fleet = Callable[..., Instance]


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """Make a plausible fleet: unlike devices on wired or slower links, and a server they contend for."""

    def make(seed: int, *, clients: int = 24, blocks: int = 20, workers: int = 1, batches: int = 50) -> Instance:
        rng = np.random.default_rng(seed)
        share = rng.uniform(0.5, 1.5, blocks)
        share /= share.sum()
        size = np.append(np.geomspace(4e6, 2e5, blocks - 1) * rng.uniform(0.5, 1.5, blocks - 1), 0.0)
        server_s = share * workers / clients * rng.uniform(0.2, 2.0)
        devices = []
        for index in range(clients):
            throughput = rng.choice([1.1e8, 5e7]) * rng.uniform(0.6, 1.1)
            devices.append(
                ClientCosts(
                    name=f"c{index}",
                    batches=int(rng.integers(batches * 4 // 5, batches * 6 // 5 + 1)),
                    block_s=tuple((share * rng.choice([0.25, 0.5, 0.8, 1.0]) * rng.uniform(0.9, 1.1)).tolist()),
                    up_Bps=throughput,
                    down_Bps=throughput * rng.uniform(1.0, 1.5),
                    rtt_s=0.002,
                    cut=int(rng.integers(1, blocks + 1)),
                )
            )
        return Instance(
            workers=workers,
            boundary=blocks,
            server_call_s=0.002 / clients,
            server_block_s=tuple(server_s.tolist()),
            up_bytes=tuple(size.tolist()),
            down_bytes=tuple(size.tolist()),
            clients=tuple(devices),
        )

    return make
