"""A round of many batches takes no more memory than a short one."""

import gc

import psutil
import pytest

BATCHES = 2000
WARM = 400
"""Batches after which allocators, caches and files have settled."""


class Gauge:
    """A sink that reads the process's memory at some steps, and keeps nothing else."""

    def __init__(self, *marks: int) -> None:
        self._marks, self._steps = marks, 0
        self.resident: list[int] = []
        self.objects: list[int] = []

    def handle(self, event) -> None:
        if event["event"] == "step":
            self._steps += 1
            if self._steps in self._marks:
                gc.collect()
                self.resident.append(psutil.Process().memory_info().rss)
                self.objects.append(len(gc.get_objects()))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
def test_memory_is_flat(trial, wire: str) -> None:
    """Server and clients are one process here, so it holds for both. One activation kept a batch would be 26 MB."""
    gauge = Gauge(WARM, BATCHES)
    settings = ["data.samples=34000", "data.batch=16", f"data.limit={16 * BATCHES}", "data.partition=iid"]
    trial(*settings, f"wire={wire}", watch=gauge)
    (resident, later), (objects, objects_later) = gauge.resident, gauge.objects
    assert later - resident < 6 * 2**20
    assert objects_later - objects < BATCHES / 4
