"""How a client introduces itself before its first batch: what its blocks cost on its device, and what memory it has."""

import logging
from dataclasses import dataclass

from dynsl_app.client.emulate import Emulator
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError, SettingsError
from dynsl_app.model.chain import Chain
from dynsl_app.settings import NodeSettings, Settings
from dynsl_app.telemetry.device import free_bytes
from dynsl_app.telemetry.profile import load_profile
from dynsl_app.telemetry.profiling import from_flops, identity_of, measure

_log = logging.getLogger(__name__)

WARMUP = 3
"""Batches through the whole model before the first one, where the profile is measured (choice)."""


@dataclass(frozen=True)
class Introduction:
    """What goes into HELLO.

    Attributes
    ----------
    profile_s
        p[l], seconds by block 1..L on one batch; empty where the server has a profile already.
    memory_bytes
        Free for training; None where it cannot be told.
    """

    profile_s: tuple[float, ...] = ()
    memory_bytes: int | None = None


def introduce(
    settings: Settings, node: NodeSettings, client: int, chain: Chain, spec: DataSpec, emulator: Emulator | None
) -> Introduction:
    """Find out what the server asks for: the node's own file, or what ``telemetry.profile`` says.

    Raises
    ------
    SettingsError
        There is no profile where one is asked for, or the node's file is not one of this model, data and batch; naming
        the client and the remedy.
    """
    memory = _memory(node)
    if node.profile is not None:
        return Introduction(_own(settings, node.profile, client, chain, spec), memory)
    telemetry = settings.telemetry
    if telemetry.profile == "warmup":
        return Introduction(_warmed_up(settings, node, chain, spec, emulator, memory), memory)
    if telemetry.profile == "file" and telemetry.file_of(client) is None:
        raise SettingsError(
            f"client {client}: telemetry.profile=file, and neither telemetry.profile_file nor its node has a profile "
            f"for it; make one with dynsl-profile and set telemetry.profile_file, or profile=… in its --node-config"
        )
    return Introduction((), memory)


def _memory(node: NodeSettings) -> int | None:
    known = [size for size in (free_bytes(node.device), node.memory_bytes) if size is not None]
    return min(known, default=None)


def _own(settings: Settings, file: str, client: int, chain: Chain, spec: DataSpec) -> tuple[float, ...]:
    try:
        profile = load_profile(file)
        profile.require(identity_of(chain, spec, settings.data.batch, settings.model.label))
    except SettingsError as error:
        raise SettingsError(f"client {client}: --node-config profile={file}: {error}") from None
    return profile.block_s


def _warmed_up(
    settings: Settings,
    node: NodeSettings,
    chain: Chain,
    spec: DataSpec,
    emulator: Emulator | None,
    memory_bytes: int | None,
) -> tuple[float, ...]:
    """Measured where the whole model fits into the free memory, else counted, which needs two samples only (choice)."""
    what = (chain, spec, settings.data.batch, settings.optimizer)
    model = settings.model.label
    counted = from_flops(*what, settings.telemetry.flops_per_s, model=model)
    if memory_bytes is not None and counted.peak_bytes()[-1] > settings.allocator.memory_share * memory_bytes:
        return counted.block_s
    around = None if emulator is None else emulator.around
    try:
        return measure(*what, model=model, batches=WARMUP, device=node.device, around=around).block_s
    except ModelError as error:
        # What the client shall train may fit all the same.
        _log.warning("client %d: its blocks are counted and not measured: %s", node.partition_id, error)
        return counted.block_s
