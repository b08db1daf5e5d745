"""Whole runs in virtual time: the same bits again, decisions from telemetry alone, refusals, and what they cost."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.compose import compose
from dynsl_app.errors import DynslError, RoundFailed, SettingsError
from dynsl_app.server.book import Book
from dynsl_app.server.steering import Steering
from dynsl_app.telemetry.events import Event
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.testbed import run as testbed_run
from dynsl_app.testbed.run import run_testbed, simulate_rounds

BASE = ["runtime=testbed", "model=cnn", "testbed.batches=20", "rounds=2", "logging.console=off"]
CHANGING = [*BASE, "model=resnet18", "fleet.links=wifi", "fleet.server=weak", "dynamics=background"]


class Kept:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]


def played(*overrides: str) -> Kept:
    kept = Kept()
    simulate_rounds(compose(overrides), [kept])
    return kept


# -- the same again --------------------------------------------------------------------------------------------------

_IN_A_PROCESS = """\
import sys
from dynsl_app.compose import compose
from dynsl_app.testbed.run import run_testbed
run_testbed(compose(sys.argv[1:]))
"""


@pytest.mark.parametrize("compute", ["phantom", "real"])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, compute: str) -> None:
    """In another folder and another process, whose hashes of strings differ; another seed does not."""
    own = [*CHANGING, "algorithm=dynsl", f"testbed.compute={compute}"]
    own += [] if compute == "phantom" else ["data.limit=240", "model=cnn"]
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        arguments = [*own, f"seed={seed}", f"run_dir={tmp_path / name}"]
        subprocess.run([sys.executable, "-c", _IN_A_PROCESS, *arguments], check=True, timeout=300)
    one, two, other = ((tmp_path / name / "events.jsonl").read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other
    if compute == "real":
        models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")]
        assert models[0] == models[1] != models[2]


def test_a_fleets_change_after_the_last_batch_is_warned_of(tmp_path: Path) -> None:
    """The demo's fleet changes at batch 15."""
    for batches, changes in ((16, 1), (15, 0)):
        folder = tmp_path / str(batches)
        own = [*BASE, "algorithm=splitfed_v1", "fleet=demo", f"testbed.batches={batches}", f"run_dir={folder}"]
        run_testbed(compose(own))
        events = list(read_events(folder / "events.jsonl"))
        said = [event["message"] for event in events if event["event"] == "warning"]
        assert sum(event["event"] == "happening" for event in events) == 2 * changes
        assert len(said) == 1 - changes
        assert all("fleet=demo: change 0, at_batch=15, never happens to client 3: " in message for message in said)


def test_times_are_virtual(tmp_path: Path) -> None:
    """Every event's time is the simulation's: the last one's is what the rounds take, hours here."""
    slow = "{name: slow, devices: [{name: device, count: 3, speed: 0.01}], server: {speed: 1}}"
    file = tmp_path / "slow.yaml"
    file.write_text(slow)
    run_testbed(compose([*BASE, "algorithm=splitfed_v1", f"fleet.file={file}", f"run_dir={tmp_path / 'run'}"]))
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    rounds = [event["epoch_s"] for event in events if event["event"] == "round_end"]
    assert min(rounds) > 60
    assert events[-1]["t"] == pytest.approx(sum(rounds), rel=1e-6)
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epoch_s"] == rounds


# -- what an allocator knows -----------------------------------------------------------------------------------------


