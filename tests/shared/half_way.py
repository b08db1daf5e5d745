"""A link on which a frame is held back, or its device dies, when half of it has come."""

import threading
from collections.abc import Callable

from dynsl_app.wire.base import Pacer


class HalfWay(Pacer):
    """An emulated network that costs no time, until it is told to stop a frame.

    Parameters
    ----------
    chunk_bytes
        ``wire.chunk_bytes``; the frame must have more.
    act
        What happens where the frame is stopped, in the link's own thread; by default it waits for :attr:`released`.

    Attributes
    ----------
    reached
        Set when the frame is stopped.
    """

    rtt_s = 0.0

    def __init__(self, chunk_bytes: int, act: Callable[[], None] | None = None) -> None:
        self._chunk_bytes, self._act = chunk_bytes, act or self._hold
        self._way: str | None = None
        self._begun = False
        self.reached, self.released = threading.Event(), threading.Event()

    def stop(self, way: str) -> None:
        """Stop the next frame of several chunks that goes ``up`` or ``down``, after its first chunk."""
        self._way, self._begun = way, False

    def up(self, size: int, ready: float) -> float:
        return self._pass("up", size, ready)

    def down(self, size: int, ready: float) -> float:
        return self._pass("down", size, ready)

    def _pass(self, way: str, size: int, ready: float) -> float:
        if way == self._way:
            if self._begun:
                self._way = None
                self.reached.set()
                self._act()
            self._begun = size == self._chunk_bytes
        return ready

    def _hold(self) -> None:
        assert self.released.wait(20)
