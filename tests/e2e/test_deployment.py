"""A SuperLink and SuperNodes on loopback, each a process of its own, as are the apps in each message."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flower_run import deploy, run_folder
from flower_runtime import Outcome, SuperLink, end_process
from PIL import Image

from dynsl_app.telemetry.sinks.jsonl import read_events

_LIMIT_S = 300.0


def _rounds(run: Path) -> list[tuple[int, list[int]]]:
    """Clients that finished, and those lost, by round."""
    ends = [event for event in read_events(run / "events.jsonl") if event["event"] == "round_end"]
    return [(event["clients"], event["lost"]) for event in ends]


def _images(root: Path, part: str, count: int, offset: int) -> None:
    """Grey squares: dark cats and bright dogs."""
    for name, base in (("cat", 40), ("dog", 200)):
        folder = root / part / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.new("L", (8, 8), base + (offset + number) % 20).save(folder / f"{number}.png")


def test_nodes_train_on_their_own_folders(tmp_path: Path, runs: Path) -> None:
    """User case 24: each node has only its own part, in its own folder, and nothing is downloaded.

    User case 21: a node's own configuration says where, and the server is never told.
    """
    for partition in range(3):
        _images(tmp_path / f"node-{partition}", "train", 4 + partition, offset=partition)
    _images(tmp_path / "server", "test", 3, offset=0)
    outcome = deploy(
        tmp_path / "flwr",
        3,
        f"clients=3 rounds=1 data=image_folder data.partition=local data.params.classes=[cat,dog] "
        f"data.params.channels=1 data.root={tmp_path}/server",
        node_config=lambda partition: f'data-root="{tmp_path}/node-{partition}"',
    )
    assert outcome.completed, outcome.output
    run = run_folder(outcome.output)
    assert run is not None
    assert run.parent == runs
    assert _rounds(run) == [(3, [])]
    done = {event["client"]: event for event in read_events(run / "events.jsonl") if event["event"] == "client_done"}
    assert {client: event["samples"] for client, event in done.items()} == {0: 8, 1: 10, 2: 12}


def test_restarted_node_comes_back_under_tls(
    tmp_path: Path, runs: Path, moves: Callable[[Path], list[tuple[int, int, int]]]
) -> None:
    """User case 29: with TLS and node authentication a SuperNode is stopped in mid-run, started again, and used again.

    The other goes on meanwhile. It says of itself that it is so slow that the server does most of its blocks sooner,
    whatever machine this is; so it gives blocks up in mid-epoch.
    """
    own = ["emulate-compute=40.0", ""]
    with SuperLink(tmp_path / "flwr", simulation=False, secure=True) as superlink, ThreadPoolExecutor() as pool:
        nodes = [superlink.start_node(partition, 2, own[partition]) for partition in range(2)]
        running = pool.submit(superlink.run, "clients=2 rounds=3 data.limit=192")
        _wait_for_first_round(runs, running)
        end_process(nodes[1])
        superlink.start_node(1, 2)
        outcome = running.result(timeout=_LIMIT_S)
    assert outcome.completed, outcome.output
    run = run_folder(outcome.output)
    assert run is not None
    assert any(client == 0 and after < before for client, before, after in moves(run))
    rounds = _rounds(run)
    assert rounds[0] == (2, [])
    assert all(lost in ([], [1]) for _, lost in rounds)
    assert rounds[-1] == (2, [])


def _wait_for_first_round(runs: Path, running: "Future[Outcome]") -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not any(event["event"] == "round_end" for event in _all_events(runs)):
        assert not running.done(), running.result().output
        assert time.monotonic() < deadline, "no round ended in time"
        time.sleep(0.1)


def _all_events(runs: Path) -> Iterator[dict[str, Any]]:
    for path in runs.glob("*/events.jsonl"):
        yield from read_events(path)
