"""The receiving end of a link: frames that have come, then the reason why no more will."""

import queue
import threading
import time

from dynsl_app.errors import WireError
from dynsl_app.wire.base import Frame

CAPACITY = 64
"""Frames that may wait. A full inbox stops its reader, and so, by the stream's flow control, the peer."""


class Inbox:
    """A bounded queue between the thread that reads a stream and the one that receives frames.

    The first call of :meth:`fail` ends it: frames already there can still be taken, then its error is raised,
    every time. (A SimpleQueue, since a Condition's second lock costs an exchange of 4 KB a fifth of its time.)
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._taken = threading.Event()
        self._error: WireError | None = None
        self._discarded = False
        self._heard = time.monotonic()

    @property
    def error(self) -> WireError | None:
        """Why nothing more will come; None while it may."""
        return self._error

    @property
    def silent(self) -> float:
        """Seconds since the peer was last heard, the time in which a full inbox kept us from listening apart."""
        return time.monotonic() - self._heard

    def touch(self) -> None:
        """Note a sign of life."""
        self._heard = time.monotonic()

    def put(self, frame: Frame) -> None:
        """Add a frame, waiting while the inbox is full. Raises the error of a failed inbox."""
        while self._items.qsize() >= CAPACITY and self._error is None:
            self._taken.clear()
            if self._items.qsize() >= CAPACITY and self._error is None:
                self._taken.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._items.put(frame)

    def get(self, timeout: float | None) -> Frame:
        """Take the next frame. Raises TimeoutError after ``timeout`` seconds, or the error once all are taken."""
        try:
            frame = self._items.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no frame came within {timeout} s") from None
        if self._error is not None and (frame is None or self._discarded):
            self._items.put(None)
            raise self._error.with_traceback(None)
        assert frame is not None
        if self._items.qsize() + 1 >= CAPACITY:
            self.touch()
        if not self._taken.is_set():
            self._taken.set()
        return frame

    def fail(self, error: WireError, *, discard: bool = False) -> None:
        """End the inbox with ``error`` if it has not ended yet; ``discard`` also drops the frames in it."""
        if self._error is None:
            self._error = error
        self._discarded = self._discarded or discard
        self._items.put(None)
        self._taken.set()
