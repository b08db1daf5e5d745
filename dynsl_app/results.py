"""What experiments find: values that the testbed makes and reports draw, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Case:
    """The conditions of a comparison.

    Attributes
    ----------
    links, server, dynamics
        Names as in settings.
    """

    model: str
    links: str
    server: str
    dynamics: str = "none"

    def __str__(self) -> str:
        happening = "" if self.dynamics == "none" else f", {self.dynamics}"
        return f"{self.model}, {self.links}, {self.server}{happening}"


@dataclass(frozen=True)
class Timing:
    """Epoch times of one algorithm in one case.

    Attributes
    ----------
    algorithm
        Its name in tables: ``dynsl``, ``uniform 3`` (all clients hold 3 blocks), ``dynsl between rounds``.
    seconds
        An epoch's virtual seconds, mean over the rounds that count, one number a seed.
    """

    case: Case
    algorithm: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Training:
    """One run that trained for real in virtual time.

    Attributes
    ----------
    accuracy
        On held-out data after each round, a fraction.
    ended_s
        When each round ended, virtual seconds.
    digest
        SHA-256 of ``model.safetensors``.
    """

    algorithm: str
    heads: str
    seed: int
    accuracy: tuple[float, ...]
    ended_s: tuple[float, ...]
    moves: int
    digest: str


@dataclass(frozen=True)
class Estimate:
    """What was believed of a client's link when a batch was done, and what was true, bytes per second.

    Attributes
    ----------
    up_recent_Bps, down_recent_Bps
        True rates, mean over the last ten seconds.
    """

    seed: int
    client: int
    at_s: float
    up_Bps: float
    down_Bps: float
    up_true_Bps: float
    down_true_Bps: float
    up_recent_Bps: float
    down_recent_Bps: float


@dataclass(frozen=True)
class BlockFacts:
    """One block of a model on one batch.

    Attributes
    ----------
    index
        From 1.
    flops
        Of forward and backward.
    sent_bytes
        That cross a cut after it, to the server; 0 after the last.
    state_bytes
        That move with it: weights, buffers, optimizer state.
    device_s
        Seconds by kind of device, and of servers as ``server strong``: assumed.
    """

    model: str
    index: int
    name: str
    flops: float
    sent_bytes: float
    state_bytes: float
    device_s: dict[str, float]


@dataclass(frozen=True)
class BlockMeasured:
    """One block's times on the machine that ran the experiment, seconds."""

    model: str
    index: int
    name: str
    forward_s: float
    backward_s: float
    step_s: float


@dataclass(frozen=True)
class Dropped:
    """A client whose link has just fallen, at its cut of the best static plan: what it can do with the rest.

    Attributes
    ----------
    cut
        Blocks that it holds.
    rest
        Batches that it still has.
    stay_s, local_s
        The rest at its cut, and fully local; moving apart, nobody else at the server.
    move_bytes, move_s
        What becoming fully local brings down over the fallen link.
    best_cut, best_s
        The cut with which the rest is soonest done, its move included.
    start_local_s
        A whole epoch fully local, as if it had been from the start.
    """

    case: Case
    device: str
    cut: int
    rest: float
    stay_s: float
    local_s: float
    move_bytes: float
    move_s: float
    best_cut: int
    best_s: float
    start_local_s: float
