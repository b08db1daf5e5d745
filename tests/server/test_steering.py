"""What is known of clients before and while they train, and the limits and cuts that follow from it."""

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.algorithms import check
from dynsl_app.allocation.base import BetweenRounds, Report, Situation
from dynsl_app.allocation.dynsl import DynslAllocator
from dynsl_app.allocation.limits import Memory
from dynsl_app.cost.model import Costs, Ints, NoFeasibleCut
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.model.build import build_chain
from dynsl_app.model.probe import probe
from dynsl_app.plan import Plan
from dynsl_app.server.book import Book, Sizes
from dynsl_app.server.director import Measured
from dynsl_app.server.profiles import known_profiles
from dynsl_app.server.steering import Steering, make_steering
from dynsl_app.settings import (
    AlgorithmSettings,
    AllocatorSettings,
    DataSettings,
    ModelSettings,
    Settings,
    TelemetrySettings,
)
from dynsl_app.telemetry.events import Event, EventStream
from dynsl_app.telemetry.profile import to_json
from dynsl_app.telemetry.profiling import from_flops
from dynsl_app.wire.base import Transfer

SERVER_S = (0.01, 0.02, 0.03, 0.04)
SIZES = Sizes(up=(4000, 2000, 1000, 0), down=(4000, 2000, 1000, 0), state=(100, 200, 300, 400))
PEAK = (1_000_000, 2_000_000, 3_000_000, 4_000_000)
HALF = Plan(blocks=4, boundary=4, cuts={0: 2, 1: 2})
SPEC = DataSpec((1, 4, 4), 10)


class Log:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.warned = threading.Event()

    def handle(self, event: Event) -> None:
        self.events.append(event)
        if event["event"] == "warning":
            self.warned.set()

    def close(self) -> None:
        pass

    @property
    def warnings(self) -> list[str]:
        return [event["message"] for event in self.events if event["event"] == "warning"]


@pytest.fixture
def log() -> Log:
    return Log()


Made = Callable[..., Steering]


@pytest.fixture
def steering(log: Log) -> Made:
    """Of two clients; only between rounds, so that nothing happens by itself."""

    def make(*, limits: tuple[int, int] = (1, 4), book: Book | None = None, **changes: Any) -> Steering:
        return Steering(
            DynslAllocator(AllocatorSettings()),
            book or Book(SERVER_S, 8, SIZES, 2**20),
            {0: limits, 1: limits},
            1,
            EventStream([log]),
            **{"memory": Memory(PEAK, 0.8), "mid_epoch": False, **changes},
        )

    return make


def one_round(subject: Steering, *hellos: tuple[int, tuple[float, ...] | None, Any]) -> None:
    subject.begin(1, subject.initial(HALF))
    for client, profile_s, memory_bytes in hellos:
        subject.opened(client, 10, profile_s, memory_bytes)
    subject.end()


def scaled(factor: float) -> tuple[float, ...]:
    return tuple(factor * seconds for seconds in SERVER_S)


def test_a_client_introduces_itself_once(steering: Made) -> None:
    subject = steering()
    assert subject.wants_profile(0)
    one_round(subject, (0, scaled(2), 10**9))
    assert not subject.wants_profile(0)
    assert subject.wants_profile(1)


def test_a_rounds_plan_is_told_as_it_begins(steering: Made, log: Log) -> None:
    """The first round has none: it begins as it is told."""
    subject = steering()
    for round_ in (1, 2):
        plan = subject.initial(HALF)
        assert len(log.events) == 2 * (round_ - 1)  # nothing before the round's own start
        subject.begin(round_, plan)
        plans = [event for event in log.events if event["event"] == "plan"]
        cuts = {str(client): cut for client, cut in plan.cuts.items()}
        assert [{**event, "t": 0} for event in plans] == [
            {"t": 0, "event": "plan", "round": 2, "cuts": cuts} for _ in range(round_ - 1)
        ]
        for client in (0, 1):
            subject.opened(client, 10, scaled(1 + 9 * client), None)
        subject.end()


