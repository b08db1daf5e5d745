"""The device's sensors, where there are some and where there are none."""

import math
from types import SimpleNamespace

import psutil
import pytest
import torch

from dynsl_app.telemetry.device import BOUNDS, DeviceSampler, believable, free_bytes


def test_every_device_tells_its_processor_and_memory():
    sample = DeviceSampler().sample()
    assert {"cpu_percent", "memory_available_bytes", "memory_total_bytes", "process_bytes"} <= sample.keys()
    assert 0 < sample["process_bytes"] < sample["memory_total_bytes"]
    assert 0 < sample["memory_available_bytes"] <= sample["memory_total_bytes"]
    assert not any(name.startswith("gpu") for name in sample)
    for name, value in sample.items():
        assert type(value) is float, name
        assert math.isfinite(value), name


def test_sensors_are_read(monkeypatch: pytest.MonkeyPatch):
    chip = [SimpleNamespace(current=41.0), SimpleNamespace(current=None), SimpleNamespace(current=63.5)]
    battery = SimpleNamespace(percent=80, power_plugged=False)
    counters = SimpleNamespace(bytes_sent=7, bytes_recv=9)
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: {"cpu": chip, "disk": []}, raising=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    monkeypatch.setattr(psutil, "net_io_counters", lambda: counters)
    sample = DeviceSampler().sample()
    assert sample["temperature_c"] == 63.5
    assert (sample["battery_percent"], sample["battery_plugged"]) == (80.0, 0.0)
    assert (sample["net_sent_bytes"], sample["net_received_bytes"]) == (7.0, 9.0)


def test_what_a_system_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch):
    battery = SimpleNamespace(percent=55.5, power_plugged=None)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    sample = DeviceSampler().sample()
    assert sample["battery_percent"] == 55.5
    assert not {"battery_plugged", "temperature_c", "net_sent_bytes"} & sample.keys()


def test_a_sensor_that_fails_never_raises_and_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def broken() -> None:
        asked.append(1)
        raise OSError("no such sensor")

    for name in ("sensors_temperatures", "sensors_battery"):
        monkeypatch.setattr(psutil, name, broken, raising=False)
    sampler = DeviceSampler()
    for _ in range(3):
        assert "memory_total_bytes" in sampler.sample()
    assert len(asked) == 2


def test_a_gpu_is_asked_only_where_blocks_are_on_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2)

    def no_library(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", no_library)
    sample = DeviceSampler("cuda:0").sample()
    assert sample["gpu_memory_free_bytes"] == 3.0
    assert sample["gpu_memory_total_bytes"] == 8.0
    assert sample["gpu_process_bytes"] == 2.0
    assert "gpu_percent" not in sample


def test_all_that_a_device_tells_is_believed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 50)
    monkeypatch.setattr(
        psutil, "sensors_battery", lambda: SimpleNamespace(percent=5, power_plugged=True), raising=False
    )
    temperatures = {"cpu": [SimpleNamespace(current=41.0)]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: temperatures, raising=False)
    sample = DeviceSampler("cuda:0").sample()
    assert sample.keys() == BOUNDS.keys()
    assert believable(3, sample) == (sample, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_percent", math.nan),
        ("cpu_percent", 101.0),
        ("cpu_percent", [1.0, 2.0]),
        ("battery_plugged", "yes"),
        ("memory_total_bytes", 0.0),
        ("memory_available_bytes", -1),
        ("net_sent_bytes", math.inf),
        ("process_bytes", 10**400),
        ("temperature_c", None),
        ("humidity_percent", 40.0),
    ],
)
def test_nonsense_is_named_and_ignored(name: str, value: object):
    kept, complaint = believable(3, {"gpu_percent": 7, name: value})
    assert kept == {"gpu_percent": 7.0}
    assert complaint is not None
    assert complaint.startswith("client 3: ")
    assert name in complaint


def test_much_nonsense_makes_no_long_message():
    sample = {f"x{number}" * 1000: 0.0 for number in range(1000)} | {"cpu_percent": [0.0] * 1000}
    kept, complaint = believable(3, sample)
    assert kept == {}
    assert complaint is not None
    assert len(complaint) < 400
    assert complaint.endswith("and 998 more")


def test_free_memory_of_the_machine_and_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=11))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    assert (free_bytes("cpu"), free_bytes("cuda:0")) == (11, 3)


def test_free_memory_that_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch):
    def broken() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", broken)
    assert free_bytes("cpu") is None
    assert free_bytes("no such device") is None
