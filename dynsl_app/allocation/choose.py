"""Which allocator an algorithm has."""

from dynsl_app.allocation.ares import AresAllocator
from dynsl_app.allocation.base import Allocator
from dynsl_app.allocation.dtfl import DtflAllocator
from dynsl_app.allocation.dynsl import DynslAllocator
from dynsl_app.allocation.sfsl import SfslAllocator
from dynsl_app.settings import Settings


def make_allocator(settings: Settings) -> Allocator:
    """The allocator of an adaptive algorithm."""
    match settings.algorithm.name:
        case "ares":
            return AresAllocator(settings.algorithm.time_weight)
        case "dtfl" | "dtfl_localloss":
            return DtflAllocator()
        case "sfsl":
            return SfslAllocator()
        case _:
            return DynslAllocator(settings.allocator)
