"""Real training in virtual time has the bits of the real runtime: placement, moves and the clock change nothing."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from parity_cases import MODELS, OPTIMIZERS, UNEQUAL, assert_same

from dynsl_app.compose import compose
from dynsl_app.inprocess import InProcessControl
from dynsl_app.run import run
from dynsl_app.server.folder import RunFolder
from dynsl_app.telemetry.events import Event
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.testbed import run as testbed_run
from dynsl_app.testbed.run import Fixed, run_testbed

COMMON = [*UNEQUAL, "data.limit=36", "rounds=2", "logging.console=off"]
"""Three clients with unequal data by quantity."""

SHARED = ["algorithm=uniform", "heads.count=1", "heads.boundary=3", "algorithm.cut=2", "server.policy=lockstep"]

FLEET = """\
name: three
devices:
  - {name: fast, speed: 50, up_Bps: 1.0e+8, down_Bps: 1.0e+8, rtt_s: 0.001}
  - {name: slow, speed: 0.2, up_Bps: 1.0e+7, down_Bps: 1.0e+7, rtt_s: 0.001}
  - {name: far, speed: 1, up_Bps: 1.0e+5, down_Bps: 1.0e+6, rtt_s: 0.05}
server: {speed: 20, workers: 1, call_s: 0.001}
"""
MOVING = "name: moving\nrows:\n  - {at: 0.1, client: 0, compute: 500}\n  - {at: 0.3, client: 1, link: 0.01}\n"


@pytest.fixture
def both(tmp_path: Path) -> Callable[..., tuple[RunFolder, RunFolder]]:
    """Trains by the real runtime with some overrides, and in the testbed with as many, or others."""
    fleet, moving = tmp_path / "fleet.yaml", tmp_path / "moving.yaml"
    fleet.write_text(FLEET)
    moving.write_text(MOVING)

    def both(*overrides: str, testbed: tuple[str, ...] | None = None) -> tuple[RunFolder, RunFolder]:
        real, virtual = RunFolder(tmp_path / "real"), RunFolder(tmp_path / "virtual")
        settings = compose([*COMMON, *overrides, f"run_dir={real.path}"])
        run(settings, InProcessControl(settings.clients))
        own = ["runtime=testbed", "testbed.compute=real", f"fleet.file={fleet}", f"dynamics.file={moving}"]
        given = overrides if testbed is None else testbed
        run_testbed(compose([*COMMON, *given, *own, f"run_dir={virtual.path}"]))
        assert not [*events(real, "client_lost"), *events(virtual, "client_lost")]
        return real, virtual

    return both


def events(folder: RunFolder, name: str) -> list[Event]:
    return [event for event in read_events(folder.events) if event["event"] == name]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["cnn", "mobilenet_v2"])
def test_a_shared_head_in_lockstep(
    both: Callable[..., tuple[RunFolder, RunFolder]], model: str, optimizer: str
) -> None:
    """With dropout and private blocks at the server; losses and accuracies of the rounds agree, too."""
    real, virtual = both("wire=inprocess", f"model={model}", *MODELS[model], *OPTIMIZERS[optimizer], *SHARED)
    assert_same(real, virtual)
    for own, other in zip(events(real, "round_end"), events(virtual, "round_end"), strict=True):
        for name in ("train_loss", "train_accuracy", "loss", "accuracy", "samples", "clients"):
            assert own[name] == pytest.approx(other[name], rel=1e-12), name
    groups = [[event["members"] for event in events(folder, "step")] for folder in (real, virtual)]
    assert groups[0] == groups[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["cnn", "resnet18"])
def test_separate_heads(both: Callable[..., tuple[RunFolder, RunFolder]], model: str, optimizer: str) -> None:
    common = ["wire=inprocess", f"model={model}", *MODELS[model], *OPTIMIZERS[optimizer]]
    assert_same(*both(*common, "algorithm=splitfed_v1"))


@pytest.mark.parametrize("model", ["cnn", "mobilenet_v2"])
def test_losses_of_the_clients_own(both: Callable[..., tuple[RunFolder, RunFolder]], model: str) -> None:
    """Who trains on, and when its activation is served, changes nothing: only the cut does."""
    limits = ["allocator.min_cut={0: 1, 1: 3, 2: 1}", "allocator.max_cut={0: 1, 1: 3, 2: 1}"]
    common = ["wire=inprocess", f"model={model}", *MODELS[model], "optimizer.persist=run", *limits]
    assert_same(*both(*common, "algorithm=dtfl_localloss"))


class Wandering(Fixed):
    """Sends every client to a random cut after about every other batch."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    def command(self, client: int, cut: int) -> int | None:
        return self._random.randint(1, 5) if self._random.random() < 0.6 else None


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_moves_in_mid_epoch_change_no_bit(
    both: Callable[..., tuple[RunFolder, RunFolder]], monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """Moves both ways and from and to fully local, against fully local training for real; momentum kept for the run."""
    common = ["wire=inprocess", "model=cnn", *MODELS["cnn"], *OPTIMIZERS[optimizer], "local_epochs=2", "rounds=2"]
    common += ["optimizer.persist=run"]
    monkeypatch.setattr(testbed_run, "Fixed", Wandering)
    real, virtual = both(*common, "algorithm=fedavg", testbed=(*common, "algorithm=splitfed_v1"))
    moves = events(virtual, "move")
    assert {event["cut"] > event["cut_before"] for event in moves} == {True, False}
    assert {5} < {event["cut"] for event in moves}
    assert {5} < {event["cut_before"] for event in moves}
    assert_same(real, virtual)


def test_dynsl_changes_no_bit(both: Callable[..., tuple[RunFolder, RunFolder]]) -> None:
    common = ["wire=inprocess", "model=cnn", *MODELS["cnn"], *OPTIMIZERS["adam"], "local_epochs=6"]
    real, virtual = both(*common, "algorithm=fedavg", testbed=(*common, "algorithm=dynsl", "algorithm.cut=3"))
    second = events(virtual, "round_start")[1]["cuts"]
    assert events(virtual, "move") or set(second.values()) != {3}
    assert_same(real, virtual)


def test_the_recorded_groups_of_a_virtual_run_can_be_replayed_for_real(
    both: Callable[..., tuple[RunFolder, RunFolder]], tmp_path: Path
) -> None:
    """Continuous merging is decided by virtual time; the real runtime gets the same bits from its groups."""
    common = ["wire=inprocess", "model=cnn", "algorithm=uniform", "heads.count=1", "heads.boundary=3"]
    busy = "+fleet.server={speed: 20, workers: 1, call_s: 1}"
    own = (*common, "server.policy=continuous")
    _, virtual = both(*own, testbed=(*own, busy))
    again = tmp_path / "again"
    settings = compose(
        [*COMMON, *common, "server.policy=replay", f"server.replay={virtual.events}", f"run_dir={again}"]
    )
    run(settings, InProcessControl(settings.clients))
    assert_same(virtual, RunFolder(again))
    assert len({len(event["members"]) for event in events(virtual, "step")}) > 1
