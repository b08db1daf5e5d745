"""Emulated devices: how they slow down work and links, with made-up clocks, and once with real ones."""

import itertools
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.client.emulate import Emulator, emulator_for, in_force
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Change, Device, Fleet
from dynsl_app.model.build import build_chain
from dynsl_app.model.segment import Segment, mean_loss
from dynsl_app.plan import BatchKey
from dynsl_app.settings import ModelSettings, NodeSettings, OptimizerSettings, Settings
from dynsl_app.telemetry.meter import BlockMeter
from dynsl_app.telemetry.profiling import measure
from dynsl_app.wire.base import Pacer

NODE = NodeSettings(0, 4)


class Machine:
    """A machine's clocks, moved by the test: work takes both, waiting one, and sleeps overshoot."""

    def __init__(self, overshoot_s: float = 0.0) -> None:
        self.now = self.used = 0.0
        self.slept: list[float] = []
        self._overshoot_s = overshoot_s

    def work(self, seconds: float, *, contention_s: float = 0.0) -> None:
        self.used += seconds
        self.now += seconds + contention_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self._overshoot_s

    def emulator(self, compute: float = 1.0, changes: tuple[Change, ...] = ()) -> Emulator:
        return Emulator(compute, changes=changes, clock=lambda: self.now, cpu=lambda: self.used, sleep=self.sleep)


@given(
    compute=st.floats(1, 100),
    units=st.lists(st.floats(0, 0.1), min_size=1, max_size=30),
    overshoot_s=st.sampled_from([0.0, 1e-4]),
)
def test_work_takes_compute_times_its_cpu_time(compute: float, units: list[float], overshoot_s: float) -> None:
    """All in all, whatever the units are and however sleeps overshoot; what is owed at the end is less than a sleep."""
    machine = Machine(overshoot_s)
    observer = machine.emulator(compute).around(None)
    observer.begin()
    for block, seconds in enumerate(units):
        machine.work(seconds)
        observer.forward(block)
    assert machine.now == pytest.approx(compute * sum(units), rel=1e-9, abs=2e-4 + 1e-9)


def test_contention_is_not_multiplied() -> None:
    """Three threads share a core: work takes as long as its CPU time says, plus what it waited for the core."""
    machine = Machine()
    observer = machine.emulator(10).around(None)
    observer.begin()
    machine.work(0.010, contention_s=0.020)
    observer.forward(1)
    assert machine.now == pytest.approx(10 * 0.010 + 0.020)


def test_short_debts_wait_until_they_are_worth_a_sleep() -> None:
    machine = Machine()
    observer = machine.emulator(2).around(None)
    observer.begin()
    for block in range(10):
        machine.work(5e-5)
        observer.forward(block)
    assert machine.slept == pytest.approx([2e-4, 2e-4])


def test_what_was_computed_before_the_first_batch_is_not_slowed() -> None:
    machine = Machine()
    emulator = machine.emulator(50)
    machine.work(3)
    observer = emulator.around(None)
    observer.begin()
    assert not machine.slept
    machine.work(0.001)
    observer.begin()
    assert machine.slept == pytest.approx([0.049]), "what lies between two steps is"


def test_the_meter_sees_the_devices_time() -> None:
    machine = Machine()
    meter = BlockMeter(stamp=lambda: machine.now)
    observer = machine.emulator(4).around(meter)
    observer.begin()
    for pass_ in (observer.forward, observer.backward, observer.step):
        for block in (1, 2):
            machine.work(0.001 * block)
            pass_(block)
    assert meter.take() == pytest.approx({1: 0.012, 2: 0.024})


def test_changes_by_batch_and_by_time() -> None:
    """Each is relative to the device as it is listed; of those that have happened, the last one counts."""
    changes = (Change(at_batch=2, client=0, compute=3), Change(at_s=10, client=0, compute=1, link=0.5))
    assert [in_force(changes, batch, 0) for batch in (0, 1, 2, 9)] == [(1, 1), (1, 1), (3, 1), (3, 1)]
    assert in_force(changes, 9, 10) == (1, 0.5)
    machine = Machine()
    emulator = machine.emulator(2, changes)
    observer = emulator.around(None)
    observer.begin()
    machine.work(1)
    observer.forward(1)  # before the round, nothing has happened, whatever the time is
    emulator.begin_epoch()
    for batch in range(4):
        emulator.batch(batch)
        machine.work(1)
        observer.forward(1)
    assert machine.slept == pytest.approx([1, 1, 1, 5, 1])
    emulator.begin_epoch()
    machine.work(1)
    observer.forward(1)
    assert machine.slept[-1] == pytest.approx(1), "every round begins with the device as it is listed"


def _pacer(emulator: Emulator) -> Pacer:
    assert emulator.pacer is not None
    return emulator.pacer


def test_chunks_follow_one_another_and_latency_keeps_none_behind() -> None:
    pacer = _pacer(Emulator(up_Bps=1000, down_Bps=500, rtt_s=0.2))
    assert [pacer.up(100, ready) for ready in (5.0, 5.0, 5.0, 9.0)] == pytest.approx([5.2, 5.3, 5.4, 9.2])
    assert [pacer.down(100, ready) for ready in (5.0, 5.0)] == pytest.approx([5.3, 5.5]), (
        "each way is a line of its own"
    )
    assert pacer.rtt_s == 0.2


