"""Layer-wise aggregation of what the clients trained, wherever it was (ALGORITHMS §8)."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dynsl_app.model.chain import Block

Contribution = tuple[int, Mapping[str, Tensor]]
"""Samples S_i and weights by name."""


def average(contributions: Sequence[Contribution]) -> dict[str, Tensor]:
    """θ = Σ S_i θ_i / Σ S_i, accumulated in float64 in the order given.

    The order must be that of client ids, so that the result does not depend on arrival. Averaging identical
    copies returns their bits. Integer and boolean entries: equal ones are kept, else the maximum (choice).

    Raises
    ------
    ValueError
        There is nothing to average, or no samples.
    """
    total = sum(samples for samples, _ in contributions)
    if total <= 0:
        raise ValueError("nothing to average: no contribution has samples")
    result: dict[str, Tensor] = {}
    for name, first in contributions[0][1].items():
        values = [weights[name] for _, weights in contributions]
        if first.is_floating_point():
            accumulated = torch.zeros(first.shape, dtype=torch.float64)
            for (samples, _), value in zip(contributions, values, strict=True):
                accumulated.add_(value.detach().to("cpu", torch.float64), alpha=samples)
            result[name] = accumulated.div_(total).to(first.dtype)
        else:
            highest = values[0].detach().to("cpu")
            for value in values[1:]:
                highest = torch.maximum(highest, value.detach().to("cpu"))
            result[name] = highest.clone()
    return result


def pool_statistics(contributions: Sequence[Contribution], names: Iterable[str]) -> dict[str, Tensor]:
    """Running variances with the spread between clients: Σ w (σ² + μ²) − (Σ w μ)² (``server.batchnorm=server``).

    Parameters
    ----------
    contributions
        In order of client id.
    names
        Of the ``running_var`` buffers; ``running_mean`` stands beside each.
    """
    total = sum(samples for samples, _ in contributions)
    pooled: dict[str, Tensor] = {}
    for name in names:
        mean_name = name.removesuffix("running_var") + "running_mean"
        first = contributions[0][1][name]
        mean = torch.zeros(first.shape, dtype=torch.float64)
        square = torch.zeros(first.shape, dtype=torch.float64)
        for samples, weights in contributions:
            mu = weights[mean_name].detach().to("cpu", torch.float64)
            mean.add_(mu, alpha=samples / total)
            square.add_(weights[name].detach().to("cpu", torch.float64) + mu * mu, alpha=samples / total)
        pooled[name] = (square - mean * mean).clamp_(min=0).to(first.dtype)
    return pooled


def batchnorm_names(blocks: Iterable[Block]) -> set[str]:
    """Names of all parameters and buffers of the BatchNorm layers in ``blocks``."""
    names: set[str] = set()
    for block in blocks:
        for path, module in block.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                own = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
                names.update(block.path(f"{path}.{name}") for name in own)
    return names


def private_average(
    contributions: Sequence[Contribution], batchnorm: Collection[str], policy: str
) -> dict[str, Tensor]:
    """Average blocks 1..b under a BatchNorm policy.

    ``average`` averages running statistics like weights: a mean of variances ignores the spread between
    clients. ``server`` pools the variances instead. ``local`` averages too, for the merged model only: each
    client goes on with its own (FedBN, Li et al. 2021); keeping them is the caller's part.
    """
    merged = average(contributions)
    if policy == "server":
        variances = [name for name in merged if name in batchnorm and name.endswith("running_var")]
        merged.update(pool_statistics(contributions, variances))
    return merged
