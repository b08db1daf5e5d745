"""What an algorithm's name means, and which settings go together.

Source of the table: ALGORITHMS §1 and §9. Adding an algorithm with fixed cuts is one more row, its name in
:class:`dynsl_app.settings.AlgorithmSettings` and a file in conf/algorithm/.
"""

import dataclasses
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dynsl_app.errors import SettingsError, named
from dynsl_app.plan import SEPARATE, Plan
from dynsl_app.settings import HeadsSettings, OptimizerSettings, Settings, WireSettings

Policy = Literal["continuous", "sequential", "lockstep", "replay"]

SHARED_POLICIES: tuple[Policy, ...] = ("continuous", "sequential", "lockstep", "replay")


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    Attributes
    ----------
    split
        Whether layers run at the server; otherwise every client holds all L blocks.
    heads
        ``heads.count``: SEPARATE, or the number of shared heads.
    policies
        What ``server.policy`` may be with shared heads; the first is the default.
    adaptive
        Whether cuts are planned from what is measured.
    profiled
        Whether the first round's cuts are planned too, from profiles in files; else it begins at ``algorithm.cut``.
    open
        Whether explicit ``heads.count`` and ``heads.boundary`` hold.
    local_loss
        Whether clients train on losses of their own, and no gradient returns.
    testbed
        Whether it needs the truth, which only the testbed has.
    """

    split: bool
    heads: int
    policies: tuple[Policy, ...] = SHARED_POLICIES
    open: bool = False
    adaptive: bool = False
    local_loss: bool = False
    testbed: bool = False
    profiled: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": Algorithm(split=False, heads=SEPARATE),
    "uniform": Algorithm(split=True, heads=SEPARATE, open=True),
    "dynsl": Algorithm(split=True, heads=SEPARATE, open=True, adaptive=True),
    "dynsl_profiled": Algorithm(split=True, heads=SEPARATE, open=True, adaptive=True, profiled=True),
    "ares": Algorithm(split=True, heads=SEPARATE, adaptive=True),
    "dtfl": Algorithm(split=True, heads=SEPARATE, adaptive=True),
    "dtfl_localloss": Algorithm(split=True, heads=SEPARATE, adaptive=True, local_loss=True),
    "sfsl": Algorithm(split=True, heads=SEPARATE, adaptive=True),
    "oracle_static": Algorithm(split=True, heads=SEPARATE, testbed=True),
    "oracle_paid": Algorithm(split=True, heads=SEPARATE, testbed=True),
    "oracle": Algorithm(split=True, heads=SEPARATE, testbed=True),
    "oracle_bound": Algorithm(split=True, heads=SEPARATE, testbed=True),
    "splitfed_v1": Algorithm(split=True, heads=SEPARATE),
    "splitfed_v2": Algorithm(split=True, heads=1, policies=("sequential", "replay")),
    "psl": Algorithm(split=True, heads=1, policies=("lockstep", "replay")),
}


def check(settings: Settings) -> Settings:
    """Refuse settings that contradict each other, and fill in what the algorithm means by its name.

    Returns
    -------
    Settings
        With ``heads.count`` and ``server.policy`` set. Checking again changes nothing.

    Raises
    ------
    SettingsError
        Naming the settings, the reason and the remedy.
    """
    _check_clients(settings)
    _check_telemetry(settings)
    _check_optimizer(settings.optimizer)
    if settings.wire.name == "grpc":
        _check_wire(settings.wire)
    heads = _heads(settings)
    server = dataclasses.replace(settings.server, policy=_policy(settings, heads))
    return dataclasses.replace(settings, heads=heads, server=server)


def check_files(settings: Settings) -> None:
    """Refuse profiles from files where a client has none, for runs whose nodes have no files of their own.

    Raises
    ------
    SettingsError
        Naming the clients and the remedy.
    """
    if ALGORITHMS[settings.algorithm.name].adaptive and settings.telemetry.profile == "file":
        _require_files(
            settings,
            "telemetry.profile=file takes profiles from files",
            "leave telemetry out, so that they are measured",
        )


def make_plan(settings: Settings, blocks: int, clients: Sequence[int]) -> Plan:
    """The plan of an algorithm with fixed cuts, the same in every round.

    Parameters
    ----------
    blocks
        L of the model.
    clients
        Ids of the clients that train in the round.

    Raises
    ------
    SettingsError
        Like :func:`check`, or if cut or boundary do not fit the model's blocks.
    """
    settings = check(settings)
    heads = settings.heads
    if not ALGORITHMS[settings.algorithm.name].split:
        return Plan(blocks=blocks, boundary=blocks, cuts=dict.fromkeys(clients, blocks))
    shared = heads.count != SEPARATE
    # A shared head needs a block of its own.
    top = blocks - 1 if shared else blocks
    if top < 1:
        raise SettingsError(f"model={settings.model.name} has {blocks} block, and a shared head needs at least two")
    if heads.boundary is not None and heads.boundary > top:
        raise SettingsError(
            f"heads.boundary={heads.boundary}: model={settings.model.name} has {blocks} blocks and the shared head "
            f"needs at least one; choose 1..{top}"
        )
    half = (blocks + 1) // 2
    cut = settings.algorithm.cut or min(half, heads.boundary or half)
    if cut > top:
        reason = ", of which the shared head needs at least one" if shared else ""
        raise SettingsError(
            f"algorithm.cut={cut}: model={settings.model.name} has {blocks} blocks{reason}; choose 1..{top}"
        )
    boundary = (heads.boundary or cut) if shared else blocks
    return Plan(
        blocks=blocks, boundary=boundary, cuts=dict.fromkeys(clients, cut), heads=heads.count or 0 if shared else 0
    )


def _heads(settings: Settings) -> HeadsSettings:
    name = settings.algorithm.name
    algorithm = ALGORITHMS[name]
    heads = settings.heads
    count = algorithm.heads if heads.count is None else heads.count
    if count == 0 or count < SEPARATE:
        raise SettingsError(
            f"heads.count={count}: use -1 for one head per client, 1 for one shared by all, or k for client id modulo k"
        )
    if count != algorithm.heads and not algorithm.open:
        raise SettingsError(
            f"heads.count={count} contradicts algorithm={name}, which has heads.count={algorithm.heads}; leave it "
            f"out, or use algorithm=uniform"
        )
    if heads.boundary is not None:
        if not algorithm.open:
            raise SettingsError(
                f"heads.boundary={heads.boundary} contradicts algorithm={name}, which decides it itself; leave it out, "
                f"or use algorithm=uniform"
            )
        if count == SEPARATE:
            raise SettingsError(
                f"heads.boundary={heads.boundary} needs a shared head, and heads.count=-1 shares nothing; set "
                f"heads.count=1, or leave the boundary out"
            )
        if settings.algorithm.cut is not None and settings.algorithm.cut > heads.boundary:
            raise SettingsError(
                f"algorithm.cut={settings.algorithm.cut} is beyond heads.boundary={heads.boundary}: a client holds no "
                f"blocks of a shared head; lower the cut or raise the boundary"
            )
    if count > settings.clients:
        raise SettingsError(
            f"heads.count={count} is more than clients={settings.clients}, so some heads would train on nothing"
        )
    return dataclasses.replace(heads, count=count)


def _policy(settings: Settings, heads: HeadsSettings) -> Policy:
    name = settings.algorithm.name
    server = settings.server
    allowed = ALGORITHMS[name].policies if heads.count != SEPARATE else ("continuous",)
    policy = server.policy or allowed[0]
    if policy not in allowed:
        separate = "has no shared head whose requests could be grouped"
        reason = separate if heads.count == SEPARATE else f"means {' or '.join(allowed)}"
        raise SettingsError(
            f"server.policy={policy} does not go with algorithm={name}, which {reason}; leave it out, or use "
            f"algorithm=uniform heads.count=1, which takes any"
        )
    if policy == "replay" and server.replay is None:
        raise SettingsError("server.policy=replay needs server.replay, the events.jsonl of the run to follow")
    if policy != "replay" and server.replay is not None:
        raise SettingsError(f"server.replay={server.replay} is only read with server.policy=replay; set both or none")
    return policy


def _check_clients(settings: Settings) -> None:
    fleet = settings.fleet
    if fleet.size and settings.clients != fleet.size:
        raise SettingsError(
            f"clients={settings.clients} contradicts fleet={fleet.name}, which has {fleet.size} devices; leave clients "
            f"out, or choose another fleet"
        )
    if settings.dynamics.rows and settings.runtime != "testbed":
        raise SettingsError(
            f"dynamics={settings.dynamics.name} happens in virtual time only; set runtime=testbed, or let a fleet of "
            f"your own have changes"
        )
    if settings.clients_per_round is not None and settings.clients_per_round > settings.clients:
        raise SettingsError(
            f"clients_per_round={settings.clients_per_round} is more than clients={settings.clients}; lower it, or "
            f"leave it out to take all"
        )
    if settings.algorithm.name == "fedavg" and settings.algorithm.cut is not None:
        raise SettingsError(
            f"algorithm.cut={settings.algorithm.cut} contradicts algorithm=fedavg, which splits nothing; leave it out"
        )
    name = settings.algorithm.name
    if ALGORITHMS[name].testbed and settings.runtime != "testbed":
        raise SettingsError(
            f"algorithm={name} plans from the truth, which only runtime=testbed knows; set that, or use algorithm=dynsl"
        )
    if name == "oracle_bound" and settings.testbed.compute == "real":
        raise SettingsError(
            "testbed.compute=real trains, and algorithm=oracle_bound is a bound that nobody reaches by training; set "
            "testbed.compute=phantom, or use algorithm=oracle"
        )
    if settings.algorithm.time_weight != 1 and name != "ares":
        raise SettingsError(
            f"algorithm.time_weight={settings.algorithm.time_weight:g} is of algorithm=ares; {name} has none"
        )
    if settings.algorithm.time_weight != 1 and not fleet.size:
        raise SettingsError(
            f"algorithm.time_weight={settings.algorithm.time_weight:g} weighs energy, and fleet={fleet.name} does not "
            f"say what the devices draw; set it to 1, or use a fleet that lists compute_W, send_W and receive_W"
        )
    faults = settings.faults
    longest = max(faults.connect_s, faults.reconnect_s, faults.batch_s)
    if faults.round_s is not None and faults.round_s < longest:
        raise SettingsError(
            f"faults.round_s={faults.round_s:g} ends a round before faults.connect_s, reconnect_s or batch_s can "
            f"({longest:g} s); raise it, or lower those"
        )


def _check_telemetry(settings: Settings) -> None:
    telemetry, clients = settings.telemetry, settings.clients
    if telemetry.profile_file is not None and telemetry.profile != "file":
        raise SettingsError(
            f"telemetry.profile_file is only read with telemetry.profile=file, and it is {telemetry.profile}; set "
            f"telemetry.profile=file, or leave the file out"
        )
    if isinstance(telemetry.profile_file, dict):
        for client in telemetry.profile_file:
            if not 0 <= client < clients:
                raise SettingsError(
                    f"telemetry.profile_file names client {client}, and there are clients 0..{clients - 1}; correct "
                    f"the id or leave it out"
                )
    name = settings.algorithm.name
    if ALGORITHMS[name].profiled and settings.runtime != "testbed":
        _require_files(
            settings,
            f"algorithm={name} plans the first round from profiles",
            "use algorithm=dynsl, which measures first",
        )


def _require_files(settings: Settings, reason: str, otherwise: str) -> None:
    without = [client for client in range(settings.clients) if settings.telemetry.file_of(client) is None]
    if without:
        raise SettingsError(
            f"{named(without)}: {reason}, and there is none for {'it' if len(without) == 1 else 'them'}; make one with "
            f"dynsl-profile and set telemetry.profile=file telemetry.profile_file=<file, or {{client: file}}>, or "
            f"{otherwise}"
        )


def _check_optimizer(optimizer: OptimizerSettings) -> None:
    if optimizer.clip == "global_norm":
        raise SettingsError(
            "optimizer.clip=global_norm needs the gradients of all blocks in one place, so that training would depend "
            "on the cut; use block_norm (the norm of each block) or value (each element)"
        )
    if optimizer.name != "sgd" and (optimizer.momentum or optimizer.nesterov):
        raise SettingsError(
            f"optimizer.momentum and nesterov are of optimizer=sgd; {optimizer.name} has optimizer.betas instead"
        )
    if optimizer.nesterov and not optimizer.momentum:
        raise SettingsError("optimizer.nesterov=True needs optimizer.momentum above 0")


def _check_wire(wire: WireSettings) -> None:
    if (wire.certificate is None) != (wire.key is None):
        raise SettingsError("wire.certificate and wire.key go together: set both, or neither to have them made")
    if wire.tls == "on":
        return
    if wire.certificate is not None:
        raise SettingsError("wire.certificate is not used with wire.tls=off; leave it out, or set wire.tls=on")
    for setting, address in (("bind", wire.bind), ("advertise", wire.advertise)):
        if address is not None and not _is_loopback(address):
            raise SettingsError(
                f"wire.tls=off with wire.{setting}={address}: without TLS, data and tokens may only travel on "
                f"loopback (127.0.0.1, ::1, localhost); set wire.tls=on"
            )


def _is_loopback(address: str) -> bool:
    """Whether ``host``, ``host:port`` or ``[IPv6]:port`` is this machine itself."""
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    elif address.count(":") > 1:
        host = address
    else:
        host = address.partition(":")[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
