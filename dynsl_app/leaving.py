"""Ending a process in whose threads clients still train."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

CLIENT_THREAD = "local-"
"""What the names of such threads begin with."""


@contextmanager
def interrupted_at_rest() -> Iterator[Callable[[], None]]:
    """Within, Ctrl-C is raised by the function that this gives, or at the end, and not wherever the main thread is.

    There it may have just taken a lock, which would stay locked, and the threads that wait for it never end. A second
    Ctrl-C is raised at once. Outside the main thread, or where something else takes care of Ctrl-C, nothing changes.
    """
    usual = signal.getsignal(signal.SIGINT)
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, usual)


def leave(code: int) -> NoReturn:
    """End the process with ``code``, also while clients are in the midst of a batch.

    The interpreter, when it shuts down, ends threads wherever they are. Inside torch that aborts the process, so
    after an interruption or an error it is not given the time: what was to be written has been by then.
    """
    if any(thread.name.startswith(CLIENT_THREAD) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
