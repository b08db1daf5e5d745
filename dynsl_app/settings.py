"""The run's settings as typed, frozen values.

``conf/`` composes them (see :mod:`dynsl_app.compose`); every default that a user sees is in conf/, the defaults
here serve library users and tests. Construction validates: types, ranges and unknown keys; what only
makes sense together is checked in ``Settings.__post_init__``.
"""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from dynsl_app.dynamics import Dynamics
from dynsl_app.fleet import Fleet

_STRICT = ConfigDict(extra="forbid", populate_by_name=True, str_strip_whitespace=True)


@dataclass(frozen=True, config=_STRICT)
class AlgorithmSettings:
    """``cut`` is n for all clients, the first of those that adapt; None is ⌈L/2⌉. ``fedavg`` has none.

    ``time_weight`` is ARES's λ; 1: time only.
    """

    name: Literal[
        "dynsl",
        "dynsl_profiled",
        "fedavg",
        "uniform",
        "splitfed_v1",
        "splitfed_v2",
        "psl",
        "ares",
        "dtfl",
        "dtfl_localloss",
        "sfsl",
        "oracle_static",
        "oracle_paid",
        "oracle",
        "oracle_bound",
    ] = "dynsl"
    cut: int | None = Field(default=None, ge=1)
    time_weight: float = Field(default=1.0, ge=0, le=1)


@dataclass(frozen=True, config=_STRICT)
class ModelSettings:
    """``stem`` matters for resnet18 and mobilenet_v2; ``params`` go to the builder of ``_target_``."""

    name: str = "cnn"
    target: str | None = Field(default=None, alias="_target_")
    stem: Literal["auto", "small", "standard"] = "auto"
    dropout: float | None = Field(default=None, ge=0, lt=1)
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What to call the architecture: its ``_target_`` if it is the user's own, else its name."""
        return self.target or self.name


@dataclass(frozen=True, config=_STRICT)
class DataSettings:
    """Where samples come from, who gets which, and how batches are made.

    ``limit`` counts training samples over all clients. ``shape`` and ``classes`` are for synthetic data;
    ``augment`` lists random transforms by name.
    """

    name: str = "digits"
    target: str | None = Field(default=None, alias="_target_")
    params: dict[str, Any] = field(default_factory=dict)
    root: str | None = None
    download: bool = False
    batch: int = Field(default=8, ge=1, le=2**31 - 1)
    limit: int | None = Field(default=None, ge=1)
    partition: Literal["iid", "dirichlet", "shards", "quantity", "local"] = "iid"
    alpha: float = Field(default=0.5, gt=0)
    shards: int = Field(default=2, ge=1)
    tail: Literal["keep", "drop", "merge"] = "merge"
    resize: int | None = Field(default=None, ge=1)
    augment: list[Literal["flip", "crop"]] = field(default_factory=list)
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = Field(default=10, ge=2)
    samples: int = Field(default=2000, ge=1)


@dataclass(frozen=True, config=_STRICT)
class ScheduleSettings:
    """Learning-rate schedule over a client's own epochs or batches, never over server steps.

    ``step``: times ``gamma`` every ``every`` units. ``cosine``: to ``floor`` of the rate over the whole run.
    ``warmup``: the first units rise linearly. A unit is an epoch or a batch (``by``).
    """

    name: Literal["constant", "step", "cosine"] = "constant"
    by: Literal["epoch", "batch"] = "epoch"
    every: int = Field(default=10, ge=1)
    gamma: float = Field(default=0.1, gt=0)
    floor: float = Field(default=0.0, ge=0, le=1)
    warmup: int = Field(default=0, ge=0)


@dataclass(frozen=True, config=_STRICT)
class OptimizerSettings:
    """One optimizer per block with these same hyper-parameters, wherever the block is.

    ``clip``: ``value`` (each element) and ``block_norm`` (the norm of one block's gradient) do not
    depend on placement; ``global_norm`` does and is refused.
    ``persist``: whether momentum and moments are forgotten each round or kept for the run.
    """

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: Literal["none", "value", "block_norm", "global_norm"] = "none"
    clip_limit: float = Field(default=1.0, gt=0)
    persist: Literal["round", "run"] = "round"
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


