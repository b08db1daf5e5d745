"""Where profiles come from and what devices tell, in whole runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.errors import RoundFailed, SettingsError
from dynsl_app.inprocess import InProcessControl
from dynsl_app.local_grid import run_local
from dynsl_app.model.build import build_chain
from dynsl_app.orders import Reply, TrainReply
from dynsl_app.run import run
from dynsl_app.settings import NodeSettings, Settings
from dynsl_app.summary import Summary
from dynsl_app.telemetry.device import BOUNDS
from dynsl_app.telemetry.profile import Profile, to_json
from dynsl_app.telemetry.profiling import measure
from dynsl_app.telemetry.sinks.jsonl import read_events

BASE = ["clients=3", "rounds=2", "data.limit=96", "wire=inprocess", "logging.console=off", "allocator.mid_epoch=false"]


@pytest.fixture(scope="module")
def profile() -> Profile:
    settings = compose(BASE)
    spec = load_source(settings.data).spec
    chain = build_chain(settings.model, spec, 0)
    return measure(chain, spec, settings.data.batch, settings.optimizer, model="cnn", batches=2)


def write(profile: Profile, path: Path, factor: float) -> str:
    """A profile of a device that is so many times slower."""
    blocks = tuple(
        replace(
            block,
            forward_s=factor * block.forward_s,
            backward_s=factor * block.backward_s,
            step_s=factor * block.step_s,
        )
        for block in profile.blocks
    )
    path.write_text(to_json(replace(profile, blocks=blocks)))
    return str(path)


def compose_in(folder: Path, *overrides: str) -> Settings:
    return compose([*BASE, f"run_dir={folder / 'run'}", *overrides])


def events(summary: Summary, name: str) -> list[Any]:
    return [event for event in read_events(Path(summary.run_dir) / "events.jsonl") if event["event"] == name]


def no_losses(summary: Summary) -> bool:
    return not events(summary, "client_lost")


def test_the_first_round_starts_at_planned_unlike_cuts(tmp_path: Path, profile: Profile) -> None:
    """Over Flower's messages and gRPC: a device a thousand times faster than the server keeps all blocks."""
    files = {0: write(profile, tmp_path / "fast.json", 1e-3), 1: write(profile, tmp_path / "slow.json", 1e3)}
    file = f"telemetry.profile_file={{0: {files[0]}, 1: {files[1]}, 2: {files[1]}}}"
    given = ["algorithm=dynsl_profiled", "telemetry=file", file, "wire=grpc"]
    summary = run_local(compose_in(tmp_path, *given))
    assert events(summary, "round_start")[0]["cuts"] == {"0": 5, "1": 1, "2": 1}
    assert no_losses(summary)
    assert sorted(event["client"] for event in events(summary, "profile")) == [0, 1, 2]


def test_dynsl_begins_at_the_given_cut_whatever_it_knows(tmp_path: Path, profile: Profile) -> None:
    file = write(profile, tmp_path / "slow.json", 1e3)
    given = ["algorithm=dynsl", "telemetry=file", f"telemetry.profile_file={file}", "rounds=1"]
    summary = run(compose_in(tmp_path, *given), InProcessControl(3))
    assert events(summary, "round_start")[0]["cuts"] == {"0": 3, "1": 3, "2": 3}
    told = events(summary, "profile")[0]["block_s"]
    assert told == pytest.approx([1e3 * seconds for seconds in profile.block_s])


def test_a_file_of_another_batch_ends_the_run_before_anybody_is_asked(tmp_path: Path, profile: Profile) -> None:
    file = write(profile, tmp_path / "p.json", 1.0)
    given = ["algorithm=dynsl", "telemetry=file", f"telemetry.profile_file={{1: {file}}}", "data.batch=4"]

    class Unasked(InProcessControl):
        def join(self, clients: int, timeout: float) -> Any:
            pytest.fail("clients were asked to join")

    with pytest.raises(SettingsError, match=r"client 1: telemetry.profile_file=.*batch=8, .* 4; .*dynsl-profile"):
        run(compose_in(tmp_path, *given), Unasked(3))


@pytest.mark.parametrize(("clients", "says"), [((), "clients 0, 1, 2: "), ((0, 2), "client 1: ")])
def test_no_file_for_a_client_of_this_machine_ends_the_run_before_it_begins(
    tmp_path: Path, profile: Profile, clients: tuple[int, ...], says: str
) -> None:
    """Here no node has a file of its own that could take its place."""
    file = write(profile, tmp_path / "p.json", 1.0)
    files = [f"telemetry.profile_file={{{', '.join(f'{client}: {file}' for client in clients)}}}"] if clients else []
    with pytest.raises(SettingsError) as refused:
        run_local(compose_in(tmp_path, "algorithm=dynsl", "telemetry=file", *files))
    assert str(refused.value).startswith(f"{says}telemetry.profile=file takes profiles from files, and there is none")
    assert "make one with dynsl-profile and set telemetry.profile=file telemetry.profile_file=" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_files_that_nothing_is_planned_from_may_be_missing(tmp_path: Path) -> None:
    summary = run_local(compose_in(tmp_path, "algorithm=splitfed_v1", "telemetry=file", "rounds=1"))
    assert no_losses(summary)


