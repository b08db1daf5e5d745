"""A SuperLink of one's own, SuperNodes beside it, and the true outcome of a run.

``flwr run`` starts a SuperLink that outlives it and exits with 0 even when the ServerApp failed. Here the SuperLink has
a FLWR_HOME and a port of its own and ends with the ``with`` block, with all that it started; and Flower is asked how
a run ended.
"""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
from flower_keys import make_node_key, make_server_certificate

REPOSITORY = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_CONNECTION = "own"
_STARTUP_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended, by Flower's own record, and what it printed."""

    status: str
    details: str
    output: str

    @property
    def completed(self) -> bool:
        """Whether the ServerApp came to its end."""
        return self.status == "finished:completed"

    @property
    def ray_failed(self) -> bool:
        """Whether Ray did not come up, which happens now and then on small machines; the app did not run then."""
        return "node timed out during startup" in self.details + self.output


class SuperLink:
    """A SuperLink that lives as long as the ``with`` block.

    Parameters
    ----------
    home
        Its FLWR_HOME: configuration, keys, copies of the app, logs.
    simulation
        Whether runs are simulated; else they use the SuperNodes of :meth:`start_node`.
    secure
        Deployment only: TLS, and only nodes with a registered key.
    environment
        Added to the environment of Flower's processes, so of the apps.
    """

    def __init__(
        self, home: Path, *, simulation: bool, secure: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.port = free_port()
        self._simulation = simulation
        self._secure = secure
        self._environment = {
            **os.environ,
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            **(environment or {}),
        }
        self._certificate = home / "server.pem"
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SuperLink":
        self.home.mkdir(parents=True, exist_ok=True)
        security = ["--insecure"]
        trust = "insecure = true"
        if self._secure:
            key = self.home / "server.key"
            make_server_certificate(self._certificate, key)
            security = ["--ssl-ca-certfile", str(self._certificate), "--ssl-certfile", str(self._certificate)]
            security += ["--ssl-keyfile", str(key), "--enable-supernode-auth"]
            trust = f'root-certificates = "{self._certificate}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
            f'[superlink.{_CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        mode = ["--simulation"] if self._simulation else []
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        try:
            process = self._start("superlink", ["flower-superlink", *security, *mode, *address])
            self._wait_until_healthy(process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_node(self, partition: int, partitions: int, node_config: str = "") -> subprocess.Popen[bytes]:
        """Start the SuperNode that holds one partition, with more of ``--node-config`` if given."""
        security = ["--insecure"]
        if self._secure:
            key = self.home / f"node-{partition}.key"
            if not key.exists():
                public = make_node_key(key)
                self.flwr("supernode", "register", str(public), _CONNECTION)
            security = ["--root-certificates", str(self._certificate), "--auth-supernode-private-key", str(key)]
        config = f"partition-id={partition} num-partitions={partitions} {node_config}"
        addresses = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        return self._start(
            f"node-{partition}", ["flower-supernode", *security, *addresses, "--node-config", config.strip()]
        )

    def run(self, overrides: str, *, app: Path = REPOSITORY, federation: str = "", echo: bool = False) -> Outcome:
        """Run an app (this one) with Hydra overrides, to its end.

        Parameters
        ----------
        federation
            ``--federation-config``, for simulations.
        echo
            Print the command and pass its output on.
        """
        arguments = ["run", str(app), "--stream", "--run-config", self._run_config(overrides)]
        if federation:
            arguments += ["--federation-config", federation]
        if echo:
            shown = [f'"{part}"' if " " in part or "'" in part else part for part in arguments]
            print("flwr", *shown, flush=True)
        lines = []
        command = [str(_BIN / "flwr"), *arguments]
        with subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if echo:
                    print(line, end="", flush=True)
        output = "".join(lines)
        if "Successfully started run" not in output:
            return Outcome("rejected", output.strip(), output)
        status, details = self._wait_until_finished()
        return Outcome(status, details, output)

    def flwr(self, *arguments: str) -> str:
        """What a ``flwr`` command prints. Raises RuntimeError with its output when it fails."""
        done = subprocess.run([str(_BIN / "flwr"), *arguments], env=self._environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """End what was started here, newest first, and everything that it started. Safe to call twice."""
        while self._started:
            end_process(self._started.pop())

    def log(self, name: str) -> str:
        """What ``superlink`` or ``node-<partition>`` has printed."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C reaches only this process, which then ends the others in order.
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(_BIN / command[0]), *command[1:]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _run_config(self, overrides: str) -> str:
        # Flower's key='value' has no escapes, and a TOML file takes the place of all other overrides.
        if "'" not in overrides:
            return f"overrides='{overrides}'"
        path = self.home / "run-config.toml"
        path.write_text(f"overrides = {json.dumps(overrides)}\n")
        return str(path)

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        context = ssl.create_default_context(cafile=str(self._certificate)) if self._secure else None
        url = f"{'https' if self._secure else 'http'}://127.0.0.1:{self.port}/health"
        for _ in _every(0.2, _STARTUP_S):
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1.0, context=context):
                return
        raise RuntimeError(f"the SuperLink did not come up on port {self.port}:\n{self.log('superlink')}")

    def _wait_until_finished(self) -> tuple[str, str]:
        """Flower's record of the newest run, which follows its output by a moment."""
        run: Mapping[str, str] = {}
        for _ in _every(0.5, _STARTUP_S):
            listing = self.flwr("ls", "--limit", "1", "--format", "json")
            run = json.loads(listing[listing.index("{") :])["runs"][0]
            if run["status"].startswith("finished"):
                break
        return run["status"], run["status-details"]


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def end_process(process: subprocess.Popen[bytes], patience: float = 15.0) -> None:
    """Terminate a process and its descendants; kill those that are not gone after ``patience`` seconds."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    if not _have_ended(family, patience):
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        _have_ended(family, patience)  # a kill takes effect when the system comes to it
    process.wait()


def _have_ended(family: Sequence[psutil.Process], limit: float) -> bool:
    """Whether all end within ``limit`` seconds. Orphans that nobody has waited for, zombies, count as ended."""
    return any(not any(_runs(member) for member in family) for _ in _every(0.02, limit))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _every(pause: float, limit: float) -> Iterator[None]:
    """Tries, ``pause`` seconds apart, until ``limit`` seconds have passed."""
    deadline = time.monotonic() + limit
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause)