def test_what_is_known_of_a_client_is_written_down(steering: Made, log: Log) -> None:
    subject = steering(limits=(1, 3))
    one_round(subject, (0, scaled(2), 3_000_000), (1, scaled(1), None))
    first, second = (event for event in log.events if event["event"] == "profile")
    assert (first["client"], first["block_s"], first["memory_bytes"]) == (0, list(scaled(2)), 3_000_000)
    assert (first["min_cut"], first["max_cut"]) == (1, 2)
    assert (second["client"], second["memory_bytes"], second["max_cut"]) == (1, None, 3)
    assert log.warnings == []


def test_memory_holds_back_a_client_that_would_do_more(steering: Made) -> None:
    """Both are so fast that all blocks belong on them; one has memory for three of four."""
    for memory, cut in ((10**9, 4), (3_750_000, 3), (2_500_000, 2), (1_250_000, 1)):
        subject = steering()
        one_round(subject, (0, scaled(1e-4), memory), (1, scaled(1e-4), 10**9))
        assert subject.initial(HALF).cuts == {0: cut, 1: 4}


def test_a_floor_above_the_memory_is_kept_with_a_warning(steering: Made, log: Log) -> None:
    subject = steering(limits=(2, 4))
    one_round(subject, (0, scaled(1e-4), 1_250_000), (1, scaled(1e-4), 10**9))
    assert subject.initial(HALF).cuts == {0: 2, 1: 4}
    (warning,) = log.warnings
    assert warning.startswith("client 0: training blocks 1..2, its floor, needs 2 MB")
    assert warning.endswith("until then it stays at its floor")


def test_no_cut_that_fits_means_the_floor(steering: Made, log: Log) -> None:
    subject = steering()
    one_round(subject, (0, scaled(1e-4), 1000), (1, scaled(1e-4), 10**9))
    assert subject.initial(HALF).cuts == {0: 1, 1: 4}
    assert len(log.warnings) == 1
    assert "client 0" in log.warnings[0]


@pytest.mark.parametrize("memory", [-1, 0, 1.5, math.nan, "much", True, 10**400], ids=str)
def test_nonsense_about_memory_is_named_and_ignored(steering: Made, log: Log, memory: Any) -> None:
    subject = steering()
    one_round(subject, (0, scaled(1e-4), memory), (1, scaled(1e-4), 10**9))
    assert subject.initial(HALF).cuts == {0: 4, 1: 4}
    (warning,) = log.warnings
    assert warning.startswith("client 0: free memory of ")
    assert [event["memory_bytes"] for event in log.events if event["event"] == "profile"] == [None, 10**9]


