"""What a client's frame must be before the server works on it; whatever is not raises WireError."""

import torch
from torch import Tensor

from dynsl_app.errors import WireError
from dynsl_app.model.probe import CutShape
from dynsl_app.wire.base import Frame


def batch_tensors(frame: Frame, cut: int, shape: CutShape, most: int, classes: int) -> tuple[Tensor, Tensor]:
    """Activation and target of a batch at ``cut``.

    Parameters
    ----------
    shape
        What one sample is at the cut.
    most
        Samples that a batch may have.
    classes
        Targets are 0..classes-1.

    Raises
    ------
    WireError
        Naming client, batch, cut and what differs.
    """
    activation, target = frame.tensors.get("activation"), frame.tensors.get("target")
    where = f"client {frame.client}, batch {frame.batch}, cut {cut}"
    if activation is None or target is None:
        raise WireError(f"{where}: an activation and its target are expected")
    if activation.shape[1:] != shape.shape or activation.dtype != shape.dtype or not 1 <= len(activation) <= most:
        raise WireError(
            f"{where}: the activation is {activation.dtype}{list(activation.shape)}, expected {shape.dtype}"
            f"[1..{most}, {', '.join(map(str, shape.shape))}]; client and server must build the same model"
        )
    if target.dtype != torch.int64 or target.shape != activation.shape[:1]:
        raise WireError(f"{where}: the target is {target.dtype}{list(target.shape)}, expected int64, one a sample")
    if bool((target < 0).any()) or bool((target >= classes).any()):
        raise WireError(f"{where}: a target is outside 0..{classes - 1}; the client's data has other classes")
    return activation, target


def progress_numbers(frame: Frame, most: int) -> tuple[int, float, int]:
    """Samples, mean loss and correct predictions that a fully local client reports of one batch."""
    samples, loss, correct = (frame.meta.get(name) for name in ("samples", "loss", "correct"))
    if not (type(samples) is int and type(correct) is int and isinstance(loss, float)):
        raise WireError(f"client {frame.client}: progress of batch {frame.batch} without samples, loss and correct")
    if not (1 <= samples <= most and 0 <= correct <= samples):
        raise WireError(
            f"client {frame.client}: progress of batch {frame.batch} claims {correct} correct of {samples} samples; "
            f"a batch has 1..{most}"
        )
    return samples, loss, correct
