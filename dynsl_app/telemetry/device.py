"""What a device says of itself: processor, memory, temperature, battery, network, GPU; and what of it is believed."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import psutil
import torch

_log = logging.getLogger(__name__)

_LARGEST_BYTES = float(2**60)

BOUNDS: Mapping[str, tuple[float, float]] = {
    "cpu_percent": (0.0, 100.0),
    "memory_available_bytes": (0.0, _LARGEST_BYTES),
    "memory_total_bytes": (1.0, _LARGEST_BYTES),
    "process_bytes": (0.0, _LARGEST_BYTES),
    "temperature_c": (-100.0, 300.0),
    "battery_percent": (0.0, 100.0),
    "battery_plugged": (0.0, 1.0),
    "net_sent_bytes": (0.0, _LARGEST_BYTES),
    "net_received_bytes": (0.0, _LARGEST_BYTES),
    "gpu_percent": (0.0, 100.0),
    "gpu_memory_free_bytes": (0.0, _LARGEST_BYTES),
    "gpu_memory_total_bytes": (1.0, _LARGEST_BYTES),
    "gpu_process_bytes": (0.0, _LARGEST_BYTES),
}
"""All that a sample may hold, and from what to what a value is believed (choice)."""

_NAMED = 3
"""Wrong values of a sample that are named; the rest is counted."""


class DeviceSampler:
    """Reads the device's sensors; what a device does not have is left out.

    Parameters
    ----------
    device
        Where blocks run; a GPU is asked only if it is one.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._gpu = torch.device(device) if torch.device(device).type == "cuda" else None
        self._process = psutil.Process()
        self._absent: set[Callable[[], Mapping[str, float]]] = set()
        # The first call has nothing to compare with and answers 0; later ones tell the time since the one before.
        psutil.cpu_percent(interval=None)

    def sample(self) -> dict[str, float]:
        """What there is to read now, never waiting and never raising.

        Returns
        -------
        dict
            Some of :data:`BOUNDS`.
            ``cpu_percent`` (of all cores, since the last call), ``memory_available_bytes``, ``memory_total_bytes``,
            ``process_bytes``, ``temperature_c`` (the hottest), ``battery_percent``, ``battery_plugged`` (0 or 1),
            ``net_sent_bytes``, ``net_received_bytes`` (since boot), ``gpu_percent``, ``gpu_memory_free_bytes``,
            ``gpu_memory_total_bytes``, ``gpu_process_bytes``.
        """
        found: dict[str, float] = {}
        for read in self._readers():
            if read in self._absent:
                continue
            try:
                found.update(read())
            except Exception as error:  # a sensor may fail in any way; training does not depend on it
                self._absent.add(read)
                _log.debug("%s cannot be read and is left out: %s", read.__name__, error)
        return found

    def _readers(self) -> Iterator[Callable[[], Mapping[str, float]]]:
        yield from (_processor, _memory, self._process_memory, _temperature, _battery, _network)
        if self._gpu is not None:
            yield from (self._gpu_memory, self._gpu_use)

    def _process_memory(self) -> Mapping[str, float]:
        return {"process_bytes": float(self._process.memory_info().rss)}

    def _gpu_memory(self) -> Mapping[str, float]:
        free, total = torch.cuda.mem_get_info(self._gpu)
        return {
            "gpu_memory_free_bytes": float(free),
            "gpu_memory_total_bytes": float(total),
            "gpu_process_bytes": float(torch.cuda.memory_reserved(self._gpu)),
        }

    def _gpu_use(self) -> Mapping[str, float]:
        # Needs NVIDIA's management library, which not every installation has.
        return {"gpu_percent": float(torch.cuda.utilization(self._gpu))}


def believable(client: int, sample: Mapping[str, object]) -> tuple[dict[str, float], str | None]:
    """What of a client's sample is believed, and what is wrong with the rest, in words.

    Parameters
    ----------
    sample
        As it came: any names, any values.
    """
    kept: dict[str, float] = {}
    wrong: list[str] = []
    for name, (low, high) in BOUNDS.items():
        value = sample.get(name)
        if isinstance(value, int | float) and low <= value <= high:  # also refuses NaN
            kept[name] = float(value)
        elif name in sample:
            wrong.append(f"{name}={value!r:.40} is not in {low:g}..{high:g}")
    unknown = len(sample.keys() - BOUNDS.keys())
    wrong += [f"{name!r:.40} is unknown" for name in islice((n for n in sample if n not in BOUNDS), _NAMED)]
    if not wrong:
        return kept, None
    named = wrong[:_NAMED]
    more = len(wrong) - len(named) + max(0, unknown - _NAMED)
    rest = f" and {more} more" if more else ""
    return kept, f"client {client}: of what it tells of its device, this was ignored: {', '.join(named)}{rest}"


def free_bytes(device: str = "cpu") -> int | None:
    """Memory that training on ``device`` could take now; None where it cannot be told.

    Of a GPU its own, else the machine's: a container's limit is not seen.
    """
    try:
        place = torch.device(device)
        return torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else psutil.virtual_memory().available
    except Exception as error:  # like any sensor, it may fail in any way
        _log.debug("the free memory of %s cannot be read: %s", device, error)
        return None


def _processor() -> Mapping[str, float]:
    return {"cpu_percent": psutil.cpu_percent(interval=None)}


def _memory() -> Mapping[str, float]:
    memory = psutil.virtual_memory()
    return {"memory_available_bytes": float(memory.available), "memory_total_bytes": float(memory.total)}


def _temperature() -> Mapping[str, float]:
    sensors: Mapping[str, Any] = _sensor("sensors_temperatures") or {}
    celsius = [entry.current for entries in sensors.values() for entry in entries if entry.current is not None]
    return {"temperature_c": float(max(celsius))} if celsius else {}


def _battery() -> Mapping[str, float]:
    battery = _sensor("sensors_battery")
    if battery is None:
        return {}
    plugged = {} if battery.power_plugged is None else {"battery_plugged": float(battery.power_plugged)}
    return {"battery_percent": float(battery.percent), **plugged}


def _network() -> Mapping[str, float]:
    counters = psutil.net_io_counters()
    if counters is None:
        return {}
    return {"net_sent_bytes": float(counters.bytes_sent), "net_received_bytes": float(counters.bytes_recv)}


def _sensor(name: str) -> Any:
    """What a psutil function that not every system has answers; None where it is missing."""
    read = getattr(psutil, name, None)
    return None if read is None else read()
