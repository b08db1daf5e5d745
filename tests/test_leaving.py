"""A process ends with the code it was to end with, whatever its clients are doing."""

import subprocess
import sys

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
