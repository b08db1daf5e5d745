"""Making a profile: by training a few batches on copies, or by counting operations."""

import copy
import platform
import statistics
from collections.abc import Callable, Sequence

import psutil
import torch
from torch import Tensor, nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError, SettingsError
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.optim import make_optimizer
from dynsl_app.model.probe import probe
from dynsl_app.model.segment import Observer, Segment, mean_loss
from dynsl_app.plan import BatchKey
from dynsl_app.settings import OptimizerSettings
from dynsl_app.telemetry.meter import Phases, meter_for
from dynsl_app.telemetry.operations import OPERATIONS_PER_BYTE, Forward, trace
from dynsl_app.telemetry.profile import BlockProfile, Identity, Profile, Source
from dynsl_app.wire.base import tensor_bytes

_SEED = 0
"""Of the made-up batches, and of dropout in them: nothing else draws from these."""

Progress = Callable[[int, int], None]
"""Told how many batches are done, and of how many."""


def identity_of(chain: Chain, spec: DataSpec, batch: int, model: str) -> Identity:
    """What a profile must be of to fit this model, data and batch."""
    blocks = tuple((_name(block), _elements(block)) for block in chain.span(0, len(chain)))
    return Identity(model, spec.shape, spec.classes, batch, blocks)


def measure(
    chain: Chain,
    spec: DataSpec,
    batch: int,
    optimizer: OptimizerSettings,
    *,
    model: str,
    batches: int = 5,
    device: str = "cpu",
    label: str | None = None,
    progress: Progress | None = None,
    around: Callable[[Observer], Observer] | None = None,
) -> Profile:
    """Train ``batches`` made-up batches and one before them that does not count; medians by block and phase.

    Works on copies, at learning rate 0: weights, running statistics and all generators that training uses stay as they
    are. The code that trains is the code that is measured, with this thread's number of torch threads.

    Parameters
    ----------
    batch
        Samples in a batch.
    model
        Name for :class:`~dynsl_app.telemetry.profile.Identity`.
    label
        The device's description; None: its kind and cores.
    progress
        Called after every batch that counts.
    around
        Puts another observer around the one that measures: an emulated device's.

    Raises
    ------
    ModelError
        If the model does not take such a batch, or it does not fit into memory.
    SettingsError
        If ``batches`` is below 1.
    """
    if batches < 1:
        raise SettingsError(f"batches={batches}: a profile needs at least one batch that counts")
    probe(chain, spec)
    generator = torch.Generator().manual_seed(_SEED)
    runs: list[dict[int, Phases]] = []
    try:
        x = torch.randn(batch, *spec.shape, generator=generator).to(device)
        y = torch.randint(spec.classes, (batch,), generator=generator).to(device)
        blocks = [block.to(device) for block in _copies(chain)]
        traced = trace(blocks, x)
        meter = meter_for(device)
        segment = Segment(blocks, optimizer, observer=around(meter) if around is not None else meter)
        for number in range(batches + 1):
            logits = segment.forward(x, _members(number, batch))
            segment.backward(mean_loss(logits, y))
            segment.step(rate=0.0)
            runs.append(meter.take_phases())
            if progress is not None and number:
                progress(number, batches)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _too_large(model, batch) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _too_large(model, batch) from error
    profiled = tuple(
        _block(block, optimizer, _median([run[block.index] for run in runs[1:]]), forward)
        for block, forward in zip(blocks, traced, strict=True)
    )
    return _profile("warmup", label or describe(device), identity_of(chain, spec, batch, model), optimizer, profiled)


