"""A link over any bidirectional stream of chunks: queues, heartbeat, limits and an orderly end.

Whoever owns the stream (see grpc.py) iterates :meth:`StreamLink.outgoing` in one thread and runs
:meth:`StreamLink.read` in another; neither computes anything, so that frames move while models run.
"""

import contextlib
import enum
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.settings import WireSettings
from dynsl_app.wire import pacing
from dynsl_app.wire.base import Frame, Kind, Pacer, Transfer
from dynsl_app.wire.inbox import Inbox
from dynsl_app.wire.protocol import Decoder, Encoding, encode, title

UNTRUSTED_FRAME_BYTES = 2**16
"""What a frame may have before its sender has shown a token."""

MISSED = 3
"""Heartbeats without a sign of life after which a peer is gone."""

LINGER_S = 5.0
"""How long closing waits without any progress before it gives the stream up."""

MAX_MESSAGE = 2000
"""Characters of the reason that a peer is told."""

KEPT_ROUND_TRIPS = 16
"""Round trips that wait to be asked for; the oldest give way."""

NOBODY = -1
"""The client and round of frames that the transport itself makes."""


class _Mark(enum.Enum):
    """What may stand in the queue besides frames."""

    PING = enum.auto()
    PONG = enum.auto()
    CLOSE = enum.auto()