@pytest.mark.parametrize(
    "profile",
    [(), (1.0, 1.0, 1.0), (1.0, 0.0, 1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (math.nan,) * 4, (math.inf,) * 4, (1.0,) * 9999],
    ids=["none", "missing block", "zero", "negative", "nan", "infinite", "too many"],
)
def test_nonsense_as_a_profile_means_the_servers_own_and_harms_nobody(
    steering: Made, log: Log, profile: tuple[float, ...]
) -> None:
    book = Book(SERVER_S, 8, SIZES, 2**20)
    subject = steering(book=book)
    one_round(subject, (0, profile, 10**9), (1, scaled(3), 10**9))
    assert book.client(0).slowdown.block_s == SERVER_S
    assert book.client(1).slowdown.block_s == scaled(3)
    (warning,) = log.warnings
    assert warning.startswith("client 0: its profile ")
    assert len(warning) < 400


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_throughput_that_is_none_is_named_and_the_plan_stands(steering: Made, log: Log, rate: float) -> None:
    """A frame that took no time, for ever, or less than none."""
    subject = steering()
    seconds = 4e6 / rate if rate else math.inf
    nonsense = Transfer(0.0, seconds, 4 * 2**20, 4)
    subject.begin(1, subject.initial(HALF))
    for client in HALF.cuts:
        subject.opened(client, 10, scaled(30), None)
    for _ in range(3):
        subject.measured(0, Measured(dict(enumerate(scaled(30)[:2], start=1)), nonsense, nonsense, seconds))
    subject.end()
    assert log.warnings
    assert all(warning.startswith("client 0: ") for warning in log.warnings)
    cuts = subject.initial(HALF).cuts
    assert cuts[0] == cuts[1]


def test_a_new_client_among_those_that_are_known_keeps_the_rounds_cuts(steering: Made) -> None:
    """Nothing is known of client 1: all begin as told, within their limits, and it is measured."""
    subject = steering()
    one_round(subject, (0, scaled(1e-4), 2_500_000))
    assert subject.initial(HALF).cuts == {0: 2, 1: 2}
    assert subject.initial(Plan(blocks=4, boundary=4, cuts={0: 3, 1: 3})).cuts == {0: 2, 1: 3}


def test_a_new_client_is_planned_by_its_profile_where_there_is_one(steering: Made) -> None:
    book = Book(SERVER_S, 8, SIZES, 2**20)
    book.introduce(1, scaled(1e-4))
    subject = steering(book=book, expected={})
    one_round(subject, (0, scaled(100), 10**9))
    assert subject.initial(HALF).cuts == {0: 1, 1: 4}


def test_profiles_plan_the_first_round(steering: Made) -> None:
    book = Book(SERVER_S, 8, SIZES, 2**20)
    book.introduce(0, scaled(1e-4))
    book.introduce(1, scaled(100))
    assert steering(book=book, expected={0: 10, 1: 10}).initial(HALF).cuts == {0: 4, 1: 1}
    assert steering(book=book).initial(HALF).cuts == {0: 2, 1: 2}


class Slow(BetweenRounds):
    """Sends everybody to cut 1 once it is let."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def initial(self, costs: Costs, last: Sequence[Report | None]) -> Ints:
        return costs.current

    def due(self, batches_total: int, *, jumped: bool, joined: bool) -> bool:
        return True

    def revise(self, situation: Situation) -> dict[int, int]:
        self.begun.set()
        assert self.let.wait(20)
        return dict.fromkeys(range(len(situation.costs.names)), 1)


@pytest.mark.parametrize(
    ("batch_s", "cut", "told"), [(1e4, 4, 1), (1e-9, 4, None), (1e4, 3, None)], ids=["long", "short", "split"]
)
def test_a_slow_local_client_gets_the_command_that_its_own_news_lead_to(
    log: Log, batch_s: float, cut: int, told: int | None
) -> None:
    """It hears nothing for a whole batch; others, and who is soon done, are not kept waiting for the planner."""
    slow = Slow()
    subject = Steering(
        slow,
        Book(SERVER_S, 8, SIZES, 2**20),
        {0: (1, 4)},
        1,
        EventStream([log]),
        memory=Memory(PEAK, 0.8),
        mid_epoch=True,
    )
    subject.begin(1, Plan(blocks=4, boundary=4, cuts={0: cut}))
    subject.opened(0, 10, tuple(batch_s * seconds / sum(SERVER_S) for seconds in SERVER_S))
    subject.done(0)
    assert slow.begun.wait(20)
    commands: list[int | None] = []
    asking = threading.Thread(target=lambda: commands.append(subject.command(0, cut)))
    asking.start()
    if told is None:
        asking.join()
    slow.let.set()
    asking.join()
    subject.end()
    assert commands == [told]


def test_where_no_plan_is_feasible_training_goes_on_and_the_reason_is_told(log: Log) -> None:
    """A floor above the boundary of a shared head leaves client 1 no cut: at a round's start that is an error."""
    book = Book(SERVER_S, 8, SIZES, 2**20)
    limits = {0: (1, 4), 1: (3, 4)}
    allocator, events, memory = DynslAllocator(AllocatorSettings()), EventStream([log]), Memory(PEAK, 0.8)
    subject = Steering(allocator, book, limits, 1, events, memory=memory, mid_epoch=True, expected={0: 10, 1: 10})
    shared = Plan(blocks=4, boundary=2, cuts={0: 2, 1: 2}, heads=1)
    with pytest.raises(NoFeasibleCut, match=r"client '1' has no feasible cut.*lower min_cut"):
        subject.initial(shared)
    subject.begin(1, shared)
    subject.opened(0, 10, None, None)
    subject.opened(1, 10, None, None)
    subject.done(0)
    assert log.warned.wait(20)
    subject.done(1)
    assert subject.command(0, 2) is None
    subject.end()
    assert "no plan this time: NoFeasibleCut: client '1' has no feasible cut" in log.warnings[0]


def run_settings(**groups: Any) -> Settings:
    data = DataSettings(name="synthetic", shape=SPEC.shape, batch=2)
    return check(Settings(clients=3, model=ModelSettings(name="mlp"), data=data, **groups))


def test_a_profile_by_counting_is_the_same_for_all() -> None:
    settings = run_settings(telemetry=TelemetrySettings(profile="flops", flops_per_s=5e6))
    chain = build_chain(settings.model, SPEC, 0)
    counted = from_flops(chain, SPEC, 2, settings.optimizer, 5e6, model="mlp")
    assert known_profiles(settings, chain, SPEC) == {0: counted, 1: counted, 2: counted}
    assert known_profiles(run_settings(), chain, SPEC) == {}


def test_files_by_client_and_for_all(tmp_path: Path) -> None:
    settings = run_settings()
    chain = build_chain(settings.model, SPEC, 0)
    one, two = (from_flops(chain, SPEC, 2, settings.optimizer, speed, model="mlp") for speed in (1e6, 2e6))
    (tmp_path / "one.json").write_text(to_json(one))
    (tmp_path / "two.json").write_text(to_json(two))

    def known(file: Any) -> dict[int, Any]:
        telemetry = TelemetrySettings(profile="file", profile_file=file)
        return known_profiles(run_settings(telemetry=telemetry), chain, SPEC)

    assert known(str(tmp_path / "one.json")) == {0: one, 1: one, 2: one}
    assert known({0: str(tmp_path / "one.json"), 2: str(tmp_path / "two.json")}) == {0: one, 2: two}
    assert known(None) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"batch": 2', '"batch": 3'), "is for batch=3, this run has 2"),
        (('"model": "mlp"', '"model": "cnn"'), "is for model=cnn, this run has mlp"),
        (('"format": 1', '"format": 2'), "format=2"),
        (("{", "["), "it is not JSON"),
    ],
)
def test_a_file_that_does_not_fit_names_the_client_and_the_remedy(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    file = tmp_path / "p.json"
    telemetry = TelemetrySettings(profile="file", profile_file={2: str(file)})
    settings = run_settings(telemetry=telemetry)
    chain = build_chain(settings.model, SPEC, 0)
    text = to_json(from_flops(chain, SPEC, 2, settings.optimizer, 1e6, model="mlp"))
    assert change[0] in text
    file.write_text(text.replace(*change, 1))
    with pytest.raises(SettingsError) as refused:
        known_profiles(settings, chain, SPEC)
    assert str(refused.value).startswith(f"client 2: telemetry.profile_file={file}: ")
    assert says in str(refused.value)
    assert "dynsl-profile" in str(refused.value)


def test_a_guessed_speed_is_corrected_by_what_is_measured(log: Log) -> None:
    """The whole curve follows two measurements of the blocks that the client has; told a thousandfold too slow."""
    settings = run_settings(
        algorithm=AlgorithmSettings(name="dynsl"), telemetry=TelemetrySettings(profile="flops", flops_per_s=1e6)
    )
    chain = build_chain(settings.model, SPEC, 0)
    subject = make_steering(settings, chain, SPEC, probe(chain, SPEC), {}, EventStream([log]))
    true = from_flops(chain, SPEC, 2, settings.optimizer, 1e9, model="mlp").block_s
    subject.begin(1, Plan(4, 4, {0: 2}))
    subject.opened(0, 10, None, None)
    (told,) = (event for event in log.events if event["event"] == "profile")
    assert told["block_s"] == pytest.approx([1000 * seconds for seconds in true])
    for _ in range(3):
        subject.measured(0, Measured({1: true[0], 2: true[1]}))
    subject.end()
    assert subject._book.client(0).slowdown.block_s == pytest.approx(true, rel=0.02)
