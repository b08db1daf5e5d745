"""What the control plane carries: one order to a client per round, one reply from it.

These are plain values with tensors; adapters turn them into Flower messages or hand them over in-process.
Names in ``weights`` and ``buffers`` are the plain model's own (``layer1.0.conv1.weight``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dynsl_app.settings import Settings
from dynsl_app.wire.base import Endpoint

Weights = Mapping[str, Tensor]
"""Parameters and buffers by their name in the plain model."""

OptimizerState = Mapping[str, Tensor]
"""Optimizer state of some blocks, flat: ``<block>/<parameter name>/<key>`` to tensor."""


@dataclass(frozen=True)
class TrainOrder:
    """Train one round: the server's message to one client.

    Attributes
    ----------
    cut, boundary
        n_i and b of the plan.
    weights
        State of blocks 1..n_i.
    optimizer
        Optimizer state of blocks 1..n_i that outlives the round (``optimizer.persist=run``), else empty.
    endpoint, token
        Where the data plane listens and the secret that opens this client's stream in this round.
    settings
        The run's settings; the client overlays what its own node configuration says.
    profile
        Whether the client shall introduce itself when the stream opens: free memory, and a profile as
        ``telemetry.profile`` says.
    """

    client: int
    round: int
    cut: int
    boundary: int
    weights: Weights
    optimizer: OptimizerState
    endpoint: Endpoint
    token: str
    settings: Settings
    profile: bool = False


@dataclass(frozen=True)
class TrainReply:
    """What a client reports after its round: its blocks, and what it measured.

    ``cut`` is the final one: the reply holds the state of blocks 1..cut. ``samples`` is S_i.
    ``metrics`` are scalars (mean training loss is not among them: the server knows it from the stream).
    ``device`` is what the device says of itself after the round, not checked yet
    (see :func:`dynsl_app.telemetry.device.believable`).
    """

    client: int
    round: int
    cut: int
    weights: Weights
    optimizer: OptimizerState
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    device: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluateOrder:
    """Evaluate the whole merged model on the client's own held-out data."""

    client: int
    round: int
    weights: Weights
    settings: Settings


@dataclass(frozen=True)
class EvaluateReply:
    """Sums, not means, so that the server can weight them: over ``samples`` held-out samples."""

    client: int
    round: int
    samples: int
    correct: int
    loss_sum: float


@dataclass(frozen=True)
class Failure:
    """A client could not do what it was ordered; ``reason`` is for people."""

    client: int
    reason: str


Order = TrainOrder | EvaluateOrder
Reply = TrainReply | EvaluateReply | Failure