def from_flops(
    chain: Chain,
    spec: DataSpec,
    batch: int,
    optimizer: OptimizerSettings,
    flops_per_s: float,
    *,
    model: str,
    label: str | None = None,
) -> Profile:
    """Operations of each block over a speed; backward counts as twice the forward.

    A guess of the curve's shape, for devices that cannot hold the whole model (see
    :class:`~dynsl_app.telemetry.operations.Forward`): the speed is soon corrected by
    :class:`~dynsl_app.telemetry.estimate.Slowdown`, the shape is not.

    Parameters
    ----------
    flops_per_s
        Operations per second, finite and positive; from the first batches, or any guess.

    Raises
    ------
    ModelError
        If the model does not take such a batch.
    SettingsError
        If the speed is none.
    """
    if not 0 < flops_per_s < float("inf"):
        raise SettingsError(f"a speed of {flops_per_s!r} operations per second is none; give a finite one above 0")
    blocks = chain.span(0, len(chain))
    profiled = []
    for block, whole in zip(blocks, forwards(chain, spec, batch), strict=True):
        # A block of views only (flatten) computes nothing, but takes some time.
        forward_s = max(1, whole.operations) / flops_per_s
        # A step reads weights, gradients and state, and writes weights and state.
        moved = 3 * tensor_bytes(block.parameters()) + 2 * _optimizer_bytes(block, optimizer)
        step_s = moved * OPERATIONS_PER_BYTE / flops_per_s
        profiled.append(_block(block, optimizer, Phases(forward_s, 2 * forward_s, step_s), whole))
    device = label or f"{flops_per_s:.3g} operations a second, assumed"
    return _profile("flops", device, identity_of(chain, spec, batch, model), optimizer, tuple(profiled))


def forwards(chain: Chain, spec: DataSpec, batch: int) -> list[Forward]:
    """What the training forward of one batch takes, block by block; nothing in the chain changes.

    Raises
    ------
    ModelError
        If the model does not take such a batch.
    """
    probe(chain, spec)
    # Two samples, which BatchNorm needs, stand for the batch: all counts are proportional to it.
    return [pair.scaled(batch / 2) for pair in trace(_copies(chain), torch.zeros(2, *spec.shape))]


def describe(device: str) -> str:
    """What a device is, without its name in any network."""
    place = torch.device(device)
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return f"{platform.machine()} CPU, {cores} core{'s' if cores > 1 else ''}"


def _copies(chain: Chain) -> list[Block]:
    copies = [copy.deepcopy(block) for block in chain.span(0, len(chain))]
    for block in copies:
        block.train()
    return copies


def _members(batch: int, size: int) -> list[tuple[BatchKey, int]]:
    return [(BatchKey(_SEED, client=0, round=0, batch=batch), size)]


def _median(phases: Sequence[Phases]) -> Phases:
    return Phases(
        statistics.median(each.forward_s for each in phases),
        statistics.median(each.backward_s for each in phases),
        statistics.median(each.step_s for each in phases),
    )


def _profile(
    source: Source, device: str, identity: Identity, optimizer: OptimizerSettings, blocks: tuple[BlockProfile, ...]
) -> Profile:
    return Profile(
        source=source,
        model=identity.model,
        shape=identity.shape,
        classes=identity.classes,
        batch=identity.batch,
        optimizer=optimizer.name,
        device=device,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        blocks=blocks,
    )


def _block(block: Block, optimizer: OptimizerSettings, times: Phases, forward: Forward) -> BlockProfile:
    return BlockProfile(
        name=_name(block),
        parameters=_elements(block),
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        step_s=times.step_s,
        parameter_bytes=tensor_bytes(block.parameters()),
        buffer_bytes=tensor_bytes(block.buffers()),
        optimizer_bytes=_optimizer_bytes(block, optimizer),
        saved_bytes=forward.saved_bytes,
        activation_bytes=forward.activation_bytes,
    )


def _name(block: Block) -> str:
    return ", ".join(path for path in block.paths if path)


def _elements(block: Block) -> int:
    return sum(parameter.numel() for parameter in block.parameters())


def _optimizer_bytes(block: Block, settings: OptimizerSettings) -> int:
    """Bytes of the optimizer's state once it has stepped, found by a step without memory behind it."""
    blank = [nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in block.parameters()]
    if not blank:
        return 0
    optimizer = make_optimizer(blank, settings)
    for parameter in blank:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    return tensor_bytes(value for value in values if isinstance(value, Tensor))


def _too_large(model: str, batch: int) -> ModelError:
    return ModelError(
        f"{model} with a batch of {batch} does not fit into this device's memory; lower data.batch, or take a profile "
        f"from a file or from FLOPs"
    )
