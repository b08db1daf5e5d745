"""One client's batches: which samples, in which order, in batches of which sizes."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from dynsl_app.data.augment import augment
from dynsl_app.data.source import Samples
from dynsl_app.errors import DataError
from dynsl_app.seeds import derive_seed

Tail = Literal["keep", "drop", "merge"]


def batch_sizes(samples: int, batch: int, tail: Tail) -> tuple[int, ...]:
    """Sizes of the batches of one epoch, all ``batch`` but the last.

    ``keep``: the last batch is what is left. ``drop``: what is left is not trained in this epoch (another
    draw of samples is left out in the next). ``merge``: as ``keep``, but a *single* sample left joins the
    batch before it, because BatchNorm has no variance over one sample; with no batch before, it is kept.
    """
    full, rest = divmod(samples, batch)
    sizes = [batch] * full
    if rest == 1 and tail == "merge" and sizes:
        sizes[-1] += 1
    elif rest and tail != "drop":
        sizes.append(rest)
    return tuple(sizes)


class ClientData:
    """What one client trains and tests on.

    Order and augmentation follow from (seed, client, round, epoch, batch) alone, so they are the same
    wherever, whenever and beside whatever the client runs.

    Parameters
    ----------
    train, test
        The client's own samples; ``test`` may be empty.
    client, seed
        The client's id and the run's seed.
    batch, tail
        ``data.batch`` and ``data.tail``, see :func:`batch_sizes`.
    augment
        ``data.augment``: names of random transforms for training batches.

    Attributes
    ----------
    test : Samples
        The client's own held-out samples (federated evaluation).
    sizes : tuple of int
        Samples in each batch of an epoch.

    Raises
    ------
    DataError
        If the client has no sample, or ``data.tail=drop`` leaves it without a batch.
    """

    def __init__(
        self,
        train: Samples,
        test: Samples,
        *,
        client: int,
        seed: int,
        batch: int,
        tail: Tail,
        augment: Sequence[str] = (),
    ) -> None:
        self.test = test
        self.sizes = batch_sizes(len(train), batch, tail)
        if not self.sizes:
            raise DataError(
                f"client {client} has {len(train)} training samples, so no batch to train on. "
                + (
                    f"data.tail=drop leaves out what does not fill a batch of {batch}: "
                    "use data.tail=merge or keep, or lower data.batch"
                    if len(train)
                    else "Give it data (its data folder, data.limit, data.partition) or leave it out of the run"
                )
            )
        self._train = train
        self._client = client
        self._seed = seed
        self._augment = tuple(augment)

    @property
    def samples(self) -> int:
        """Samples trained in one epoch (fewer than the client has if ``data.tail=drop``)."""
        return sum(self.sizes)

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one epoch, at least 1."""
        return len(self.sizes)

    def epoch(self, round: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one local epoch of one round, each fetched when it is asked for.

        Yields
        ------
        images, targets
            float32, shape (B, C, H, W), and int64, shape (B,); B as in :attr:`sizes`.
        """
        order_seed = derive_seed(self._seed, "order", self._client, round, epoch)
        order = torch.randperm(len(self._train), generator=Generator().manual_seed(order_seed))
        for number, indices in enumerate(order[: self.samples].split(list(self.sizes))):
            images = self._train.fetch(indices)
            if self._augment:
                batch_seed = derive_seed(self._seed, "augment", self._client, round, epoch, number)
                images = augment(images, self._augment, batch_seed)
            yield images, self._train.targets[indices]