class Recording(Steering):
    """Keeps what it is told, and the answers that it gave."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]]


_TOLD = (
    "initial", "join", "wants_profile", "begin", "end", "opened", "measured", "served", "beat", "coming", "arrived",
    "done", "command", "probe", "moved", "left",
)  # fmt: skip


def _recorded(name: str) -> Callable[..., Any]:
    def method(self: Recording, *args: Any, **kwargs: Any) -> Any:
        answer = getattr(Steering, name)(self, *args, **kwargs)
        self.calls.append((name, args, kwargs, answer))
        self.times.append(self._clock())
        return answer

    return method


for _name in _TOLD:
    setattr(Recording, _name, _recorded(_name))


@pytest.mark.parametrize("algorithm", ["dynsl", "dynsl_profiled", "ares", "dtfl", "sfsl"])
def test_decisions_follow_from_telemetry_alone(monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """What a director was told in one world, told again in no world at all, gives the same decisions."""
    profiles: dict[int, tuple[float, ...]] = {}
    made: list[tuple[Recording, tuple[Any, ...], dict[str, Any], Book]] = []

    def steering(allocator: Any, book: Book, *args: Any, **kwargs: Any) -> Recording:
        one = Recording(allocator, book, *args, **kwargs)
        one.calls, one.times = [], []
        made.append((one, args, kwargs, book))
        # What had been given as measured before the run.
        profiles.update({client: tuple(book.client(client).slowdown.block_s) for client in kwargs["expected"] or ()})
        return one

    overrides = [*CHANGING, f"algorithm={algorithm}", "rounds=3", "testbed.noise=0.1"]
    monkeypatch.setattr(testbed_run, "Steering", steering)
    simulate_rounds(compose(overrides))
    (first, args, kwargs, book), settings = made[0], compose(overrides)
    again = Book(book._profile_s, book._batch, book._sizes, book._chunk)  # as the testbed makes it
    for client, profile in profiles.items():
        again.introduce(client, profile)
    now = iter(first.times)
    time_s = [0.0]
    replayed = Steering(testbed_run.make_allocator(settings), again, *args, **{**kwargs, "clock": lambda: time_s[0]})
    for name, arguments, named, answer in first.calls:
        time_s[0] = next(now)
        assert getattr(replayed, name)(*arguments, **named) == answer, (name, arguments)
    answers = [answer for name, _, _, answer in first.calls if name in ("initial", "command") and answer is not None]
    assert len(answers) > (10 if algorithm.startswith("dynsl") else 2)
    assert len({tuple(answer.cuts.values()) for answer in answers if not isinstance(answer, int)}) > 1


def test_what_telemetry_does_not_show_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power, true memory beyond what was told, jitter's law, future happenings: swapped, and the past stays."""
    whole = played(*CHANGING, "algorithm=dynsl", "rounds=1")
    real = testbed_run.with_happenings
    middle_s = 0.5 * sum(whole.named("happening")[at]["t"] for at in (2, 3))

    def another(*args: Any) -> Any:
        world = real(*args)
        clients = [
            replace(one, power=replace(one.power, compute_W=999.0), device="other", name=f"x{number}")
            for number, one in enumerate(world.clients)
        ]
        late = [one if one.at_s < middle_s else replace(one, factor=7 * one.factor) for one in world.happenings]
        return replace(world, clients=tuple(clients), happenings=tuple(late))

    monkeypatch.setattr(testbed_run, "with_happenings", another)
    swapped = played(*CHANGING, "algorithm=dynsl", "rounds=1")

    def before(kept: Kept) -> list[Event]:
        return [event for event in kept.events if event["t"] < middle_s and event["event"] in ("plan", "move", "step")]

    assert any(event["event"] == "plan" for event in before(whole))
    assert before(whole) == before(swapped)
    assert whole.named("round_end") != swapped.named("round_end")


# -- every algorithm and placement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", ["heads.count=1", "heads.count=3"])
def test_shared_heads_below_a_boundary_move_within_it(heads: str) -> None:
    given = [heads, "heads.boundary=3", "algorithm.cut=2", "dynamics=double"]
    kept = played(*BASE, "algorithm=dynsl", "fleet.server=weak", *given)
    moves = kept.named("move")
    assert moves
    assert {event["cut"] for event in moves} <= {1, 2, 3}
    assert {event["head"] for event in kept.named("step")} == set(range(int(heads[-1])))
    assert not kept.named("client_lost")
    assert not kept.named("warning")
    assert [event["clients"] for event in kept.named("round_end")] == [48, 48]


def test_an_overdue_upload_is_evidence_before_it_ends() -> None:
    """A third of the links falls to a hundredth while 0.26 MB are on their way: the estimate is lowered meanwhile."""
    falls = []

    class Seeing(Steering):
        def coming(self, client: int, part: Any, seconds: float) -> None:
            before = self._book.client(client).link.up.value
            super().coming(client, part, seconds)
            after = self._book.client(client).link.up.value
            falls.append(after < before / 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testbed_run, "Steering", Seeing)
        links = ["fleet.links=wifi", "dynamics=links_drop", "wire.chunk_bytes=4096"]
        simulate_rounds(compose([*BASE, "algorithm=dynsl", "algorithm.cut=1", *links, "allocator.max_cut=2"]))
    assert any(falls)


# -- what is told ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dynsl allocator.mid_epoch=false", "ares", "dtfl", "sfsl"])
def test_algorithms_that_plan_between_rounds_tell_their_plans(algorithm: str) -> None:
    kept = played(*BASE, *f"algorithm={algorithm}".split())
    first, second = kept.named("round_start")
    (plan,) = kept.named("plan")
    assert (plan["round"], plan["cuts"]) == (2, second["cuts"])
    assert set(first["cuts"].values()) == {3}
    assert kept.events[kept.events.index(second) + 1] == plan


def test_plans_for_clients_that_join_are_told() -> None:
    kept = played(*BASE, "algorithm=dynsl", "allocator.mid_epoch=false", "dynamics=double")
    newcomers = [str(client) for client in range(24, 48)]
    opened = {str(event["client"]): event["cut"] for event in kept.named("stream_open") if event["client"] >= 24}
    joined = [event for event in kept.named("plan") if sorted(event["cuts"]) == newcomers]
    assert [event["round"] for event in joined] == [1, 2]
    assert joined[-1]["cuts"] == opened


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [0, 23])
def test_a_link_dead_to_the_end_is_reported_and_the_run_ends(tmp_path: Path, client: int) -> None:
    file = tmp_path / "dead.yaml"
    file.write_text(f"name: dead\nrows:\n  - {{at: 0.05, client: {client}, link: 0}}\n")
    kept = played(*BASE, "algorithm=splitfed_v1", f"dynamics.file={file}")
    for number, lost in enumerate(kept.named("client_lost"), start=1):
        assert (lost["round"], lost["client"]) == (number, client)
        assert "faults.batch_s=300" in lost["reason"]
    assert [event["lost"] for event in kept.named("round_end")] == [[client]] * 2
    assert [event["clients"] for event in kept.named("round_end")] == [23] * 2


