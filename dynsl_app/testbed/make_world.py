"""From a fleet and a model to the truth that is simulated.

A block's time on a device is its training's FLOPs over the device's speed, or comes from a measured profile where one
is given. FLOPs are torch's formulas: two a multiplication of convolutions, linear layers and attention; a block with
none (pooling, an activation) counts one for every value that it gives. So devices differ by speed alone, and the curve
over blocks is an assumption where nothing was measured.
"""

from collections.abc import Mapping, Sequence

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import SERVERS, Device, Fleet
from dynsl_app.model.chain import Chain
from dynsl_app.server.book import batch_sizes
from dynsl_app.settings import OptimizerSettings
from dynsl_app.telemetry.profile import Profile
from dynsl_app.telemetry.profiling import forwards, from_flops, identity_of
from dynsl_app.testbed.population import Member, Population
from dynsl_app.testbed.world import Client, Server, World

SERVER, REFERENCE = "server", "reference"
"""What profiles may be of, besides kinds of devices: the server, and the machine that ``compute`` is relative to."""

_TRAINING = 3
"""A batch's training over its forward: the backward costs twice the forward (assumed)."""

_VALUE_BYTES = 4
"""Of a float32."""


def make_world(
    fleet: Fleet,
    chain: Chain,
    spec: DataSpec,
    batch: int,
    batches: int | Sequence[int],
    optimizer: OptimizerSettings,
    seed: int,
    *,
    model: str,
    profiles: Mapping[str, Profile] | None = None,
) -> World:
    """The fleet's clients and server, training this model; nothing happens to them.

    Parameters
    ----------
    batch
        Samples in a batch.
    batches
        R_i of an epoch: of every client, or one by one.
    seed
        Of spreads and links.
    model
        Its name, which profiles must have.
    profiles
        Measured ones, by kind of device, ``server`` or ``reference``.

    Raises
    ------
    ModelError
        The model does not take such a batch.
    SettingsError
        The fleet has no devices, or other than ``batches``; a speed is relative to an unknown machine; a trace cannot
        be read; a profile is of another model or of no kind of device that the fleet has.
    """
    people = Population(fleet, seed)
    profiles = profiles or {}
    known = (*people.kinds, SERVER, REFERENCE)
    for name, profile in profiles.items():
        if name not in known:
            raise SettingsError(
                f"a profile for {name}: fleet={fleet.name} has no such device; there are {', '.join(known)}"
            )
        try:
            profile.require(identity_of(chain, spec, batch, model))
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    each = [batches] * fleet.size if isinstance(batches, int) else list(batches)
    if len(each) != fleet.size:
        raise SettingsError(f"batches are given for {len(each)} clients, fleet={fleet.name} has {fleet.size}")
    flops = training_flops(chain, spec, batch)
    clients = []
    for number, own in enumerate(each):
        one = people.member(number)
        clients.append(client_of(one, _block_s(one, people, flops, profiles), own))
    server = fleet.server or SERVERS["medium"]
    s = profiles[SERVER].block_s if SERVER in profiles else tuple(each / (server.speed * 1e9) for each in flops)
    # Bytes do not depend on the speed.
    blocks = from_flops(chain, spec, batch, optimizer, 1e9, model=model).blocks
    sizes = batch_sizes([block.activation_bytes for block in blocks], [block.state_bytes for block in blocks], batch)
    return World(
        clients=tuple(clients),
        server=Server(s, server.call_s, server.workers, server.access_Bps),
        up_bytes=sizes.up,
        down_bytes=sizes.down,
        state_bytes=sizes.state,
    )


def training_flops(chain: Chain, spec: DataSpec, batch: int) -> tuple[float, ...]:
    """Floating-point operations of training one batch, block by block, all above 0."""
    return tuple(
        float(_TRAINING * (forward.flops or forward.activation_bytes // _VALUE_BYTES))
        for forward in forwards(chain, spec, batch)
    )


def client_of(one: Member, block_s: tuple[float, ...], batches: int) -> Client:
    """A member of the fleet as the world has it."""
    return Client(
        name=one.name,
        device=one.kind,
        block_s=block_s,
        up=one.link.up,
        down=one.link.down,
        rtt_s=one.link.rtt_s,
        batches=batches,
        power=one.power,
        memory_bytes=one.source.memory_bytes,
        call_s=one.source.call_s / one.factor if isinstance(one.source, Device) else 0.0,
    )


def _block_s(
    one: Member, people: Population, flops: Sequence[float], profiles: Mapping[str, Profile]
) -> tuple[float, ...]:
    """p_i[l], seconds."""
    if one.kind in profiles:
        return tuple(seconds / one.factor for seconds in profiles[one.kind].block_s)
    if REFERENCE in profiles and isinstance(one.source, Device) and one.source.compute is not None:
        slower = one.source.compute / one.factor
        return tuple(seconds * slower for seconds in profiles[REFERENCE].block_s)
    per_s = people.gflops(one) * 1e9
    return tuple(each / per_s for each in flops)
