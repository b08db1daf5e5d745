"""Run the app with Flower, in simulation or as a deployment on loopback, and exit with the run's true outcome.

    python scripts/flower_run.py simulation --clients 4 'fleet=demo rounds=3'
    python scripts/flower_run.py deployment --clients 3 --secure 'rounds=1 data.limit=96'

``flwr run`` itself exits with 0 whatever happens. Everything that is started here, ends here.
"""

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from flower_runtime import Outcome, SuperLink


def simulate(home: Path, clients: int, overrides: str, *, at_once: int | None = None, echo: bool = False) -> Outcome:
    """Run in Flower's simulation, ``at_once`` clients at the same time (all by default).

    Ray now and then does not come up on small machines; the run is then tried a second time.
    """
    federation = f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus={at_once or clients}"

    def attempt() -> Outcome:
        with SuperLink(home, simulation=True) as superlink:
            return superlink.run(overrides, federation=federation, echo=echo)

    outcome = attempt()
    if outcome.ray_failed:
        print("Ray did not come up; once more", file=sys.stderr)
        outcome = attempt()
    return outcome


def deploy(
    home: Path,
    clients: int,
    overrides: str,
    *,
    secure: bool = False,
    node_config: Callable[[int], str] = lambda partition: "",
    echo: bool = False,
) -> Outcome:
    """Run on a SuperLink and a SuperNode per client, all on this machine.

    Parameters
    ----------
    secure
        With TLS and node authentication.
    node_config
        More of a node's ``--node-config``, by partition id.
    """
    with SuperLink(home, simulation=False, secure=secure) as superlink:
        for partition in range(clients):
            superlink.start_node(partition, clients, node_config(partition))
        return superlink.run(overrides, echo=echo)


def run_folder(output: str) -> Path | None:
    """The folder that a run's output says it is in; None if it does not say (``logging.console=off``)."""
    said = re.findall(r"run folder  (\S.*?)\s*$", output, re.MULTILINE)
    return Path(said[-1]) if said else None


def describe(summary_path: Path) -> str:
    """A finished run's ``summary.json`` for people, in a few short lines."""
    summary = json.loads(summary_path.read_text())
    epochs = summary["epoch_s"]
    accuracy = "unknown" if summary["accuracy"] is None else f"{summary['accuracy']:.4f}"
    cuts = ", ".join(f"{client}: {cut}" for client, cut in summary["cuts"].items())
    up, down = summary["bytes_up"] / 1e6, summary["bytes_down"] / 1e6
    lines = {
        "data": f"{summary['data']}, {summary['clients']} clients",
        "model": f"{summary['model']}, {summary['algorithm']}, blocks on each client {{{cuts}}}",
        "test accuracy": f"{accuracy} after {summary['rounds']} rounds",
        "epoch time": f"{sum(epochs) / len(epochs):.2f} s on average; {summary['total_s']:.0f} s in all",
        "data plane": f"{up:.1f} MB up, {down:.1f} MB down",
        "run folder": str(summary_path.parent),
    }
    return "\n".join(f"{name:>14}  {text}" for name, text in lines.items())


def _interrupted(*_: object) -> None:
    # An impatient second Ctrl-C would leave behind what is being ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("\ninterrupted; ending what was started takes some seconds", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def main() -> int:
    """Run what the command line says; 0 if the ServerApp completed, and its folder has the results that it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["simulation", "deployment"])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--secure", action="store_true", help="deployment: TLS and node authentication")
    parser.add_argument("overrides", nargs="?", default="", help="Hydra overrides in one string")
    given = parser.parse_intermixed_args()
    # So that a terminated script ends what it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)

    home = Path(tempfile.mkdtemp(prefix="dynsl-flower-"))
    try:
        overrides = f"clients={given.clients} {given.overrides}".strip()
        if given.way == "simulation":
            outcome = simulate(home, given.clients, overrides, echo=True)
        else:
            outcome = deploy(home, given.clients, overrides, secure=given.secure, echo=True)
    except KeyboardInterrupt:
        print("all that was started has ended", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if not outcome.completed:
        print(f"\nThe run did not complete ({outcome.status}): {outcome.details}", file=sys.stderr)
        return 1
    folder = run_folder(outcome.output)
    if folder is not None:
        try:
            print(f"\n{describe(folder / 'summary.json')}")
        except OSError as error:
            print(
                f"\nThe run completed, but its results in {folder} cannot be read ({error.strerror}): the folder was "
                f"moved or deleted meanwhile",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
