"""A process ends with the code it was to end with, whatever its clients are doing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dynsl_app.leaving import interrupted_at_rest

_BUSY = """
import threading, time, torch
from dynsl_app.leaving import CLIENT_THREAD, leave

def train():
    model = torch.nn.Sequential(*(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(8)))
    while True:
        model(torch.randn(8, 4, 16, 16)).sum().backward()

for number in range(4):
    threading.Thread(target=train, name=f"{CLIENT_THREAD}{number}", daemon=True).start()
time.sleep(0.5)
print("last words", end="")
leave(130)
"""


def _run(script: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_clients_in_the_midst_of_a_batch_do_not_abort_it():
    assert _run(_BUSY) == (130, "last words", "")


def test_without_clients_it_ends_as_any_other():
    script = "import atexit; from dynsl_app.leaving import leave; atexit.register(print, 'cleaned up'); leave(3)"
    assert _run(script) == (3, "cleaned up\n", "")


def interrupt() -> None:
    """Ctrl-C: a handler has run when this is back."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Interruptions raise, also where a shell has started the tests in the background, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def within(steps: list[str], then: list[str]) -> None:
    """Take steps, interruptions and checks, where interruptions wait; those that were taken are in ``then``."""
    with interrupted_at_rest() as check:
        for step in steps:
            {"interrupt": interrupt, "check": check}[step]()
            then.append(step)


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        (["check", "interrupt", "check", "check"], 2),
        (["interrupt"], 1),  # nobody asked: at the end
        (["interrupt", "interrupt", "check"], 1),  # the second is raised at once
    ],
)
def test_an_interruption_waits_until_it_is_asked_for(steps: list[str], taken: int):
    then: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(steps, then)
    assert then == steps[:taken]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_nothing_changes():
    seen = []

    def look() -> None:
        with interrupted_at_rest() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