@given(sizes=st.lists(st.integers(1, 10**6), min_size=2, max_size=20), rate=st.floats(1e3, 1e9), rtt_s=st.floats(0, 1))
def test_throughput_does_not_depend_on_latency(sizes: list[int], rate: float, rtt_s: float) -> None:
    pacer = _pacer(Emulator(up_Bps=rate, rtt_s=rtt_s))
    first, *_, last = [pacer.up(size, 0.0) for size in sizes]
    assert last - first == pytest.approx(sum(sizes[1:]) / rate, rel=1e-6, abs=1e-9)


def test_an_unlimited_way_only_has_latency() -> None:
    pacer = _pacer(Emulator(up_Bps=1000, rtt_s=0.2))
    assert pacer.down(10**9, 5.0) == 5.1
    assert Emulator(compute=3).pacer is None


def test_a_link_changes_in_mid_epoch() -> None:
    machine = Machine()
    change = Change(at_s=10, client=0, link=0.1)
    emulator = Emulator(up_Bps=1000, changes=(change,), clock=lambda: machine.now)
    emulator.begin_epoch()
    before = _pacer(emulator).up(100, 0.0)
    machine.now = 10
    assert (before, _pacer(emulator).up(100, 10.0)) == pytest.approx((0.1, 11.0))


def test_the_fleet_says_what_a_client_plays() -> None:
    devices = [Device("pi", 2, speed=10, up_Bps=1e3, rtt_s=0.4), Device("jet", speed=40)]
    settings = Settings(fleet=Fleet(devices=devices))
    pi, jet = emulator_for(settings, NODE, 1), emulator_for(settings, NODE, 2)
    assert pi is not None
    assert jet is not None
    assert _pacer(pi).up(1000, 0.0) == pytest.approx(1.2)
    assert jet.pacer is None
    assert emulator_for(Settings(), NODE, 1) is None
    with pytest.raises(SettingsError, match="client 3: fleet=none has 3 devices"):
        emulator_for(settings, NODE, 3)


def test_wired_links_are_played_and_those_that_vary_refused() -> None:
    emulator = emulator_for(Settings(fleet=Fleet(devices=[Device("a", speed=1)], links="wired")), NODE, 0)
    assert emulator is not None
    assert _pacer(emulator).up(117_500_000, 0.0) == pytest.approx(1.00025)
    with pytest.raises(SettingsError, match="device a: links=lte is known to the testbed only"):
        emulator_for(Settings(fleet=Fleet(devices=[Device("a", speed=1)], links="lte")), NODE, 0)


def test_what_the_node_says_of_itself_wins() -> None:
    settings = Settings(fleet=Fleet(devices=[Device("pi", compute=10, up_Bps=1e3)]))
    emulator = emulator_for(settings, NodeSettings(0, 1, emulate_down=500.0), 0)
    assert emulator is not None
    assert _pacer(emulator).up(1000, 0.0) == 0.0
    assert _pacer(emulator).down(1000, 0.0) == 2.0
    alone = emulator_for(Settings(), NodeSettings(0, 1, emulate_rtt=0.5), 0)
    assert alone is not None
    assert _pacer(alone).up(1, 0.0) == 0.25


def test_only_cpus_can_be_slowed() -> None:
    node = NodeSettings(0, 1, device="cuda:0", emulate_compute=2)
    with pytest.raises(SettingsError, match=r"client 0: .*its device is cuda:0; set device=cpu"):
        emulator_for(Settings(), node, 0)
    change = Change(at_s=1, client=0, compute=2)
    fleet = Fleet(devices=[Device("a", compute=1)], changes=[change])
    with pytest.raises(SettingsError, match="device=cpu"):
        emulator_for(Settings(fleet=fleet), NodeSettings(0, 1, device="cuda"), 0)
    assert emulator_for(Settings(), NodeSettings(0, 1, device="cuda", emulate_rtt=0.1), 0) is not None


def test_real_work_is_slowed_by_about_the_factor() -> None:
    """Bounds are wide since the machine may be busy; the thread's own CPU time is what is compared with."""
    torch.set_num_threads(1)
    spec = DataSpec((1, 8, 8), 10)
    emulator, meter = Emulator(8.0), BlockMeter()
    segment = Segment(
        build_chain(ModelSettings(), spec, 0).span(0, 5), OptimizerSettings(), observer=emulator.around(meter)
    )
    x, y = torch.randn(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)

    def batch(number: int) -> None:
        segment.backward(mean_loss(segment.forward(x, [(BatchKey(0, 0, 0, number), 8)]), y))
        segment.step(1e-3)

    batch(0)
    meter.take()
    began, used = time.monotonic(), time.thread_time()
    for number in range(1, 9):
        batch(number)
    took, used = time.monotonic() - began, time.thread_time() - used
    assert 6 < took / used < 16
    assert sum(meter.take().values()) == pytest.approx(took, rel=0.3)


def test_a_profile_is_the_emulated_devices() -> None:
    """The estimators must not be told, so what is measured before the first batch has to be slow already."""
    spec = DataSpec((1, 8, 8), 10)
    ticks = itertools.count()
    emulator = Emulator(2.0, cpu=lambda: 0.005 * next(ticks))  # each of a block's three passes owes 5 ms
    profile = measure(
        build_chain(ModelSettings(), spec, 0), spec, 8, OptimizerSettings(), model="cnn", around=emulator.around
    )
    assert all(seconds >= 0.012 for seconds in profile.block_s)
