import logging
import threading
from typing import Any

import pytest

from dynsl_app.telemetry.events import Event, EventStream, SinkDegraded, WithoutBatches


class Failing:
    """Fails on every event, or warns once and goes on."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.handled = 0
        self.closed = 0

    def handle(self, event: Event) -> None:
        self.handled += 1
        if self.handled == 1 or not isinstance(self.error, SinkDegraded):
            raise self.error

    def close(self) -> None:
        self.closed += 1


def test_events_carry_time_since_the_start_and_their_name(recorder: Any) -> None:
    now = iter([100.0, 100.5, 107.25])
    stream = EventStream([recorder], clock=lambda: next(now), start=10.0)
    stream.emit("a", x=1)
    stream.emit("b")
    assert recorder.events == [{"t": 10.5, "event": "a", "x": 1}, {"t": 17.25, "event": "b"}]


def test_a_failing_sink_is_dropped_once_and_the_others_are_told(recorder: Any) -> None:
    bad = Failing(OSError("disk full"))
    stream = EventStream([bad, recorder])
    stream.emit("a")
    stream.emit("b")
    assert bad.handled == 1
    assert bad.closed == 1
    assert [event["event"] for event in recorder.events] == ["a", "warning", "b"]
    assert "Failing" in recorder.events[1]["message"]
    assert "disk full" in recorder.events[1]["message"]


def test_sinks_that_all_fail_leave_a_log_and_no_exception(caplog: pytest.LogCaptureFixture) -> None:
    stream = EventStream([Failing(OSError("first")), Failing(ValueError("second"))])
    with caplog.at_level(logging.WARNING):
        stream.emit("a")
        stream.emit("b")
    assert "first" in caplog.text
    assert "second" in caplog.text


def test_a_degraded_sink_stays(recorder: Any) -> None:
    sink = Failing(SinkDegraded("offline"))
    stream = EventStream([sink, recorder])
    stream.emit("a")
    stream.emit("b")
    assert [event.get("message") for event in recorder.named("warning")] == ["offline"]
    assert sink.handled == 3  # a, its own warning, b


def test_nothing_is_handled_after_close_and_every_sink_is_closed_once(recorder: Any) -> None:
    class Stuck(Failing):
        def close(self) -> None:
            raise OSError("cannot close")

    stream = EventStream([Stuck(SinkDegraded("x")), recorder])
    stream.close()
    stream.close()
    stream.emit("late")
    assert recorder.events == []
    assert recorder.closed == 1


def test_threads_share_one_order(recorder: Any) -> None:
    other = type(recorder)()
    stream = EventStream([recorder, other])
    start = threading.Barrier(4)

    def work(worker: int) -> None:
        start.wait()
        for number in range(200):
            stream.emit("n", worker=worker, number=number)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.events == other.events
    assert len(recorder.events) == 800
    times = [event["t"] for event in recorder.events]
    assert times == sorted(times)
    for worker in range(4):
        assert [e["number"] for e in recorder.events if e["worker"] == worker] == list(range(200))


def test_without_batches_passes_all_but_batch_events(recorder: Any, example: Any) -> None:
    example(WithoutBatches(recorder), rounds=2, batches=50)
    names = {event["event"] for event in recorder.events}
    assert names == {
        "run_start",
        "round_start",
        "stream_open",
        "client_done",
        "round_end",
        "checkpoint",
        "run_end",
    }
    assert recorder.closed == 1
