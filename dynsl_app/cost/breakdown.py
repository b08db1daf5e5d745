"""Where a client's time goes under a plan."""

from dataclasses import dataclass

import numpy as np

from dynsl_app.cost.instance import Instance
from dynsl_app.cost.model import Floats, Ints, server_times


@dataclass(frozen=True, eq=False)
class Breakdown:
    """Seconds over all of a client's remaining batches, each (N,), waiting left out; 0 but for compute where n = L."""

    compute_s: Floats
    up_s: Floats
    down_s: Floats
    rtt_s: Floats
    server_s: Floats

    @property
    def total_s(self) -> Floats:
        """c_i: the client's epoch if it never waited."""
        return self.compute_s + self.up_s + self.down_s + self.rtt_s + self.server_s


def breakdown(instance: Instance, cuts: Ints) -> Breakdown:
    """Split each client's own time under a plan, int64 (N,), into its parts."""
    clients = instance.clients
    batches = np.array([client.batches for client in clients], dtype=np.float64)
    up_bytes, down_bytes = np.array(instance.up_bytes)[cuts - 1], np.array(instance.down_bytes)[cuts - 1]
    own_s = np.array([sum(client.block_s[:cut]) for client, cut in zip(clients, cuts.tolist(), strict=True)])
    server_s = server_times(np.array(instance.server_block_s, dtype=np.float64), instance.server_call_s)
    return Breakdown(
        compute_s=batches * own_s,
        up_s=batches * up_bytes / np.array([client.up_Bps for client in clients]),
        down_s=batches * down_bytes / np.array([client.down_Bps for client in clients]),
        rtt_s=batches * np.array([client.rtt_s for client in clients]) * (cuts < instance.blocks),
        server_s=batches * server_s[cuts - 1],
    )
