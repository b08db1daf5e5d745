"""What a block's forward takes, found by running it once: operations, and bytes kept and given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from dynsl_app.model.chain import Block
from dynsl_app.model.dropout import seed_dropout
from dynsl_app.plan import BatchKey
from dynsl_app.wire.base import tensor_bytes

OPERATIONS_PER_BYTE = 10
"""How many operations take the time of moving a byte to or from memory (choice: about that, from a small ARM board to
a data centre's GPU). It prices what is not arithmetic: normalisation, activations, pooling, optimizer steps."""


@dataclass(frozen=True)
class Forward:
    """What one block's training forward of one batch takes.

    Attributes
    ----------
    operations
        Arithmetic, by torch's formulas, and for everything else the bytes it moves times :data:`OPERATIONS_PER_BYTE`.
    flops
        Arithmetic alone: two a multiplication of convolutions, linear layers, attention.
    saved_bytes
        What is kept for the backward, weights apart.
    activation_bytes
        The output's.
    """

    operations: int
    flops: int
    saved_bytes: int
    activation_bytes: int

    def scaled(self, factor: float) -> Self:
        """For a batch ``factor`` times as large."""
        sizes = (self.operations, self.flops, self.saved_bytes, self.activation_bytes)
        return type(self)(*(round(size * factor) for size in sizes))


class _Operations(TorchDispatchMode):
    """Counts this thread's operations, by torch's formulas or the bytes they move.

    ``torch.utils.flop_counter.FlopCounterMode`` uses the same formulas, but hooks all modules of the process, and other
    clients may be training in other threads.
    """

    _FORMULAS: Mapping[Any, Callable[..., int]] = {
        # torch has it for attention on a GPU only.
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
        **flop_registry,
    }

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.other = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self._FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        elif not func.is_view:
            results = out if isinstance(out, tuple | list) else (out,)
            moved = 2 * tensor_bytes(each for each in results if isinstance(each, Tensor))
            self.other += moved * OPERATIONS_PER_BYTE
        return out


def trace(blocks: Sequence[Block], x: Tensor) -> list[Forward]:
    """Run one training forward of ``x`` (B, …) through the blocks, which must be in training mode, and note each.

    Dropout draws from a generator of its own; running statistics do change.
    """
    counted = {p.untyped_storage().data_ptr() for block in blocks for p in block.parameters()}
    members = [(BatchKey(seed=0, client=0, round=0, batch=0), len(x))]
    traces = []
    for block in blocks:
        saved = 0

        def note(tensor: Tensor) -> Tensor:
            nonlocal saved
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                saved += storage.nbytes()
            # Itself, an output would hold the graph that holds it, out of the garbage collector's sight.
            return tensor.detach()

        seed_dropout(block, members)
        with saved_tensors_hooks(note, lambda tensor: tensor), _Operations() as operations:
            x = block(x)
        traces.append(Forward(operations.flops + operations.other, operations.flops, saved, tensor_bytes([x])))
    return traces
