"""Dropout whose masks do not depend on where or when a block runs.

torch draws dropout masks from one generator per process: moving a block to another process, or running two clients'
blocks in two threads, changes them. Here every mask comes from its own generator, seeded by (seed, client, round,
batch, block, position in the block, use), drawn for each member of a merged batch by itself. Masks are drawn on the
CPU, uniformly and then compared, so that they are the same on every device and instruction set.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dynsl_app.errors import ModelError
from dynsl_app.model.replace import replace_modules
from dynsl_app.plan import BatchKey
from dynsl_app.seeds import derive_seed

_CACHE = "_dynsl_dropouts"


class Dropout(nn.Module):
    """Zero elements with probability ``p`` in training and scale the rest by 1/(1-p); (B, …) to (B, …).

    Parameters
    ----------
    p
        In [0, 1).
    dims
        How many leading dimensions are drawn independently: None for all (``nn.Dropout``), 2 for whole channels
        (``nn.Dropout2d``), 1 for whole samples (stochastic depth by row).

    Attributes
    ----------
    place
        What seeds the masks besides the batch: l, and the number of this dropout in block l, from 0. None until
        :func:`place_dropouts`.

    Raises
    ------
    ModelError
        On a forward in training that was not seeded, or seeded for another number of samples.
    """

    def __init__(self, p: float = 0.5, dims: int | None = None) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ModelError(f"dropout of {p} is outside [0, 1)")
        self.p = p
        self.dims = dims
        self.place: tuple[int, int] | None = None
        self._members: tuple[tuple[BatchKey, int], ...] | None = None
        self._uses = 0

    def seed(self, members: Sequence[tuple[BatchKey, int]]) -> None:
        """Set whose samples come next; see :func:`seed_dropout`."""
        self._members = tuple(members)
        self._uses = 0

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        if not self.training or self.p == 0:
            return x
        return x * self._mask(x)

    def extra_repr(self) -> str:
        return f"p={self.p}, dims={self.dims}, place={self.place}"

    def _mask(self, x: Tensor) -> Tensor:
        if self._members is None or self.place is None:
            raise ModelError(
                "dropout in training was not told whose batch this is; call seed_dropout(block, members) before forward"
            )
        samples = sum(size for _, size in self._members)
        if samples != len(x):
            raise ModelError(
                f"block {self.place[0]}: dropout was seeded for {samples} samples and got {len(x)}; call "
                f"seed_dropout(block, members) for every batch"
            )
        dims = x.dim() if self.dims is None else self.dims
        tail = (*x.shape[1:dims], *[1] * (x.dim() - dims))
        draws = [
            torch.rand((size, *tail), generator=_generator(key, self.place, self._uses)) for key, size in self._members
        ]
        # A module that is called twice in one forward must not repeat its mask.
        self._uses += 1
        kept = (draws[0] if len(draws) == 1 else torch.cat(draws)) >= self.p
        return kept.to(x.device).to(x.dtype).div_(1 - self.p)


def seed_dropout(block: nn.Module, members: Sequence[tuple[BatchKey, int]]) -> None:
    """Set what every dropout in ``block`` (a block, a chain or a whole model) draws in the next forward.

    Parameters
    ----------
    members
        Per member of the batch, in order: its key and its number of samples. They add up to the batch.
    """
    for dropout in _dropouts(block):
        dropout.seed(members)


def place_dropouts(block: nn.Module, index: int) -> None:
    """Give every dropout in block l = ``index`` its place, which its masks are seeded by.

    Raises
    ------
    ModelError
        If one is in another block too: it could not be in two places once the model is cut.
    """
    for position, dropout in enumerate(_dropouts(block)):
        if dropout.place is not None and dropout.place[0] != index:
            raise ModelError(f"one dropout module is in blocks {dropout.place[0]} and {index}; make one for each")
        dropout.place = index, position


def replace_dropout(model: nn.Module) -> None:
    """Replace torch's dropout in ``model`` by ours, in place; refuse other layers that draw at random in training.

    Raises
    ------
    ModelError
        For a random layer that cannot be replaced, by its path: its draws would depend on where it runs.
    """
    replace_modules(model, _substitute)


def _generator(key: BatchKey, place: tuple[int, int], use: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(derive_seed(key.seed, "dropout", key.client, key.round, key.batch, *place, use))
    return generator


def _dropouts(module: nn.Module) -> list[Dropout]:
    # Asked once per block and batch, so the walk is done once; the list is copied along when a block is.
    found = module.__dict__.get(_CACHE)
    if found is None:
        found = [m for m in module.modules() if isinstance(m, Dropout) and m.p > 0]
        module.__dict__[_CACHE] = found
    return list(found)


_CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def _substitute(path: str, module: nn.Module) -> nn.Module | None:
    reason: str | None = None
    if type(module) is nn.Dropout:
        return Dropout(module.p)
    if type(module) in _CHANNELWISE:
        assert isinstance(module, _CHANNELWISE)
        return Dropout(module.p, dims=2)
    if _is_stochastic_depth(module):
        if module.mode == "row":
            return Dropout(float(module.p), dims=1)  # type: ignore[arg-type]
        reason = "drops whole batches; use mode='row'"
    elif isinstance(module, nn.modules.dropout._DropoutNd):
        reason = "has no counterpart here; use nn.Dropout or dynsl_app.model.dropout.Dropout"
    elif isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
        reason = "drops inside its own kernel; set its dropout to 0"
    elif isinstance(module, _RANDOM):
        reason = "draws at random in training; use a deterministic layer"
    if reason:
        raise ModelError(
            f"{path} ({type(module).__name__}) {reason}. Its draws come from torch's process-wide generator, so "
            f"results would depend on where the block runs"
        )
    return None


def _is_stochastic_depth(module: nn.Module) -> bool:
    # By name: torchvision takes a second to import and is in memory already if a model uses it.
    return f"{type(module).__module__}.{type(module).__name__}" == "torchvision.ops.stochastic_depth.StochasticDepth"