@dataclass(frozen=True, config=_STRICT)
class HeadsSettings:
    """``count``: -1 one head per client, 1 shared by all, k: client id modulo k; None: the algorithm's.

    ``boundary`` is b; None: the algorithm's (the cut for splitfed_v2 and psl, L for separate heads).
    """

    count: int | None = None
    boundary: int | None = Field(default=None, ge=1)
    batchnorm: Literal["merged", "per_request"] = "merged"


@dataclass(frozen=True, config=_STRICT)
class ServerSettings:
    """``policy`` None: the algorithm's. ``replay`` is the events.jsonl whose groups are run again."""

    workers: int = Field(default=1, ge=1)
    threads: int = Field(default=1, ge=1)
    device: str = "cpu"
    policy: Literal["continuous", "sequential", "lockstep", "replay"] | None = None
    replay: str | None = None
    max_merge: int = Field(default=32, ge=1)
    max_merge_bytes: int = Field(default=256 * 2**20, ge=1)
    merge_wait_ms: float = Field(default=0.0, ge=0)
    batchnorm: Literal["average", "local", "server"] = "average"


@dataclass(frozen=True, config=_STRICT)
class WireSettings:
    """Where and how the data plane listens.

    ``bind``: address and port to listen on (port 0: any free one); ``advertise``: host (or host:port)
    that clients connect to, None: derived from ``bind``. ``certificate``/``key``: PEM files, None: made for the run.
    ``heartbeat_s``: how often an idle stream sends a sign of life; three missed ones close it.
    """

    name: Literal["grpc", "inprocess"] = "grpc"
    tls: Literal["on", "off"] = "on"
    bind: str = "127.0.0.1:0"
    advertise: str | None = None
    certificate: str | None = None
    key: str | None = None
    chunk_bytes: int = Field(default=2**20, ge=4096, le=2**24)
    max_frame_bytes: int = Field(default=2**30, ge=2**16)
    heartbeat_s: float = Field(default=10.0, gt=0)


@dataclass(frozen=True, config=_STRICT)
class FaultSettings:
    """The five time-outs, and what happens to a client that is lost in mid-epoch.

    ``connect_s``: for a client's stream to open after its order; ``reconnect_s``: for a lost stream to come back;
    ``batch_s``: for a client's next batch; ``round_s``: for a whole round (None: no limit);
    ``join_s``: for all ``clients`` to register before round 1.
    """

    connect_s: float = Field(default=120.0, gt=0)
    reconnect_s: float = Field(default=20.0, gt=0)
    batch_s: float = Field(default=300.0, gt=0)
    round_s: float | None = Field(default=None, gt=0)
    join_s: float = Field(default=120.0, gt=0)


@dataclass(frozen=True, config=_STRICT)
class EvaluationSettings:
    """``federated``: also on the clients' own held-out data, each round."""

    batch: int = Field(default=256, ge=1)
    federated: bool = False


@dataclass(frozen=True, config=_STRICT)
class LoggingSettings:
    """``wandb``: mirror the run to Weights & Biases; offline without a key."""

    wandb: Literal["off", "offline", "online"] = "off"
    project: str = "dynsl"
    console: Literal["auto", "live", "lines", "off"] = "auto"


@dataclass(frozen=True, config=_STRICT)
class EventsSettings:
    """``detail``: an event per batch, or only per round so that very many clients fit."""

    detail: Literal["batch", "round"] = "batch"


@dataclass(frozen=True, config=_STRICT)
class SweepSettings:
    """``metric``: what a sweeper that searches optimises; of ``epoch_s`` the mean over rounds, of bytes both ways."""

    metric: Literal["accuracy", "loss", "epoch_s", "total_s", "bytes"] = "loss"


@dataclass(frozen=True, config=_STRICT)
class AllocatorSettings:
    """When layers move, for algorithms that adapt.

    ``mid_epoch``: also while an epoch runs, else between rounds only; ``period``: batches of an average client between
    two plans; ``min_gain``: share of the remaining time that a plan must save; ``settle``: measured batches between two
    moves; ``cooldown``: batches before a client may move back, more for one that keeps doing so; ``guard``: a move
    longer than a batch waits until this share of its time is lost without it. ``min_cut`` (privacy) and ``max_cut``
    are for all clients or by client id; None: the model's blocks. ``memory_share``: of a client's free memory that
    training may fill; where that holds fewer blocks, they are its ceiling.
    """

    mid_epoch: bool = True
    period: int = Field(default=5, ge=1)
    min_gain: float = Field(default=0.05, ge=0, lt=1)
    settle: int = Field(default=3, ge=0)
    cooldown: int = Field(default=3, ge=0)
    guard: float = Field(default=0.5, ge=0)
    min_cut: int | dict[int, int] = 1
    max_cut: int | dict[int, int] | None = None
    memory_share: float = Field(default=0.8, gt=0, le=1)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