def test_a_round_that_nobody_finishes_is_an_error_with_reasons(tmp_path: Path) -> None:
    file = tmp_path / "gone.yaml"
    file.write_text("name: gone\nrows:\n  - {at: 0.05, share: 1.0, action: crash}\n")
    with pytest.raises(RoundFailed, match=r"aggregate\. clients 0, 1, 2, … 23 \(24 in all\): it crashed$"):
        simulate_rounds(compose([*BASE, "algorithm=splitfed_v1", f"dynamics.file={file}"]))


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["algorithm=splitfed_v1", "heads.count=3"], "heads.count=3 contradicts algorithm=splitfed_v1"),
        (["algorithm=splitfed_v1", "server.policy=lockstep"], "server.policy=lockstep"),
        (["algorithm.cut=99"], "algorithm.cut=99"),
        (["+testbed.profiles.toaster=x.json"], "x.json"),
        (["testbed.compute=real", "data.limit=3"], "data.limit"),
        (["testbed.compute_jitter=2"], "testbed.compute_jitter"),
        (["allocator.min_cut=4", "allocator.max_cut=2"], "min_cut"),
        (["fleet.devices=[{name: a, compute: 2}]"], "reference"),
        (["clients=3"], "clients"),
        (["clients_per_round=2"], "clients_per_round"),
        (["dynamics=double", "dynamics.rounds=[9]"], r"dynamics.rounds=\[9\]: there are only 2 rounds"),
        (["testbed.shape=[3,1,1]"], "testbed.shape"),
        (["fleet.devices=[{name: a, speed: 1e300}]"], "an epoch of this fleet takes 0 s"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_and_leaves_no_folder(tmp_path: Path, overrides: list[str], match: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DynslError, match=match):
        run_testbed(compose([*BASE, *overrides, f"run_dir={folder}"]))
    assert not folder.exists()


def test_runs_in_virtual_time_are_not_resumed(tmp_path: Path) -> None:
    settings = compose([*BASE, "algorithm=splitfed_v1"])
    with pytest.raises(SettingsError, match="resume is for runs in real time"):
        run_testbed(replace(settings, resume=str(tmp_path)))


def test_who_joins_first_of_all_is_not_there_before(tmp_path: Path) -> None:
    """A client of the fleet, too; in a round in which nothing happens it is there."""
    file = tmp_path / "late.yaml"
    file.write_text("name: late\nrounds: [2]\nrows:\n  - {at: 0.5, client: 0, action: join}\n")
    kept = played(*BASE, "fleet=demo", f"dynamics.file={file}", "algorithm=uniform")
    assert [event["clients"] for event in kept.named("round_start")] == [[0, 1, 2, 3], [1, 2, 3]]
    opened = [event["t"] for event in kept.named("stream_open") if (event["round"], event["client"]) == (2, 0)]
    assert opened > [kept.named("round_start")[1]["t"]]
    assert [event["clients"] for event in kept.named("round_end")] == [4, 4]


def test_a_round_whose_every_batch_is_refused_ends_by_name(tmp_path: Path) -> None:
    settings = [*BASE, "fleet=demo", "testbed.compute=real", "data.limit=96", "optimizer=sgd", "optimizer.lr=1e30"]
    with pytest.raises(RoundFailed, match=r"NaN or Inf; lower optimizer\.lr") as caught:
        run_testbed(compose([*settings, "algorithm=splitfed_v1", f"run_dir={tmp_path / 'run'}"]))
    assert caught.value.run_dir == tmp_path / "run"


def test_newcomers_without_data_are_refused(tmp_path: Path) -> None:
    settings = compose([*BASE, "fleet=demo", "testbed.compute=real", "dynamics=double", f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(SettingsError, match="no data for 4 clients that come beyond the fleet's 4"):
        run_testbed(settings)
    assert not (tmp_path / "run").exists()


def test_settings_say_in_which_rounds_a_files_changes_happen(tmp_path: Path) -> None:
    file = tmp_path / "slower.yaml"
    file.write_text("name: slower\nrows:\n  - {at: 0.5, client: 0, compute: 9}\n")
    kept = played(*BASE, "fleet=demo", f"dynamics.file={file}", "dynamics.rounds=[1]", "algorithm=uniform")
    slowed = [event["round"] for event in kept.named("happening") if ["compute", 0, 9.0] in event["what"]]
    assert slowed == [1]
