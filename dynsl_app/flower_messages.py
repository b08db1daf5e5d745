"""Orders and replies as the contents of Flower messages, and back.

One ``RecordDict`` holds a ``ConfigRecord`` named after the value's kind (``train_order`` …) with its scalars, and
an ``ArrayRecord`` for each set of tensors.

Tensors travel as raw bytes with their dtype and shape, not through Flower's own conversion: that goes by way of
numpy, which has no bfloat16. 0-d buffers (``num_batches_tracked``) keep their shape.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from dynsl_app.errors import SettingsError, WireError
from dynsl_app.orders import EvaluateOrder, EvaluateReply, Failure, Order, Reply, TrainOrder, TrainReply
from dynsl_app.settings import Settings
from dynsl_app.validate import from_json, to_json
from dynsl_app.wire.base import Endpoint

_RAW = "dynsl.raw"
"""Flower's ``stype`` of our arrays: little-endian elements in row-major order."""

_SCALARS: Mapping[str, Mapping[str, type]] = {
    "train_order": {
        "client": int,
        "round": int,
        "cut": int,
        "boundary": int,
        "scheme": str,
        "address": str,
        "certificate": bytes,
        "token": str,
        "settings": str,
        "profile": bool,
    },
    "train_reply": {"client": int, "round": int, "cut": int, "samples": int},
    "evaluate_order": {"client": int, "round": int, "settings": str},
    "evaluate_reply": {"client": int, "round": int, "samples": int, "correct": int, "loss_sum": float},
    "failure": {"client": int, "reason": str},
}
"""What the ``ConfigRecord`` of each kind holds; an absent certificate is empty."""


def pack(value: Order | Reply) -> RecordDict:
    """Turn an order or a reply into the content of a Flower message.

    Raises
    ------
    SettingsError
        If the settings hold a value that would not arrive as it is.
    """
    match value:
        case TrainOrder():
            endpoint = value.endpoint
            return RecordDict(
                {
                    "train_order": _scalars(
                        "train_order",
                        value,
                        scheme=endpoint.scheme,
                        address=endpoint.address,
                        certificate=endpoint.certificate or b"",
                        settings=_settings_to_json(value.settings),
                    ),
                    "weights": _to_arrays(value.weights),
                    "optimizer": _to_arrays(value.optimizer),
                }
            )
        case TrainReply():
            return RecordDict(
                {
                    "train_reply": _scalars("train_reply", value),
                    "weights": _to_arrays(value.weights),
                    "optimizer": _to_arrays(value.optimizer),
                    "metrics": MetricRecord({name: float(number) for name, number in value.metrics.items()}),
                    "device": MetricRecord({name: _number(number) for name, number in value.device.items()}),
                }
            )
        case EvaluateOrder():
            settings = _settings_to_json(value.settings)
            return RecordDict(
                {
                    "evaluate_order": _scalars("evaluate_order", value, settings=settings),
                    "weights": _to_arrays(value.weights),
                }
            )
        case EvaluateReply():
            return RecordDict({"evaluate_reply": _scalars("evaluate_reply", value, loss_sum=float(value.loss_sum))})
        case Failure():
            return RecordDict({"failure": _scalars("failure", value)})


def unpack(content: RecordDict) -> Order | Reply:
    """Read what :func:`pack` made.

    Raises
    ------
    WireError
        If the content is none of ours, lacks something, or holds a value of another type.
    SettingsError
        If this program does not accept the order's settings.
    """
    kinds = [kind for kind in _SCALARS if kind in content.config_records]
    if len(kinds) != 1:
        raise _malformed(f"has the records {sorted(content)}")
    (kind,) = kinds
    scalars: dict[str, Any] = dict(content.config_records[kind])
    types = {name: type(value) for name, value in scalars.items()}
    if types != _SCALARS[kind]:
        found = ", ".join(f"{name}: {held.__name__}" for name, held in types.items())
        raise _malformed(f"of kind {kind} holds {found}")
    if kind == "train_order":
        scheme, address, certificate = (scalars.pop(name) for name in ("scheme", "address", "certificate"))
        return TrainOrder(
            endpoint=Endpoint(scheme, address, certificate or None),
            settings=from_json(scalars.pop("settings")),
            weights=_from_arrays(content, "weights"),
            optimizer=_from_arrays(content, "optimizer"),
            **scalars,
        )
    if kind == "train_reply":
        return TrainReply(
            weights=_from_arrays(content, "weights"),
            optimizer=_from_arrays(content, "optimizer"),
            metrics=_metrics(content),
            # What is wrong with it is not the message's fault: whoever uses it names and ignores it.
            device=dict(content.metric_records.get("device", MetricRecord())),
            **scalars,
        )
    if kind == "evaluate_order":
        settings = from_json(scalars.pop("settings"))
        return EvaluateOrder(settings=settings, weights=_from_arrays(content, "weights"), **scalars)
    if kind == "evaluate_reply":
        return EvaluateReply(**scalars)
    return Failure(**scalars)


def _malformed(what: str) -> WireError:
    return WireError(
        f"a Flower message {what}, which is no order or reply of this program; "
        f"do the ServerApp and the ClientApp come from the same version?"
    )


def _scalars(kind: str, value: Order | Reply, **given: str | bytes | float) -> ConfigRecord:
    return ConfigRecord({name: given[name] if name in given else getattr(value, name) for name in _SCALARS[kind]})


def _metrics(content: RecordDict) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, number in content.metric_records.get("metrics", MetricRecord()).items():
        if not isinstance(number, float):
            raise _malformed(f"of kind train_reply holds the metric {name}: {type(number).__name__}")
        metrics[name] = number
    return metrics


def _number(value: object) -> float:
    assert isinstance(value, int | float), "a device's sensors give numbers"
    return float(value)


def _settings_to_json(settings: Settings) -> str:
    text = to_json(settings)
    # JSON has no infinity, and params may hold anything: what would change on its way is refused here.
    try:
        arrives = from_json(text) == settings
    except SettingsError:
        arrives = False
    if not arrives:
        raise SettingsError(
            "the settings cannot be sent to the clients as they are: JSON has no infinite numbers, and model.params "
            "and data.params may hold only numbers, strings, lists and mappings"
        )
    return text


def _to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: _to_array(tensor) for name, tensor in tensors.items()})


def _to_array(tensor: Tensor) -> Array:
    assert sys.byteorder == "little", "raw tensors are little-endian"
    elements = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    name = str(tensor.dtype).removeprefix("torch.")
    return Array(dtype=name, shape=tuple(tensor.shape), stype=_RAW, data=elements.numpy().tobytes())


def _from_arrays(content: RecordDict, record: str) -> dict[str, Tensor]:
    if record not in content.array_records:
        raise _malformed(f"without the record {record}")
    return {name: _from_array(name, array) for name, array in content.array_records[record].items()}


def _from_array(name: str, array: Array) -> Tensor:
    dtype = getattr(torch, array.dtype, None)
    if array.stype != _RAW or not isinstance(dtype, torch.dtype):
        raise _malformed(f"with the tensor {name} encoded as {array.stype} of {array.dtype}")
    if min(array.shape, default=0) < 0 or len(array.data) != math.prod(array.shape) * dtype.itemsize:
        raise _malformed(f"with {len(array.data)} bytes for the tensor {name}, {array.dtype} {list(array.shape)}")
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    # A copy, because the message's bytes cannot be written to, and the optimizer updates weights in place.
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)
