"""Client processes that are killed or stop in mid-epoch, over gRPC with TLS (user cases 17, 20)."""

import os
import signal

import pytest

POLICIES = {
    "separate heads": ["algorithm=splitfed_v1"],
    "lockstep": ["algorithm=psl"],
    "one step a request": ["algorithm=splitfed_v2"],
}


def trained(victim: int, batch: int):
    """The event that says so."""
    return lambda event: event["event"] == "step" and [victim, batch] in [member[:2] for member in event["members"]]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_killed_process_is_lost_and_the_others_finish(trial, watch, processes, policy: str) -> None:
    control = processes()
    watch.when(trained(1, 1), lambda: os.kill(control.pids[1], signal.SIGKILL))
    trial(*POLICIES[policy], control=control, watch=watch)
    assert watch.lost.keys() == {1}
    assert "BrokenProcessPool" in watch.lost[1]
    assert len(watch.batches(1)) < 4
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]
    (end,) = watch.named("round_end")
    assert (end["clients"], end["lost"], end["samples"]) == (2, [1], 24)


def test_a_killed_process_that_nobody_reports_is_lost_by_its_stream(trial, watch, processes) -> None:
    """User case 32: the group that waits for it goes on after faults.reconnect_s."""
    control = processes(tells=False)
    watch.when(trained(1, 1), lambda: os.kill(control.pids[1], signal.SIGKILL))
    trial("algorithm=psl", "faults.reconnect_s=0.3", control=control, watch=watch)
    assert watch.lost.keys() == {1}
    assert "did not come back within faults.reconnect_s=0.3 s" in watch.lost[1]
    assert [event["client"] for event in watch.named("stream_lost")] == [1]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_a_stopped_process_is_lost_by_its_heartbeat(trial, watch, processes) -> None:
    """User case 27: the connection stands, and nobody is there."""
    control = processes()
    watch.when(trained(1, 1), lambda: os.kill(control.pids[1], signal.SIGSTOP))
    watch.when(lambda event: event["event"] == "round_end", lambda: os.kill(control.pids[1], signal.SIGKILL))
    trial("algorithm=psl", "wire.heartbeat_s=0.7", "faults.reconnect_s=2", control=control, watch=watch)
    assert watch.lost.keys() == {1}
    assert "no sign of life" in watch.named("stream_lost")[0]["reason"]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_the_next_round_goes_on_without_a_dead_client(trial, watch, processes) -> None:
    control = processes()
    watch.when(trained(2, 0), lambda: os.kill(control.pids[2], signal.SIGKILL))
    outcome = trial("rounds=3", control=control, watch=watch)
    assert [event["lost"] for event in watch.named("round_end")] == [[2], [2], [2]]
    assert [event["round"] for event in watch.named("client_lost", client=2)] == [1, 2, 3]
    assert outcome.folder.summary.exists()
