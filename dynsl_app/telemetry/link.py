"""What a link carries: throughput each way and the round trip, from what the receivers saw.

Pure, like :mod:`dynsl_app.telemetry.estimate`. Only differences of times on one machine are used, so no clocks need to
agree, and what waited at the sender or the server does not count (ALGORITHMS §4).
"""

import math
import statistics
from collections import deque
from typing import Protocol

from dynsl_app.telemetry.estimate import Level, Reading

_OVERDUE = 2.0
"""A transfer is overdue when it has taken the time of two: that is a change seen twice (choice)."""

_LEAST_SPREAD_S = 1e-4
"""Round trips in one process or over loopback vary at least by a thread's wake-up (choice)."""

_FEW = 4
"""Heartbeats that are believed: the first ones come while everybody starts and are held up. Before, what a round trip
takes beyond the prior counts for the throughput, so that a plan's transfer times are right as well (choice)."""


class Timed(Protocol):
    """When a frame's bytes arrived, as ``wire.base.Transfer`` has it: seconds of first and last chunk."""

    @property
    def first(self) -> float: ...

    @property
    def last(self) -> float: ...

    @property
    def bytes(self) -> int: ...

    @property
    def chunks(self) -> int: ...


class Rtt:
    """Round-trip time: the least of the last heartbeats, and how much they vary.

    Parameters
    ----------
    name
        Who, for messages.
    prior_s
        Seconds, before there is a heartbeat.
    window
        Heartbeats that count.

    Attributes
    ----------
    value
        Seconds; not more than the prior before there are four.
    spread
        By how many seconds a round trip usually exceeds the least one; the prior itself before there are four.
    """

    def __init__(self, name: str, prior_s: float, *, window: int = 16) -> None:
        self.value = prior_s
        self.spread = max(prior_s, _LEAST_SPREAD_S)
        self.samples = 0
        self.refused = 0
        self.complaint: str | None = None
        self._name, self._prior_s = name, prior_s
        self._recent: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> bool:
        """Take a heartbeat's round trip, the peer's hold time apart; whether it was accepted."""
        if not 0 <= seconds <= 600:
            self.refused += 1
            self.complaint = f"{self._name}: a round trip of {seconds!r} s was ignored: it is not in 0..600"
            return False
        self._recent.append(seconds)
        self.samples += 1
        self.value = min(self._recent)
        if self.samples < _FEW:
            self.value = min(self.value, self._prior_s)
        else:
            self.spread = max(statistics.median(self._recent) - self.value, _LEAST_SPREAD_S)
        return True


class Throughput:
    """Bytes per second one way, from the receiver's times of a frame's chunks.

    Parameters
    ----------
    name
        Who and which way, for messages: ``client 3: upload``.
    prior_Bps
        Bytes per second, before anything is measured.
    chunk_bytes
        Size of a full chunk (``wire.chunk_bytes``).
    """

    def __init__(self, name: str, prior_Bps: float, chunk_bytes: int, *, half_life: float = 8.0) -> None:
        self.level = Level(f"{name} in B/s", prior_Bps, half_life=half_life, low=1.0, high=1e12)
        self._chunk = chunk_bytes
        self._ceiling = math.inf
        self._falls = 0
        self._told = prior_Bps
        """What the estimate was when a fall was last counted."""

    @property
    def value(self) -> float:
        """Bytes per second."""
        return min(self.level.value, self._ceiling)

    @property
    def jumps(self) -> int:
        """Times that the estimate has changed by leaps."""
        return self.level.jumps + self._falls

    def reading(self, batch: float) -> Reading:
        """The estimate as of batch ``batch``."""
        known = self.level.reading(batch)
        return Reading(self.value, known.samples, known.age, known.relative_width)

    def add(self, transfer: Timed, batch: float) -> bool:
        """Take a frame that has come: the bytes after its first chunk, over the time from first chunk to last.

        Returns
        -------
        bool
            Whether it was a sample. A frame of one chunk is none (see :meth:`LinkEstimate.exchange`), nor one of hardly
            more, whose end may come with the first chunk's.
        """
        rest = transfer.bytes - self._chunk
        if transfer.chunks < 2 or rest < self._chunk / 2:
            return False
        seconds = transfer.last - transfer.first
        if not seconds > 0:
            self.level.refuse(f"{transfer.bytes} bytes in {transfer.chunks} chunks within {seconds!r} s")
            return False
        return self.add_rate(rest / seconds, batch)

    def add_rate(self, Bps: float, batch: float) -> bool:
        """Take a rate measured otherwise; whether it was accepted."""
        accepted = self.level.add(Bps, batch)
        if accepted:
            self._ceiling = math.inf
        return accepted

    def overdue(self, bytes_so_far: int, seconds: float) -> bool:
        """Take a look at a frame that is still coming.

        Once it has used up the time of two such frames the estimate falls to what it can have been at most, lower with
        every call, until the frame is there; its own sample is then believed without a second one.

        Parameters
        ----------
        bytes_so_far
            What came after the first chunk.
        seconds
            Since the first chunk came.

        Returns
        -------
        bool
            Whether the estimate is lowered.
        """
        if not (bytes_so_far >= 0 and 0 < seconds < math.inf):
            return False
        # The next chunk is not complete yet, so no more than one has come on top.
        most = (bytes_so_far + self._chunk) / seconds
        if most * _OVERDUE > self.level.value:
            return False
        if self._ceiling == math.inf:
            self.level.suspect(-1)
            self._told = self.level.value
        if most * _OVERDUE <= self._told:
            # Every further halving is news: what was planned on the first look may be wrong by the next.
            self._falls += 1
            self._told = most
        self._ceiling = min(self._ceiling, most)
        return True


