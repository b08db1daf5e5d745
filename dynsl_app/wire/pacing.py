"""Holding chunks back as an emulated network would, each in its link's own threads (see ``base.Pacer``).

Whoever is on either side sees bytes come later, and nothing else.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from dynsl_app.errors import LinkClosed
from dynsl_app.wire.base import Frame, Transfer

Due = Callable[[int, float], float]
"""One direction of a :class:`~dynsl_app.wire.base.Pacer`: from a chunk's bytes and when it was ready to its arrival."""


def wait(due: Due, size: int, ready: float) -> None:
    """Sleep until a chunk is there."""
    time.sleep(max(0.0, due(size, ready) - time.monotonic()))


def paced(chunks: Iterable[bytes], due: Due) -> Iterator[bytes]:
    """Chunks that arrive, each passed on when it would have over the emulated network.

    A thread takes the chunks as they come and notes when, since while one is held back others are on their way. The
    reason for a stream's end (LinkClosed) comes after the chunks before it.
    """
    arrived: queue.SimpleQueue[tuple[bytes, float] | LinkClosed | None] = queue.SimpleQueue()

    def take() -> None:
        end: LinkClosed | None = None
        try:
            for chunk in chunks:
                arrived.put((chunk, time.monotonic()))
        except LinkClosed as error:
            end = error
        finally:
            arrived.put(end)

    threading.Thread(target=take, name="pace", daemon=True).start()
    while isinstance(item := arrived.get(), tuple):
        chunk, came = item
        wait(due, len(chunk), came)
        yield chunk
    if item is not None:
        raise item


class Carrier:
    """One direction of a link that has no chunks: hands frames over when their last chunk would be there.

    Parameters
    ----------
    deliver
        Takes a frame at the other end, ``received`` set; raises LinkClosed where that is gone.
    """

    def __init__(self, due: Due, chunk_bytes: int, deliver: Callable[[Frame], None]) -> None:
        self._due, self._chunk_bytes, self._deliver = due, chunk_bytes, deliver
        self._waiting: queue.SimpleQueue[tuple[Frame, int, float] | None] = queue.SimpleQueue()
        self._under_way: Transfer | None = None
        self._thread = threading.Thread(target=self._run, name="carry", daemon=True)
        self._thread.start()

    def send(self, frame: Frame, size: int, ready: float) -> None:
        """Queue a frame of ``size`` bytes that is ready since ``ready``."""
        self._waiting.put((frame, size, ready))

    @property
    def under_way(self) -> Transfer | None:
        """The chunks that are there of a frame that is not; None if there are none."""
        return self._under_way

    def close(self) -> None:
        """Wait until what is queued is there, or its receiver gone. Safe to call twice."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(LinkClosed):
            while (item := self._waiting.get()) is not None:
                self._deliver(self._carry(*item))

    def _carry(self, frame: Frame, size: int, ready: float) -> Frame:
        came: Transfer | None = None
        for chunk, start in enumerate(range(0, size, self._chunk_bytes), start=1):
            there = min(size, start + self._chunk_bytes)
            wait(self._due, there - start, ready)
            now = time.monotonic()
            came = Transfer(now if came is None else came.first, now, there, chunk)
            self._under_way = came if there < size else None
        return replace(frame, received=came)