def test_nodes_that_all_lack_a_profile_are_named_together(tmp_path: Path) -> None:
    settings = compose_in(tmp_path, "algorithm=dynsl", "telemetry=file", "rounds=1")
    with pytest.raises(RoundFailed) as failed:
        run(settings, InProcessControl(3))
    assert "aggregate. clients 0, 1, 2: SettingsError: telemetry.profile=file, and neither" in str(failed.value)
    assert str(failed.value).count("telemetry.profile=file") == 1


def test_a_node_without_a_profile_is_lost_and_nobody_else(tmp_path: Path, profile: Profile) -> None:
    """The nodes of 0 and 2 have files of their own, and the server has none."""
    own = write(profile, tmp_path / "own.json", 7.0)

    def node(client: int) -> NodeSettings:
        return NodeSettings(client, 3, profile=None if client == 1 else own)

    settings = compose_in(tmp_path, "algorithm=dynsl", "telemetry=file", "rounds=1")
    summary = run(settings, InProcessControl(3, node))
    (lost,) = events(summary, "client_lost")
    assert lost["client"] == 1
    assert "telemetry.profile_file" in lost["reason"]
    assert "dynsl-profile" in lost["reason"]
    told = events(summary, "profile")
    assert sorted(event["client"] for event in told) == [0, 2]
    assert told[0]["block_s"] == pytest.approx([7.0 * seconds for seconds in profile.block_s])


def test_operations_over_a_guessed_speed(tmp_path: Path) -> None:
    summary = run(compose_in(tmp_path, "algorithm=dynsl", "telemetry=flops"), InProcessControl(3))
    assert no_losses(summary)
    told = [event["block_s"] for event in events(summary, "profile")]
    assert told[0] == told[1] == told[2]
    assert len(events(summary, "round_start")[1]["cuts"]) == 3


@pytest.mark.parametrize("mid_epoch", ["true", "false"])
def test_a_client_without_memory_for_more_goes_down_to_what_it_holds(
    tmp_path: Path, profile: Profile, mid_epoch: str
) -> None:
    """In mid-epoch after its first batches, which are slowed so that planning has time; else from the next round on."""
    needed = profile.peak_bytes()

    def node(client: int) -> NodeSettings:
        memory = int(needed[0] / 0.8) + 2 if client == 1 else None
        return NodeSettings(client, 3, memory_bytes=memory, emulate_compute=5.0)

    given = ["algorithm=dynsl", "algorithm.cut=4", "data.limit=720", f"allocator.mid_epoch={mid_epoch}"]
    summary = run(compose_in(tmp_path, *given), InProcessControl(3, node))
    assert no_losses(summary)
    ceilings = {event["client"]: event["max_cut"] for event in events(summary, "profile")}
    assert ceilings == {0: 5, 1: 1, 2: 5}
    first, second = events(summary, "round_start")
    assert (first["cuts"]["1"], second["cuts"]["1"]) == (4, 1)
    moves = [(event["round"], event["cut"]) for event in events(summary, "move") if event["client"] == 1]
    assert moves == ([(1, 1)] if mid_epoch == "true" else [])


@pytest.mark.parametrize("algorithm", ["splitfed_v1", "dynsl"])
def test_each_device_tells_of_itself_once_a_round(tmp_path: Path, algorithm: str) -> None:
    """Also with fixed cuts, and through Flower's messages."""
    summary = run_local(compose_in(tmp_path, f"algorithm={algorithm}"))
    samples = events(summary, "device")
    assert sorted((event["round"], event["client"]) for event in samples) == [(r, c) for r in (1, 2) for c in (0, 1, 2)]
    for event in samples:
        told = event.keys() - {"t", "event", "round", "client"}
        assert {"cpu_percent", "memory_available_bytes", "memory_total_bytes", "process_bytes"} <= told <= BOUNDS.keys()


def test_nonsense_about_a_device_harms_nobody(tmp_path: Path) -> None:
    class Lying(InProcessControl):
        def poll(self, timeout: float) -> list[Reply]:
            lies = {"cpu_percent": 1e9, "memory_total_bytes": "much", "mood": 1.0}
            return [
                replace(reply, device=lies) if isinstance(reply, TrainReply) and reply.client == 1 else reply
                for reply in super().poll(timeout)
            ]

    summary = run(compose_in(tmp_path, "rounds=1"), Lying(3))
    assert no_losses(summary)
    assert sorted(event["client"] for event in events(summary, "device")) == [0, 2]
    (warning,) = events(summary, "warning")
    assert warning["message"].startswith("client 1: of what it tells of its device, this was ignored: ")
    assert json.loads((Path(summary.run_dir) / "summary.json").read_text())["rounds"] == 1
