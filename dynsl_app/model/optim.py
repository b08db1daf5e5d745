"""One optimizer per block, the same wherever the block is.

A block's update depends on its own gradient and state only, which is why a block can be on either side
of the cut without changing a bit (ALGORITHMS §1). Anything that couples blocks (a global gradient norm) cannot be
placed freely and is refused when settings are checked.
"""

import math

import torch
from torch import nn

from dynsl_app.settings import OptimizerSettings, ScheduleSettings


def make_optimizer(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """An optimizer over one block's parameters."""
    match settings.name:
        case "sgd":
            return torch.optim.SGD(
                parameters,
                lr=settings.lr,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                weight_decay=settings.weight_decay,
            )
        case "adam":
            return torch.optim.Adam(
                parameters, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
            )
        case "adamw":
            return torch.optim.AdamW(
                parameters, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
            )


def clip_gradients(parameters: list[nn.Parameter], settings: OptimizerSettings) -> None:
    """Clip one block's gradients in place: by value or by this block's own norm."""
    if settings.clip == "value":
        nn.utils.clip_grad_value_(parameters, settings.clip_limit)
    elif settings.clip == "block_norm":
        nn.utils.clip_grad_norm_(parameters, settings.clip_limit)


def rate_factor(schedule: ScheduleSettings, unit: int, units: int) -> float:
    """What to multiply the learning rate with.

    Parameters
    ----------
    unit
        The client's own epoch or batch, counted from 0 over the whole run.
    units
        How many of them the run has.
    """
    if unit < schedule.warmup:
        return (unit + 1) / (schedule.warmup + 1)
    if schedule.name == "step":
        return float(schedule.gamma ** (unit // schedule.every))
    if schedule.name == "cosine":
        done = (unit - schedule.warmup) / max(1, units - schedule.warmup)
        return schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    return 1.0


class Rate:
    """The learning rate of one client's batch, from its own epochs and batches only.

    Both sides of a cut compute it from the same numbers, so that it never depends on placement
    or on other clients.

    Parameters
    ----------
    settings
        Base rate and schedule.
    batches_per_epoch
        Batches of this client in one local epoch.
    local_epochs, rounds
        Length of the run.
    """

    def __init__(self, settings: OptimizerSettings, batches_per_epoch: int, local_epochs: int, rounds: int) -> None:
        self._settings = settings
        self._per_epoch = max(1, batches_per_epoch)
        self._local_epochs = local_epochs
        self._rounds = rounds

    def at(self, round_: int, batch: int) -> float:
        """Rate for batch ``batch`` (from 0, over the round) of round ``round_`` (from 1)."""
        schedule = self._settings.schedule
        if schedule.by == "epoch":
            unit = (round_ - 1) * self._local_epochs + batch // self._per_epoch
            units = self._rounds * self._local_epochs
        else:
            unit = (round_ - 1) * self._local_epochs * self._per_epoch + batch
            units = self._rounds * self._local_epochs * self._per_epoch
        return self._settings.lr * rate_factor(schedule, unit, units)
