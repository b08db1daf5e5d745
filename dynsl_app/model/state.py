"""A block's parameters, buffers and optimizer state as one movable value.

Names are the plain model's own. Shapes and dtypes are kept as they are, 0-d counters included.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dynsl_app.errors import ModelError
from dynsl_app.model.chain import Block


def block_weights(block: Block) -> dict[str, Tensor]:
    """Parameters and all buffers (persistent or not) by the plain model's names; tensors are not copied."""
    weights = {name: parameter.detach() for name, parameter in block.named_parameters_global()}
    weights.update(block.named_buffers_global())
    return weights


def load_block_weights(block: Block, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a block.

    Raises
    ------
    ModelError
        A name is missing or a shape or dtype differs: the two sides built different models.
    """
    with torch.no_grad():
        for name, own in block_weights(block).items():
            value = weights.get(name)
            if value is None:
                raise ModelError(f"block {block.index}: {name} is missing; both sides must build the same model")
            if value.shape != own.shape or value.dtype != own.dtype:
                raise ModelError(
                    f"block {block.index}: {name} is {value.dtype}{list(value.shape)}, expected "
                    f"{own.dtype}{list(own.shape)}; both sides must build the same model for the same data"
                )
            own.copy_(value)


def optimizer_state(block: Block, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """``<parameter name>/<key>`` to tensor: momentum or moments and step; tensors are not copied."""
    state: dict[str, Tensor] = {}
    for name, parameter in block.named_parameters_global():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                state[f"{name}/{key}"] = torch.as_tensor(value)
    return state


def load_optimizer_state(block: Block, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Continue with a state that :func:`optimizer_state` gave; parameters without one start afresh.

    Raises
    ------
    ModelError
        The state belongs to another parameter or another optimizer's shapes.
    """
    parameters = dict(block.named_parameters_global())
    optimizer.state.clear()
    for path, value in state.items():
        name, _, key = path.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or (value.dim() > 0 and value.shape != parameter.shape):
            raise ModelError(f"block {block.index}: optimizer state {path} fits no parameter of this block")
        # Step counters stay on the CPU, as torch makes them; what has the parameter's shape goes with it.
        place = parameter.device if value.dim() > 0 else torch.device("cpu")
        optimizer.state[parameter][key] = value.detach().clone().to(place)


def split_by_block(state: Mapping[str, Tensor], blocks: Iterable[Block]) -> dict[int, dict[str, Tensor]]:
    """Group weights or optimizer state by the block that owns the parameter or buffer."""
    owner = {name: block.index for block in blocks for name in block_weights(block)}
    groups: dict[int, dict[str, Tensor]] = {}
    for path, value in state.items():
        name = path.partition("/")[0]
        if name in owner:
            groups.setdefault(owner[name], {})[path] = value
    return groups
