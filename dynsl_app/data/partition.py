"""Which client gets which training samples.

A partition is a function of the targets, the settings, the number of clients and the seed, so every client works
out its own part alone. Each sample goes to exactly one client and every client gets at least one.

flwr-datasets (pandas, pyarrow, matplotlib) takes longer to import than torch, and on a device every message starts a
new process. So only the partitions that need it import it, when they run.
"""

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynsl_app.errors import DataError
from dynsl_app.seeds import derive_seed
from dynsl_app.settings import DataSettings

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Indices = NDArray[np.int64]

DIRICHLET_DRAWS = 10
"""Draws of a Dirichlet partition before giving up on one without empty clients."""


def partition(targets: Tensor, settings: DataSettings, *, clients: int, seed: int) -> tuple[Tensor, ...]:
    """Indices of each client's samples, ascending.

    ``iid``
        Shuffled and cut into parts whose sizes differ by at most one.
    ``dirichlet``
        Each class is shared out in proportions drawn from Dirichlet(``data.alpha``) (Yurochkin et al. 2019,
        flwr-datasets' partitioner). Drawn again, up to :data:`DIRICHLET_DRAWS` times, while a client has nothing.
    ``shards``
        Samples sorted by class, cut into clients × ``data.shards`` equal runs, ``data.shards`` of them to each client
        (McMahan et al. 2017, flwr-datasets' partitioner). Where the numbers do not divide, the last run is
        shorter, or the runs are shorter and the first clients get the runs left over, so that all is used (choice).
    ``quantity``
        Shuffled; sizes in proportions drawn from Dirichlet(``data.alpha``) (Li et al. 2022). One sample
        is given to each client first, so that none is empty (choice).

    Parameters
    ----------
    targets
        int64, shape (N,).
    clients
        Number of parts.
    seed
        The run's seed.

    Raises
    ------
    DataError
        If there are fewer samples than clients, or a client's part stays empty; the message names the client.
    """
    if len(targets) < clients:
        raise DataError(
            f"{len(targets)} training samples cannot be shared out among {clients} clients: clients "
            f"{len(targets)} to {clients - 1} would have none. Lower `clients` or raise data.limit"
        )
    kind, alpha, shards = settings.partition, settings.alpha, settings.shards
    return _partition(targets.numpy().tobytes(), kind, alpha, shards, clients, derive_seed(seed, "partition"))


# In one process, many clients ask for their part of the same partition, every round.
@lru_cache(maxsize=4)
def _partition(raw: bytes, kind: str, alpha: float, shards: int, clients: int, seed: int) -> tuple[Tensor, ...]:
    targets = np.frombuffer(raw, dtype=np.int64)
    if kind == "iid":
        parts = _iid(len(targets), clients, seed)
    elif kind == "quantity":
        parts = _quantity(len(targets), alpha, clients, seed)
    elif kind == "dirichlet":
        parts = _dirichlet(targets, alpha, clients, seed)
    elif kind == "shards":
        parts = _shards(targets, shards, clients, seed)
    else:
        raise ValueError(f"{kind!r} is not a partition of samples that are in one place")
    return tuple(torch.from_numpy(np.sort(part)) for part in parts)


def _iid(samples: int, clients: int, seed: int) -> list[Indices]:
    return np.array_split(np.random.default_rng(seed).permutation(samples), clients)


def _quantity(samples: int, alpha: float, clients: int, seed: int) -> list[Indices]:
    rng = np.random.default_rng(seed)
    order = rng.permutation(samples)
    cumulative = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
    cuts = np.rint(cumulative * (samples - clients)).astype(np.int64)
    return np.split(order, cuts + np.arange(1, clients))


def _dirichlet(targets: Indices, alpha: float, clients: int, seed: int) -> list[Indices]:
    from flwr_datasets.partitioner import DirichletPartitioner

    for draw in range(DIRICHLET_DRAWS):
        partitioner = DirichletPartitioner(
            num_partitions=clients,
            partition_by="target",
            alpha=alpha,
            min_partition_size=0,
            shuffle=False,
            seed=derive_seed(seed, draw),
        )
        parts = []
        for part in _run(partitioner, targets, clients):
            if not len(part):  # no more of this draw: each part takes milliseconds
                break
            parts.append(part)
        else:
            return parts
    raise DataError(
        f"client {len(parts)} gets no training sample in {DIRICHLET_DRAWS} draws of data.partition=dirichlet with "
        f"data.alpha={alpha} ({len(targets)} samples, {clients} clients). "
        "Raise data.alpha or data.limit, or lower `clients`"
    )


def _shards(targets: Indices, shards: int, clients: int, seed: int) -> list[Indices]:
    from flwr_datasets.partitioner import ShardPartitioner

    wanted = clients * shards
    size = -(-len(targets) // wanted)
    if -(-len(targets) // size) < wanted:
        size = max(1, len(targets) // wanted)
    partitioner = ShardPartitioner(
        num_partitions=clients,
        partition_by="target",
        shard_size=size,
        keep_incomplete_shard=True,
        shuffle=False,
        seed=seed,
    )
    return list(_run(partitioner, targets, clients))


def _run(partitioner: "Partitioner", targets: Indices, clients: int) -> Iterator[Indices]:
    """The clients' parts, one by one."""
    from datasets import Dataset

    # `datasets` sorts with an option that pyarrow 25 deprecates; nothing a user of this program could do about it.
    warnings.filterwarnings("ignore", message="Specifying null_placement in SortOptions", category=FutureWarning)
    table = Dataset.from_dict({"index": np.arange(len(targets)), "target": targets})
    partitioner.dataset = table.with_format("arrow")
    for client in range(clients):
        yield partitioner.load_partition(client)["index"].to_numpy()
