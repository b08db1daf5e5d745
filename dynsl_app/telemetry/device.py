"""What a device says of itself: processor, memory, temperature, battery, network, GPU."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil
import torch

_log = logging.getLogger(__name__)


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
