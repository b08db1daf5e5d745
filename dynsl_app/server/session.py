"""What the server knows of one client in one round. Plain state: the controller guards and changes it."""

import enum
from dataclasses import dataclass, field

from dynsl_app.model.optim import Rate
from dynsl_app.wire.base import Frame, Link


class State(enum.Enum):
    """Where a client is in its round."""

    AWAITED = "has not opened its stream"
    OPEN = "is training"
    DONE = "has done all its batches"
    LOST = "is lost"


@dataclass
class Session:
    """One client's stream in one round; survives a reconnection.

    Attributes
    ----------
    next
        The batch expected next, counted from 0 over the round.
    pending
        Whether batch ``next - 1`` is waiting or being computed.
    reply
        The answer to batch ``next - 1``, kept until the next batch arrives: a client that lost its
        connection before it got the answer sends the batch again, and it is not trained on twice.
    samples, loss_sum, correct
        Over the batches done so far: S_i, Σ of per-sample loss, correct predictions.
    """

    client: int
    token: str
    cut: int
    lane: int | None
    state: State = State.AWAITED
    link: Link | None = None
    rate: Rate | None = None
    batches: int = 0
    next: int = 0
    pending: bool = False
    reply: Frame | None = None
    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    heard_at: float = 0.0
    lost_at: float = 0.0
    reason: str = ""
    closed_links: list[tuple[int, int]] = field(default_factory=list)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes up (from the client) and down, over all its links of the round."""
        up = sum(received for received, _ in self.closed_links)
        down = sum(sent for _, sent in self.closed_links)
        if self.link is not None:
            up, down = up + self.link.bytes_received, down + self.link.bytes_sent
        return up, down

    def drop_link(self) -> Link | None:
        """Detach the link, keeping count of its bytes."""
        link, self.link = self.link, None
        if link is not None:
            self.closed_links.append((link.bytes_received, link.bytes_sent))
        return link

    def count(self, samples: int, loss: float, correct: int) -> None:
        """Add one batch: its size, mean loss and correct predictions."""
        self.samples += samples
        self.loss_sum += loss * samples
        self.correct += correct
