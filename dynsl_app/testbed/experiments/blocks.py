"""Models block by block: what the testbed assumes, and what this machine measures."""

from collections.abc import Mapping

from dynsl_app.data.source import DataSpec
from dynsl_app.fleet import SERVERS
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Chain
from dynsl_app.results import BlockFacts, BlockMeasured
from dynsl_app.settings import Settings
from dynsl_app.telemetry.profiling import from_flops, measure
from dynsl_app.testbed.experiments.grid import Grid
from dynsl_app.testbed.make_world import training_flops


def assumed(grid: Grid, case: Mapping[str, str]) -> list[BlockFacts]:
    """The blocks of a case's model on the fleet's kinds of devices and on all servers."""
    settings = grid.settings(case)
    chain, spec, batch = _model(settings)
    speeds = {device.name: settings.fleet.gflops(device) for device in settings.fleet.devices}
    speeds |= {f"server {name}": server.speed for name, server in SERVERS.items()}
    profile = from_flops(chain, spec, batch, settings.optimizer, 1e9, model=settings.model.label)
    last = len(chain)
    return [
        BlockFacts(
            model=settings.model.label,
            index=index,
            name=block.name,
            flops=flops,
            sent_bytes=0 if index == last else block.activation_bytes,
            state_bytes=block.state_bytes,
            device_s={name: flops / (speed * 1e9) for name, speed in speeds.items()},
        )
        for index, (flops, block) in enumerate(
            zip(training_flops(chain, spec, batch), profile.blocks, strict=True), start=1
        )
    ]


def measured(grid: Grid, case: Mapping[str, str], batches: int = 5) -> list[BlockMeasured]:
    """The same on this machine's CPU, as ``dynsl-profile`` does; differs from time to time and machine to machine."""
    settings = grid.settings(case)
    chain, spec, batch = _model(settings)
    label = settings.model.label
    profile = measure(chain, spec, batch, settings.optimizer, model=label, batches=batches)
    return [
        BlockMeasured(label, index, block.name, block.forward_s, block.backward_s, block.step_s)
        for index, block in enumerate(profile.blocks, start=1)
    ]


def _model(settings: Settings) -> tuple[Chain, DataSpec, int]:
    spec = DataSpec(settings.testbed.shape, settings.testbed.classes)
    return build_chain(settings.model, spec, settings.seed, frozenset()), spec, settings.testbed.batch
