"""Play an epoch with queueing at the server (ALGORITHMS §5).

Closed formulas miss by 10 % and more where clients contend, so the rest of the epoch is simulated: every client has one
request outstanding, m workers serve requests in order of arrival, and a client that has finished leaves. One heap
operation a batch: about 0.4 ms for 24 clients × 50 batches.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np

from dynsl_app.cost.model import Costs, Floats, Ints


@dataclass(frozen=True, eq=False)
class Timeline:
    """When a simulated epoch ends.

    Attributes
    ----------
    end_s
        When each client finishes its last batch, seconds from now, (N,).
    wait_s
        Seconds each client's requests spent waiting for a worker or the shared head, (N,).
    """

    end_s: Floats
    wait_s: Floats

    @property
    def epoch_s(self) -> float:
        """When the last client finishes, seconds from now."""
        return float(self.end_s.max())


def requests(costs: Costs, cuts: Ints) -> int:
    """Requests the server gets under a plan: how much there is to simulate."""
    return int(costs.batches[costs.server_s[cuts - 1] > 0].sum())


def simulate(costs: Costs, cuts: Ints) -> Timeline:
    """Play the batches that remain under one plan, without jitter.

    A client's time away from the server, Z_i, precedes each of its requests; its first request is
    delayed by M_i, the move to its cut. Equal arrivals are served in the clients' order, so that the result is
    deterministic. Choices for a shared head: its steps are taken in order of arrival, and nothing is merged
    (merging saves at most h0 a request, at any cut alike).

    Parameters
    ----------
    cuts
        One allowed cut a client, int64 (N,).
    """
    chosen = np.arange(len(cuts)), cuts - 1
    alone_s = costs.c[chosen]
    service_s = costs.server_s[cuts - 1]
    remote = np.flatnonzero((service_s > 0) & (costs.batches > 0))
    if not len(remote) or (len(remote) <= costs.workers and not costs.shared_s):
        return Timeline(end_s=alone_s, wait_s=np.zeros(len(cuts)))

    cycle_s = costs.cycle_s[chosen]
    first_s = cycle_s if costs.move_s is None else cycle_s + costs.move_s[chosen]
    end_s = alone_s.copy()
    end_s[remote] = _serve(
        first_s[remote].tolist(),
        cycle_s[remote].tolist(),
        (service_s[remote] - costs.shared_s).tolist(),
        costs.batches[remote].tolist(),
        min(costs.workers, len(remote)),
        costs.shared_s,
    )
    with np.errstate(invalid="ignore"):  # who never ends does not wait
        wait_s = np.where(np.isfinite(alone_s), np.maximum(end_s - alone_s, 0.0), 0.0)
    return Timeline(end_s=end_s, wait_s=wait_s)


def _serve(
    first: list[float], cycle: list[float], service: list[float], left: list[int], workers: int, serial: float
) -> list[float]:
    """When each client's last request is served; ``serial`` is the time under the shared head's lock."""
    if workers == 1 and not serial:
        return _serve_alone(first, cycle, service, left)
    end = [0.0] * len(first)
    arrivals = [(at, client) for client, at in enumerate(first)]
    heapify(arrivals)
    free = [0.0] * workers
    head_free = 0.0
    while arrivals:
        arrival, client = arrivals[0]
        start = free[0]
        if arrival > start:
            start = arrival
        finish = start + service[client]
        if serial:
            if head_free > finish:
                finish = head_free
            finish += serial
            head_free = finish
        heapreplace(free, finish)
        left[client] -= 1
        if left[client]:
            heapreplace(arrivals, (finish + cycle[client], client))
        else:
            heappop(arrivals)
            end[client] = finish
    return end


def _serve_alone(first: list[float], cycle: list[float], service: list[float], left: list[int]) -> list[float]:
    """The same for one worker and nothing shared, which is the usual case, in half the time."""
    end = [0.0] * len(first)
    arrivals = [(at, client) for client, at in enumerate(first)]
    heapify(arrivals)
    finish = 0.0
    while arrivals:
        arrival, client = arrivals[0]
        if arrival > finish:
            finish = arrival
        finish += service[client]
        left[client] -= 1
        if left[client]:
            heapreplace(arrivals, (finish + cycle[client], client))
        else:
            heappop(arrivals)
            end[client] = finish
    return end
