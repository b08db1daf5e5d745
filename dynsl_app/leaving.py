"""Ending a process in whose threads clients still train."""

import os
import sys
import threading
from typing import NoReturn

CLIENT_THREAD = "local-"
"""What the names of such threads begin with."""


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
