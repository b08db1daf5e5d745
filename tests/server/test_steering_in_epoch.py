"""Steering on a made-up clock: the server's side of an epoch is told what happens and asked for commands."""

from collections.abc import Callable, Iterator

import pytest

from dynsl_app.allocation.dynsl import DynslAllocator
from dynsl_app.allocation.limits import Memory
from dynsl_app.plan import Plan
from dynsl_app.server.book import Book, Sizes
from dynsl_app.server.director import Measured
from dynsl_app.server.steering import Steering
from dynsl_app.settings import AllocatorSettings
from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.probing import SHARE
from dynsl_app.wire.base import Transfer

BLOCKS, BATCH, CHUNK = 4, 8, 1 << 16
SERVER_S = (0.004, 0.003, 0.002, 0.001)
SLOWNESS = 20.0
SIZES = Sizes(up=(40_000, 30_000, 20_000, 0), down=(40_000, 30_000, 20_000, 0), state=(9000, 9000, 9000, 9000))
RTT_S = 0.004
GOOD_BPS, BAD_BPS = 5e6, 2e4

Rate = Callable[[int], float]


@pytest.fixture
def steer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Steering]]:
    """Starts rounds of client 0; the test plans when it is time to, in the planner's place."""
    started: list[Steering] = []

    def start(cut: int, batches: int) -> Steering:
        limits = {0: (1, BLOCKS)}
        known = Book(SERVER_S, BATCH, SIZES, CHUNK)
        steering = Steering(
            DynslAllocator(AllocatorSettings()),
            known,
            limits,
            1,
            EventStream([]),
            memory=Memory((1,) * BLOCKS, 1.0),
            mid_epoch=True,
        )
        started.append(steering)
        steering.begin(1, placed(cut))
        steering.opened(0, batches, tuple(SLOWNESS * seconds for seconds in SERVER_S))
        return steering

    monkeypatch.setattr(Steering, "_plan_loop", lambda self: None)
    yield start
    for each in started:
        each.end()


def placed(cut: int) -> Plan:
    return Plan(BLOCKS, BLOCKS, {0: cut})


def plan_if_due(steering: Steering) -> None:
    if steering._due:
        steering._due = False
        steering._revise(steering._plan)


class Device:
    """Client 0, twenty times slower than the server, behind a link of so many bytes per second by batch."""

    def __init__(self, steering: Steering, cut: int, rate: Rate) -> None:
        self._steering, self._rate = steering, rate
        self.cut, self.cuts = cut, []
        self.now = self.alone_s = self.probing_s = 0.0
        self.probes = 0
        self._asked = 0
        self._told: Measured | None = None

    def train(self, batches: int) -> None:
        for batch in range(batches):
            self.cuts.append(self.cut)
            self._batch(batch, self._rate(batch))

    def _batch(self, batch: int, Bps: float) -> None:
        compute_s = {block: SLOWNESS * SERVER_S[block - 1] for block in range(1, self.cut + 1)}
        self.now += sum(compute_s.values())
        told, self._told = self._told, Measured(compute_s)
        up_bytes = down_bytes = self._asked
        split = self.cut < BLOCKS
        if split:
            up_bytes, down_bytes = SIZES.up[self.cut - 1], SIZES.down[self.cut - 1]
        began = self.now
        self._steering.beat(0, RTT_S)
        up = self._transfer(up_bytes, Bps)
        if told is not None:
            self._steering.measured(0, told)
        if up_bytes:
            self._steering.arrived(0, up)
        if split:
            held_s = 5e-4 + sum(SERVER_S[self.cut :])
            self.now += held_s
            self._steering.served(None, [(self.cut, BATCH)], held_s, 0.0)
            began += held_s
        self._steering.done(0)
        plan_if_due(self._steering)
        command = self._steering.command(0, self.cut)
        self._asked = 0 if split or command is not None else self._steering.probe(0)
        if up_bytes:
            down = self._transfer(down_bytes, Bps)
            self._told = Measured(compute_s, up, down, self.now - began)
        if not split:
            self.alone_s += sum(compute_s.values())
            self.probing_s += self.now - began
            self.probes += up_bytes > 0
        if command is not None:
            self.now += sum(SIZES.state[min(self.cut, command) : max(self.cut, command)]) / Bps
            self.cut = command
            self._steering.moved(0, command)

    def _transfer(self, size: int, Bps: float) -> Transfer:
        if not size:
            return Transfer(self.now, self.now, 0, 0)
        first = self.now + RTT_S / 2 + min(size, CHUNK) / Bps
        self.now = max(first, self.now + RTT_S / 2 + size / Bps)
        return Transfer(first, self.now, size, -(-size // CHUNK))


def broken_between(first: int, last: int) -> Rate:
    return lambda batch: BAD_BPS if first <= batch < last else GOOD_BPS


def test_a_local_client_whose_link_recovers_is_called_back(steer) -> None:
    """Split while the link is good, local while it is bad, split again; and cheap in between."""
    batches, broken, mended = 400, 30, 200
    device = Device(steer(2, batches), 2, broken_between(broken, mended))
    device.train(batches)
    assert device.cuts[broken - 1] < BLOCKS
    assert device.cuts[mended - 1] == BLOCKS
    back = next(batch for batch in range(mended, batches) if device.cuts[batch] < BLOCKS)
    print(f"called back after {back - mended} batches; {device.probes} probes took {device.probing_s:.3f} s")
    assert back - mended <= 60
    assert all(cut < BLOCKS for cut in device.cuts[back:])
    assert 0 < device.probing_s <= SHARE * device.alone_s


def test_without_probes_it_would_stay_local(steer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Book, "probe", lambda self, client, batch: 0)
    device = Device(steer(2, 400), 2, broken_between(30, 200))
    device.train(400)
    assert set(device.cuts[200:]) == {BLOCKS}


def test_a_link_that_stays_bad_keeps_its_client_local(steer) -> None:
    device = Device(steer(2, 400), 2, broken_between(30, 400))
    device.train(400)
    assert set(device.cuts[60:]) == {BLOCKS}
    assert 0 < device.probing_s <= SHARE * device.alone_s


def test_an_upload_that_hangs_leads_to_a_plan_before_it_ends(steer) -> None:
    """The watch looks at it every tenth of a second; nobody is done with a batch meanwhile."""
    steering = steer(2, 400)
    device = Device(steering, 2, lambda batch: GOOD_BPS)
    device.train(20)
    assert device.cut < BLOCKS
    believed = steering._book.client(0).link.up.value
    began, seconds = device.now, 0.0
    while not steering._courses[0].command:
        seconds += 0.1
        assert seconds < 60
        steering.coming(0, Transfer(began, began, CHUNK, 1), seconds)
        plan_if_due(steering)
    assert steering._book.client(0).link.up.value == pytest.approx(CHUNK / seconds)
    assert CHUNK / seconds <= believed / 2
    assert steering.command(0, device.cut) == BLOCKS


def test_heartbeats_are_the_round_trip_that_plans_count_with(steer) -> None:
    steering = steer(2, 10)
    for seconds in (0.25, 0.2, 0.25, 0.3):
        steering.beat(0, seconds)
    rtt = steering._book.client(0).link.rtt
    assert (rtt.value, rtt.samples) == (0.2, 4)
    assert rtt.spread == pytest.approx(0.05)
    costs = steering._situation([0], placed(2)).costs
    without = SIZES.up[0] / steering._book.client(0).link.up.value + SIZES.down[0] / 12.5e6
    assert costs.transfer_s[0, 0] == pytest.approx(0.2 + without)
