"""Orders and replies survive the way through Flower."""

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dynsl_app.errors import SettingsError, WireError
from dynsl_app.flower_messages import pack, unpack
from dynsl_app.orders import EvaluateOrder, EvaluateReply, Failure, Order, Reply, TrainOrder, TrainReply
from dynsl_app.settings import DataSettings, ModelSettings, OptimizerSettings, Settings
from dynsl_app.telemetry.device import believable
from dynsl_app.wire.base import Endpoint

_DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def _through_flower(content: RecordDict) -> RecordDict:
    """Serialize and read back as a deployment does."""
    objects = {name: item.deflate() for name, item in get_all_nested_objects(content).items()}
    arrived = inflate_object_from_contents(content.object_id, objects)
    assert isinstance(arrived, RecordDict)
    return arrived


def _random(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    elements = torch.empty(shape, dtype=dtype)
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (elements.nbytes,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape) if data.numel() else elements


def _bits(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def _comparable(value: Order | Reply) -> dict[str, object]:
    plain = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: _bits(held) if name in ("weights", "optimizer") else held for name, held in plain.items()}


def _order(**changes: object) -> TrainOrder:
    order = TrainOrder(
        client=3,
        round=2,
        cut=1,
        boundary=4,
        weights={"conv1.weight": torch.randn(2, 3), "bn1.num_batches_tracked": torch.tensor(7)},
        optimizer={"block1/conv1.weight/exp_avg": torch.randn(2, 3)},
        endpoint=Endpoint("grpc", "127.0.0.1:4000", b"-----BEGIN CERTIFICATE-----"),
        token="secret",
        settings=Settings(),
    )
    return dataclasses.replace(order, **changes)


@pytest.mark.parametrize(
    "value",
    [
        _order(),
        _order(endpoint=Endpoint("inprocess", "here"), optimizer={}),
        TrainReply(3, 2, 1, {"w": torch.randn(4)}, {}, 17, {"compute_s": 1.5, "nothing": float("nan")}),
        TrainReply(3, 2, 1, {}, {"b/w/step": torch.tensor(3.0)}, 1),
        TrainReply(3, 2, 1, {}, {}, 1, {}, {"cpu_percent": 12.5, "memory_total_bytes": 2.0**34}),
        EvaluateOrder(0, 5, {"w": torch.randn(4).bfloat16()}, Settings(rounds=9)),
        EvaluateReply(1, 5, 10, 9, 3.25),
        Failure(2, "no data in /data: put some there"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_round_trip(value: Order | Reply) -> None:
    """Every order and reply arrives as it was."""
    arrived = unpack(_through_flower(pack(value)))
    assert type(arrived) is type(value)
    # A NaN is unequal to itself, so compare text.
    assert repr(_comparable(arrived)) == repr(_comparable(value))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@given(shape=st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """User cases 15 and 18: dtypes that numpy lacks, 0-d and empty tensors."""
    weights = {"w": _random(dtype, shape)}
    arrived = unpack(_through_flower(pack(TrainReply(0, 1, 1, weights, {}, 1))))
    assert isinstance(arrived, TrainReply)
    assert _bits(arrived.weights) == _bits(weights)


def test_strided_tensors_arrive_whole_and_writable() -> None:
    """Views are sent by value, and what arrives can be trained in place."""
    weights = {"w": torch.arange(12.0).reshape(3, 4).t()[1:]}
    arrived = unpack(_through_flower(pack(_order(weights=weights))))
    assert isinstance(arrived, TrainOrder)
    assert torch.equal(arrived.weights["w"], weights["w"])
    arrived.weights["w"].add_(1)


def test_settings_arrive_with_their_aliases() -> None:
    """User case 21: the run's settings reach the client inside its order, nested ones and ``_target_`` included."""
    settings = Settings(
        seed=5,
        model=ModelSettings(**{"_target_": "pkg.net", "params": {"width": [1, 2], "deep": {"a": None}}}),
        data=DataSettings(shape=(1, 8, 8), augment=["flip"]),
        optimizer=OptimizerSettings(lr=1e-7, betas=(0.5, 0.75)),
    )
    arrived = unpack(_through_flower(pack(_order(settings=settings))))
    assert isinstance(arrived, TrainOrder)
    assert arrived.settings == settings


@pytest.mark.parametrize("value", [float("inf"), (1, 2), {"x"}], ids=repr)
def test_settings_that_would_change_on_the_way_are_refused(value: object) -> None:
    """JSON would turn an infinity into null and a tuple into a list, on the clients only."""
    with pytest.raises(SettingsError, match="cannot be sent"):
        pack(_order(settings=Settings(model=ModelSettings(params={"value": value}))))


def _reply(scalars: Mapping[str, object] | None = None, **records: object) -> RecordDict:
    full = {"client": 0, "round": 1, "cut": 1, "samples": 4, **(scalars or {})}
    return RecordDict(
        {
            "train_reply": ConfigRecord(full),
            "weights": ArrayRecord({}),
            "optimizer": ArrayRecord({}),
            "metrics": MetricRecord({}),
            **records,
        }
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (RecordDict({}), "is no order or reply"),
        (_reply({"samples": "many"}), "samples: str"),
        (_reply({"samples": True}), "samples: bool"),
        (_reply({"extra": 1}), "extra: int"),
        (_reply(metrics=MetricRecord({"m": [1.0]})), "metric m: list"),
        (RecordDict({"train_reply": ConfigRecord({"client": 0, "round": 1, "cut": 1, "samples": 4})}), "weights"),
        (RecordDict({"failure": ConfigRecord({"client": 0})}), "client: int"),
        (_reply(failure=ConfigRecord({"client": 0, "reason": "x"})), "failure"),
        (_reply(weights=ArrayRecord({"w": Array("float32", (2,), "dynsl.raw", bytes(4))})), "4 bytes for the tensor w"),
        (_reply(weights=ArrayRecord({"w": Array("float32", (-1, -1), "dynsl.raw", bytes(4))})), "tensor w"),
        (_reply(weights=ArrayRecord({"w": Array("float32", (10**15,), "dynsl.raw", b"")})), "0 bytes"),
        (_reply(weights=ArrayRecord({"w": Array("load", (), "dynsl.raw", b"")})), "dynsl.raw of load"),
        (_reply(weights=ArrayRecord({"w": Array(torch.ones(2).numpy())})), "numpy"),
    ],
)
def test_malformed_contents_are_refused(content: RecordDict, says: str) -> None:
    """Whatever a peer sends is checked before it is used, without unpickling or allocating what it claims."""
    with pytest.raises(WireError, match=says) as error:
        unpack(content)
    assert "same version" in str(error.value)


@pytest.mark.parametrize("told", [{"cpu_percent": [1.0]}, {"cpu_percent": -7}, {"mood": 1.0}], ids=repr)
def test_nonsense_of_a_device_is_passed_on_to_be_ignored(told: Mapping[str, float]) -> None:
    """It is no reason to lose what the client has trained."""
    arrived = unpack(_reply(device=MetricRecord(told)))
    assert isinstance(arrived, TrainReply)
    assert arrived.device == told
    assert believable(0, arrived.device)[0] == {}


def test_a_reply_without_a_device_is_one() -> None:
    arrived = unpack(_reply())
    assert isinstance(arrived, TrainReply)
    assert arrived.device == {}
