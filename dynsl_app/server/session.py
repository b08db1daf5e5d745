"""What the server knows of one client in one round. Plain state: the controller guards and changes it."""

import enum
import threading
from dataclasses import dataclass, field

from dynsl_app.errors import WireError
from dynsl_app.model.optim import Rate
from dynsl_app.wire.base import Frame, Link, Transfer


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
    admission
        Held while one of its links is admitted: a client that tries again may come before the first try is through.
    next
        The batch expected next, counted from 0 over the round.
    pending
        Whether batch ``next - 1`` is waiting or being computed.
    replies
        Answers by batch, kept until they are surely read: a client that lost its connection before sends
        the batch again and is answered again, and nothing is trained on twice. The last one, and the acknowledgement
        before it, which a fully local client reads one batch later unless it brought a probe back.
    cut, generation
        Where the client is cut, and how often that has changed in this round.
    arrived, held_s
        When its last batch's activation or probe came, None if that had none; and for how many seconds the server had
        it before it replied.
    asked
        Bytes of the probe that the last reply asked for.
    exchange
        Seconds that the batch before its newest spent on the link, both ways, and at the server; None: not measured.
    moving_to
        The cut that it was told to take, until its first batch there (of the next generation) acknowledges it.
    samples, loss_sum, correct
        Over the batches done so far: S_i, Σ of per-sample loss, correct predictions.
    """

    client: int
    token: str
    cut: int
    lane: int
    admission: threading.Lock = field(default_factory=threading.Lock)
    state: State = State.AWAITED
    link: Link | None = None
    rate: Rate | None = None
    batches: int = 0
    next: int = 0
    pending: bool = False
    replies: dict[int, Frame] = field(default_factory=dict)
    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    heard_at: float = 0.0
    lost_at: float = 0.0
    reason: str = ""
    arrived: Transfer | None = None
    held_s: float = 0.0
    asked: int = 0
    exchange: tuple[float, float] | None = None
    generation: int = 0
    moving_to: int | None = None
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

    def keep(self, reply: Frame) -> None:
        """Keep the newest answer."""
        before = self.replies.get(reply.batch - 1)
        self.replies = {} if before is None or before.tensors else {before.batch: before}
        self.replies[reply.batch] = reply

    def new_cut(self, frame: Frame) -> int | None:
        """The cut that begins with a frame, if one does.

        Raises
        ------
        WireError
            The frame is of a placement that the client was not told to take.
        """
        if frame.generation == self.generation:
            return None
        if frame.generation == self.generation + 1 and self.moving_to is not None:
            return self.moving_to
        raise WireError(
            f"client {self.client}, batch {frame.batch}: placement {frame.generation} where {self.generation} holds; a "
            f"client takes a new cut only when it is told to"
        )

    def take_cut(self, move: int | None) -> int:
        """Make a move complete, if there is one; the cut before it."""
        before = self.cut
        if move is not None:
            self.cut, self.moving_to = move, None
            self.generation += 1
        return before

    def count(self, samples: int, loss: float, correct: int) -> None:
        """Add one batch: its size, mean loss and correct predictions."""
        self.samples += samples
        self.loss_sum += loss * samples
        self.correct += correct