class StreamLink:
    """A :class:`~dynsl_app.wire.base.Link`.

    Parameters
    ----------
    trusted
        Whether large frames are taken from the start; otherwise after :meth:`trust`.
    cancel
        Ends the stream at once; used where an orderly end makes no progress.
    pacer
        The emulated network that this end of the link, the client's, is behind.
    """

    def __init__(
        self,
        peer: str,
        settings: WireSettings,
        *,
        trusted: bool,
        cancel: Callable[[], object],
        pacer: Pacer | None = None,
    ) -> None:
        self._peer = peer
        self._pacer = pacer
        self._settings = settings
        self._cancel = cancel
        self._decoder = Decoder(settings.max_frame_bytes if trusted else UNTRUSTED_FRAME_BYTES)
        self._inbox = Inbox()
        self._queue: queue.SimpleQueue[Encoding | _Mark] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ping = 0
        self._ping_sent = -math.inf
        self._unanswered: tuple[int, float] | None = None
        self._rtt: float | None = None
        self._round_trips: deque[float] = deque(maxlen=KEPT_ROUND_TRIPS)
        self._closing = False
        self._chunks_sent = 0
        self._bytes_sent = 0
        self._bytes_received = 0
        self._flushed = threading.Event()
        self._ended = threading.Event()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def bytes_sent(self) -> int:
        return self._bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._bytes_received

    @property
    def rtt(self) -> float | None:
        return self._rtt

    def round_trips(self) -> list[float]:
        with self._lock:
            taken = list(self._round_trips)
            self._round_trips.clear()
        return taken

    @property
    def incoming(self) -> Transfer | None:
        return self._decoder.incoming

    def trust(self) -> None:
        self._decoder.limit = self._settings.max_frame_bytes

    def send(self, frame: Frame) -> None:
        encoding = encode(frame, self._settings.chunk_bytes, self._settings.max_frame_bytes)
        with self._lock:
            if self._closing:
                raise LinkClosed(f"cannot send the {title(frame)} to the {self._peer}: {self._inbox.error}")
            self._queue.put(encoding)
            self._bytes_sent += encoding.size

    def receive(self, timeout: float | None = None) -> Frame:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        patience = MISSED * self._settings.heartbeat_s
        while True:
            left = deadline - time.monotonic()
            try:
                return self._inbox.get(max(0.0, min(left, patience - self._inbox.silent)))
            except TimeoutError:
                silent = self._inbox.silent
                if silent >= patience:
                    self._end(
                        LinkClosed(f"the {self._peer} gave no sign of life for {silent:.1f} s ({MISSED} heartbeats)")
                    )
                    self._cancel()
                elif time.monotonic() >= deadline:
                    raise TimeoutError(f"the {self._peer} sent nothing within {timeout} s") from None

    def close(self) -> None:
        self.begin_close()
        self._linger(self._flushed)
        self._linger(self._ended)

    def begin_close(self) -> None:
        """Take no more frames; what is queued is still sent."""
        with self._lock:
            self._closing = True
            self._inbox.fail(LinkClosed(f"the link to the {self._peer} was closed by this side"), discard=True)
            self._queue.put(_Mark.CLOSE)

    def _linger(self, done: threading.Event) -> None:
        """Wait for a stage of the end while bytes still move, then cut the stream off."""
        sent = self._chunks_sent
        while not done.wait(LINGER_S):
            if sent == self._chunks_sent:
                self._cancel()
                return
            sent = self._chunks_sent

    def outgoing(self) -> Iterator[bytes]:
        """Chunks to send, in order, as frames are queued; ends when the link is closed and all has been sent.

        Iterated by the stream's own sending thread: tensors are copied into chunks there, one chunk at a time.
        """
        try:
            while (encoding := self._next()) is not None:
                for chunk in encoding:
                    if self._pacer is not None:
                        pacing.wait(self._pacer.up, len(chunk), encoding.ready)
                    self._chunks_sent += 1
                    yield chunk
        finally:
            self._flushed.set()

    def _next(self) -> Encoding | None:
        """Wait for what is to be sent next; heartbeats go between frames. None: the link is closed."""
        wait = self._ping_sent + self._settings.heartbeat_s - time.monotonic()
        item: Encoding | _Mark
        try:
            item = _Mark.PING if wait <= 0 else self._queue.get(timeout=wait)
        except queue.Empty:
            item = _Mark.PING
        match item:
            case _Mark.CLOSE:
                return None
            case _Mark.PING:
                self._ping += 1
                self._ping_sent = time.monotonic()
                return self._beat(Kind.PING, self._ping)
            case _Mark.PONG:
                with self._lock:
                    assert self._unanswered is not None
                    number, came = self._unanswered
                    self._unanswered = None
                return self._beat(Kind.PONG, number, held=time.monotonic() - came)
            case _:
                return item

    def _beat(self, kind: Kind, number: int, **meta: float) -> Encoding:
        frame = Frame(kind, client=NOBODY, round=NOBODY, batch=number, meta=meta)
        return encode(frame, self._settings.chunk_bytes)

    def read(self, chunks: Iterator[bytes]) -> None:
        """Decode what comes until the stream ends; run in a thread of its own.

        ``chunks`` raises LinkClosed where the stream breaks. What cannot be decoded is answered with an ERROR frame,
        and ends this link only.
        """
        if self._pacer is not None:
            chunks = pacing.paced(chunks, self._pacer.down)
        try:
            for chunk in chunks:
                self._inbox.touch()
                frame = self._decoder.feed(chunk)
                if frame is not None:
                    self._take(frame)
            self._end(LinkClosed(f"the {self._peer} closed the link{self._midway()}"))
        except LinkClosed as error:
            self._end(LinkClosed(f"{error}{self._midway()}"))
        except WireError as error:
            self._refuse(error)
            # The stream must live until the peer has been told why; it ends it then.
            with contextlib.suppress(LinkClosed):
                for _ in chunks:
                    pass
        finally:
            self._ended.set()

    def _take(self, frame: Frame) -> None:
        assert frame.received is not None
        came = frame.received.last
        match frame.kind:
            case Kind.PING:
                with self._lock:
                    if self._unanswered is None:
                        self._queue.put(_Mark.PONG)
                    self._unanswered = (frame.batch, came)
            case Kind.PONG:
                held = frame.meta.get("held")
                if not isinstance(held, float) or not held >= 0:
                    raise WireError(f"PONG without the time it was held: {held!r}")
                if frame.batch == self._ping:
                    rtt = max(0.0, came - self._ping_sent - held)
                    with self._lock:
                        self._rtt = rtt if self._rtt is None else min(self._rtt, rtt)
                        self._round_trips.append(rtt)
            case _:
                self._bytes_received += frame.received.bytes
                self._inbox.put(frame)

    def _midway(self) -> str:
        return f" in the middle of the {self._decoder.pending}" if self._decoder.pending else ""

    def _refuse(self, error: WireError) -> None:
        """Tell the peer why, and end."""
        error = WireError(f"refused what the {self._peer} sent: {error}")
        frame = Frame(Kind.ERROR, client=NOBODY, round=NOBODY, meta={"message": str(error)[:MAX_MESSAGE]})
        self._end(error, last=encode(frame, self._settings.chunk_bytes))

    def _end(self, error: WireError, last: Encoding | None = None) -> None:
        """Drop what is queued, send ``last`` if there is one, and end both directions."""
        with self._lock:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()
            if last is not None:
                self._queue.put(last)
            self._queue.put(_Mark.CLOSE)
            self._closing = True
            self._inbox.fail(error)
