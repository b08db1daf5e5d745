"""A model as a chain of blocks 1..L that can be cut after any of them.

A block is a run of named stages of the plain model, so a parameter's name is always the plain model's own
(``layer1.0.conv1.weight``), whichever block and machine holds it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn


class Block(nn.Module):
    """Stages of the plain model that stay together, run in order.

    Parameters
    ----------
    index
        l, 1-based position in the chain.
    stages
        Pairs of the stage's path in the plain model and the stage. Stages without parameters may share a
        path prefix that the plain model does not have (``flatten``). The path of a stage that holds parameters of
        the plain model itself (a class token) is empty.
    """

    def __init__(self, index: int, stages: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.index = index
        self.paths = tuple(path for path, _ in stages)
        self.stages = nn.ModuleList(stage for _, stage in stages)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x

    def path(self, local: str) -> str:
        """The plain model's name for this block's ``stages.<k>.<rest>``."""
        _, k, *rest = local.split(".")
        return ".".join(part for part in (self.paths[int(k)], *rest) if part)

    def named_parameters_global(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the plain model's names, in definition order."""
        for name, parameter in self.named_parameters():
            yield self.path(name), parameter

    def named_buffers_global(self) -> Iterator[tuple[str, Tensor]]:
        """All buffers, persistent or not, under the plain model's names."""
        for name, buffer in self.named_buffers():
            yield self.path(name), buffer


class Chain(nn.Module):
    """Blocks 1..L of one model."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def block(self, index: int) -> Block:
        """Block l, 1-based."""
        block = self.blocks[index - 1]
        assert isinstance(block, Block)
        return block

    def span(self, low: int, high: int) -> list[Block]:
        """Blocks low+1..high."""
        return [self.block(index) for index in range(low + 1, high + 1)]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def merged_state(self) -> dict[str, Tensor]:
        """The whole model's ``state_dict`` under the plain model's names (tensors are not copied)."""
        state: dict[str, Tensor] = {}
        for index in range(1, len(self) + 1):
            block = self.block(index)
            state.update({block.path(name): value for name, value in block.state_dict().items()})
        return state

    def load_merged_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what :meth:`merged_state` gave, in place. Raises KeyError on a missing name."""
        for index in range(1, len(self) + 1):
            block = self.block(index)
            block.load_state_dict({name: state[block.path(name)] for name in block.state_dict()})