class LinkEstimate:
    """One client's link: upload, download and round trip.

    Parameters
    ----------
    client
        Whose, for messages.
    up_Bps, down_Bps, rtt_s
        Priors.
    chunk_bytes
        Size of a full chunk (``wire.chunk_bytes``).
    """

    def __init__(
        self, client: int, up_Bps: float, down_Bps: float, rtt_s: float, chunk_bytes: int, *, half_life: float = 8.0
    ) -> None:
        self.up = Throughput(f"client {client}: upload", up_Bps, chunk_bytes, half_life=half_life)
        self.down = Throughput(f"client {client}: download", down_Bps, chunk_bytes, half_life=half_life)
        self.rtt = Rtt(f"client {client}: heartbeat", rtt_s)
        self._chunk = chunk_bytes
        self._uploaded: tuple[Timed, float | None] | None = None
        """The last upload that was taken on its own, and the seconds that it took if they could be told."""

    @property
    def jumps(self) -> int:
        """Times that an estimate has changed by leaps; planning again is due when it grows."""
        return self.up.jumps + self.down.jumps

    @property
    def noise_s(self) -> float:
        """What an exchange must take beyond the round trip to tell anything of frames of one chunk, seconds."""
        return 2 * self.rtt.spread

    @property
    def complaints(self) -> list[str]:
        """The last nonsense of each kind that was ignored, in words."""
        return [text for text in (self.up.level.complaint, self.down.level.complaint, self.rtt.complaint) if text]

    def coming(self, part: Timed, seconds: float) -> bool:
        """Take a look at an upload that is still coming; see :meth:`Throughput.overdue`.

        Parameters
        ----------
        part
            What has come of it.
        seconds
            Since its first chunk came.

        Returns
        -------
        bool
            Whether the estimate is lowered. Not by a frame that is there by now, whose own sample counts.
        """
        if self._uploaded is not None and part.first <= self._uploaded[0].first:
            return False
        return self.up.overdue(max(0, part.bytes - self._chunk), seconds)

    def uploaded(self, up: Timed, batch: float) -> bool:
        """Take an upload as soon as it is there; :meth:`exchange` does not count the same one again.

        Returns
        -------
        bool
            Whether it was a sample, as of :meth:`Throughput.add`.
        """
        timed = self.up.add(up, batch)
        self._uploaded = up, up.bytes / self.up.value if timed else None
        return timed

    def exchange(self, up: Timed, down: Timed, away_s: float, batch: float) -> bool:
        """Take one batch's exchange of activation and gradient.

        A frame of several chunks tells its own rate. What is left of the exchange, without the round trip and those
        frames, is what frames of one chunk took. It is shared in proportion: their sum is all that can be seen, and all
        that a plan needs, because both grow alike with the cut. It is a sample if it exceeds twice the round trip's
        spread. If it does not, but would at the present estimate, the link is faster than estimated, and the least rate
        that fits is the sample (choice; else a prior that is too low would stay).

        Parameters
        ----------
        up, down
            When the activation came to the server, and the gradient to the client, each by the receiver's clock.
        away_s
            From the client's sending to its having the reply, minus the time the server held it (queue and service).

        Returns
        -------
        bool
            Whether there was a sample.
        """
        sane = 0 <= away_s < math.inf
        if not sane:
            self.up.level.refuse(f"an exchange of {away_s!r} s")
        left, expected, untimed, sampled = away_s - self.rtt.value, 0.0, [], False
        for way, transfer in ((self.up, up), (self.down, down)):
            if self._uploaded is not None and transfer is self._uploaded[0]:
                seconds = self._uploaded[1]
            else:
                seconds = transfer.bytes / way.value if way.add(transfer, batch) else None
            if seconds is not None:
                sampled = True
                left -= seconds
            else:
                untimed.append(way)
                expected += transfer.bytes / way.value
        noise = self.noise_s
        if sane and max(left, expected) > noise:
            factor = expected / max(left, noise)
            for way in untimed:
                sampled |= way.add_rate(way.value * factor, batch)
        return sampled