_File = Annotated[str, AfterValidator(_absolute)]
"""Absolute, because a run may go on from another folder than it began in."""


@dataclass(frozen=True, config=_STRICT)
class TelemetrySettings:
    """What planning knows of a client before it has trained: its profile, seconds by block on one batch.

    ``profile``: ``warmup``, measured by the client before its first batch; ``file``, of ``dynsl-profile``; ``flops``,
    operations over ``flops_per_s``, soon corrected by what is measured. ``profile_file``: on the server, for all
    clients or by client id; a node's own (``--node-config``) comes before it and before any other source.
    """

    profile: Literal["warmup", "file", "flops"] = "warmup"
    profile_file: _File | dict[int, _File] | None = None
    flops_per_s: float = Field(default=1e9, gt=0, allow_inf_nan=False)

    def file_of(self, client: int) -> str | None:
        """The server's profile file for a client, if there is one."""
        return self.profile_file.get(client) if isinstance(self.profile_file, dict) else self.profile_file


@dataclass(frozen=True, config=_STRICT)
class TestbedSettings:
    """Runs in virtual time (``runtime=testbed``).

    ``compute``: ``phantom`` computes no tensors and ignores ``data`` for ``shape``, ``classes``, ``batch`` and
    ``batches`` a client; ``real`` trains. ``compute_jitter``, ``link_jitter``: relative standard deviation of every
    batch's compute and every transfer's rate; ``noise``: of measuring them. ``profiles``: files of ``dynsl-profile`` by
    kind of device, ``server`` or ``reference``, instead of operations over a speed.
    """

    compute: Literal["phantom", "real"] = "phantom"
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = Field(default=10, ge=2)
    batch: int = Field(default=32, ge=1)
    batches: int = Field(default=50, ge=1)
    compute_jitter: float = Field(default=0.05, ge=0, lt=1)
    link_jitter: float = Field(default=0.10, ge=0, lt=1)
    noise: float = Field(default=0.0, ge=0, lt=1)
    profiles: dict[str, str] = field(default_factory=dict)


def _or_fleet_size(clients: object, info: ValidationInfo) -> object:
    if clients is not None:
        return clients
    fleet = info.data.get("fleet")
    return (fleet.size if fleet is not None else 0) or 4


@dataclass(frozen=True, config=_STRICT)
class Settings:
    """Everything a run needs to know; the same value on the server and, by the order, on its clients.

    ``clients``: None stands for the fleet's size, or 4 without a fleet.
    """

    runtime: Literal["local", "testbed"] = "local"
    name: str = "run"
    run_dir: str | None = None
    resume: str | None = None
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=3, ge=1)
    fleet: Fleet = field(default_factory=Fleet)
    dynamics: Dynamics = field(default_factory=Dynamics)
    clients: Annotated[int, BeforeValidator(_or_fleet_size)] = Field(default=None, ge=1, validate_default=True)
    clients_per_round: int | None = Field(default=None, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    heads: HeadsSettings = field(default_factory=HeadsSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    testbed: TestbedSettings = field(default_factory=TestbedSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    threads: int = Field(default=1, ge=1)


@dataclass(frozen=True, config=_STRICT)
class NodeSettings:
    """What a device says of itself (``--node-config``); never taken from the server.

    ``allow``: comma-separated packages that ``_target_`` may name besides the app's own. ``profile``: file of
    ``dynsl-profile``, made on this device or one of its type. ``memory_bytes``: what training may use at most, where
    less than the machine's free memory is this node's (a container's limit). ``emulate_*``: a slower device
    on this machine, instead of what the fleet says of the client: how many times slower it computes, bytes per second
    up and down, round trip in seconds.
    """

    partition_id: int = Field(ge=0)
    num_partitions: int = Field(ge=1)
    device: str = "cpu"
    threads: int | None = Field(default=None, ge=1)
    data_root: str | None = None
    allow: str = ""
    profile: str | None = None
    memory_bytes: int | None = Field(default=None, ge=1)
    emulate_compute: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    emulate_up: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    emulate_down: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    emulate_rtt: float | None = Field(default=None, ge=0, allow_inf_nan=False)
