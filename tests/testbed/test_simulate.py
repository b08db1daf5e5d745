"""Rounds in virtual time against what they take by hand.

At cut 1 a batch of the usual device takes 1 s of its own, 400 B up at 100 B/s and down at 200 B/s, 0.5 s of round trip
and 0.95 s at the server: 1 + 4 + 2 + 0.5 + 0.95 = 8.45 s. At cut 2: 3 + 2 + 1 + 0.5 + 0.75 = 7.25 s.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import Recorder, device, lockstep, play, sequential, world_of

from dynsl_app.cost.queueing import simulate
from dynsl_app.server.batching import Policy
from dynsl_app.testbed.links import Looped
from dynsl_app.testbed.oracle import true_costs
from dynsl_app.testbed.world import Happening

END = 0.25
"""Half the round trip, with which the word that a client is done arrives."""


@pytest.mark.parametrize(("cut", "batch_s"), [(1, 8.45), (2, 7.25), (3, 6 + 1 + 0.5 + 0.5 + 0.45), (4, 10.0)])
def test_one_client_takes_what_the_formula_says(cut: int, batch_s: float) -> None:
    """R(C + A/β↑ + G/β↓ + rtt + h0 + Σ s), ALGORITHMS §5; fully local neither link nor server."""
    played = play(world_of(device()), cut)
    assert played.epoch_s == pytest.approx(3 * batch_s + END, rel=1e-12)
    assert played.clock.now == played.epoch_s


def test_a_batch_takes_more_than_its_blocks_where_the_device_says_so() -> None:
    happenings = [Happening(0.0, 0, "compute", 2.0)]
    for cut, batch_s in ((1, 8.45), (4, 10.0)):
        assert play(world_of(device(call_s=0.3)), cut).epoch_s == pytest.approx(3 * (batch_s + 0.3) + END)
    # Slowed like the blocks; happenings at 0 come after the first batch has begun.
    slowed = play(world_of(device(call_s=0.3), happenings=happenings), 4)
    assert slowed.epoch_s == pytest.approx(10.3 + 2 * 20.6 + END)


def test_two_clients_take_turns_at_one_worker() -> None:
    """Both arrive at 4 + 1/3 + 1/4; the second waits 0.95 s, and never again: they stay apart."""
    together = play(world_of(device(), device()), 1, 1)
    assert together.ends == pytest.approx([3 * 8.45 + END, 3 * 8.45 + 0.95 + END])
    assert [event["wait_s"] for event in together.named("step")] == pytest.approx([0, 0.95] + [0] * 4)
    assert play(world_of(device(), device(), workers=2), 1, 1).epoch_s == pytest.approx(3 * 8.45 + END)


def test_an_access_link_passes_one_transfer_after_another() -> None:
    """Three uploads of 400 B at 50 B/s leave at 1/3 s: there at 8, 16 and 24 s later; the server is idle meanwhile."""
    world = world_of(*[device(batches=1, rtt_s=0.0, down=1e9)] * 3, access_Bps=50.0)
    arrivals = [event["t"] - 0.95 for event in play(world, 1, 1, 1).named("step")]
    assert arrivals == pytest.approx([1 / 3 + 8, 1 / 3 + 16, 1 / 3 + 24], abs=1e-5)
    # Down it is the same: the replies leave at 9.28, 17.28 and 25.28 and each takes 8 s.
    assert play(world, 1, 1, 1).epoch_s == pytest.approx(1 / 3 + 24 + 0.95 + 8 + 2 / 3)
    # One that is not the narrowest place costs nothing.
    wide = world_of(device(), access_Bps=1000.0)
    assert play(wide, 1).epoch_s == pytest.approx(3 * 8.45 + END)


@pytest.mark.parametrize(
    ("policy", "groups"),
    [(lockstep(0, 1), [[0, 1]] * 3), (sequential, [[0], [1]] * 3)],
    ids=["lockstep", "sequential"],
)
def test_groups_of_a_shared_head(policy: Callable[[int], Policy[int]], groups: list[list[int]]) -> None:
    """Cut and boundary 2: 3 + 2 + 1 + 0.5 s away, and 0.05 + 0.7 s at the head."""
    played = play(world_of(device(), device()), 2, 2, boundary=2, heads=1, policy=policy)
    steps = played.named("step")
    assert [[client for client, _, _ in event["members"]] for event in steps] == groups
    if len(steps) == 3:  # one call for two batches: 0.05 + 2 × 0.7 s
        assert [event["service_s"] for event in steps] == pytest.approx([1.45] * 3)
        assert played.ends == pytest.approx([3 * (6.5 + 1.45) + END] * 2)
    else:
        assert played.ends == pytest.approx([3 * 7.25 + END, 3 * 7.25 + 0.75 + END])


def test_what_waits_is_merged() -> None:
    """Three clients at one head: the first alone, the two that came meanwhile together."""
    played = play(world_of(*[device(batches=1)] * 3), 2, 2, 2, boundary=2, heads=1)
    steps = played.named("step")
    assert [[client for client, _, _ in event["members"]] for event in steps] == [[0], [1, 2]]
    assert [event["service_s"] for event in steps] == pytest.approx([0.75, 1.45])
    assert played.ends == pytest.approx([7.25 + END, *[7.25 + 0.75 + 0.7 + END] * 2])


def test_nobody_waits_for_a_client_that_has_finished() -> None:
    world = world_of(device(batches=1), device(batches=3))
    played = play(world, 2, 2, boundary=2, heads=1, policy=lockstep(0, 1))
    assert [len(event["members"]) for event in played.named("step")] == [2, 1, 1]
    assert played.ends == pytest.approx([6.5 + 1.45 + END, 6.5 * 3 + 1.45 + 2 * 0.75 + END])


@pytest.mark.parametrize("workers", [1, 2])
@given(data=st.data())
@settings(max_examples=40)
def test_it_agrees_with_the_simulation_that_plans_use(workers: int, data: st.DataObject) -> None:
    """Fixed cuts, no jitter: the planner's, which leaves out only what a client's first batch is late or early by."""
    clients = data.draw(st.integers(2, 6))
    seconds = st.floats(0.1, 3.0)
    devices = [
        device(
            [data.draw(seconds) for _ in range(4)],
            up=data.draw(st.floats(50.0, 500.0)),
            down=data.draw(st.floats(50.0, 500.0)),
            batches=data.draw(st.integers(20, 40)),
        )
        for _ in range(clients)
    ]
    cuts = np.array([data.draw(st.integers(1, 4)) for _ in range(clients)])
    world = world_of(*devices, workers=workers)
    batches = {client: one.batches for client, one in enumerate(devices)}
    limits = dict.fromkeys(batches, (1, 4))
    costs = true_costs(world, 0.0, 0.0, batches, dict.fromkeys(batches, 0), limits, boundary=4, moving=False)
    planned = simulate(costs, cuts).epoch_s
    played = play(world, *cuts.tolist()).epoch_s - END
    assert played >= costs.bound(cuts) * (1 - 1e-9)
    # Orders of arrival differ at the start, so that a client may wait for the others some batches more or fewer.
    assert played == pytest.approx(planned, rel=0.08)


def test_without_waiting_it_agrees_to_the_bit_of_rounding() -> None:
    world = world_of(device(), device([0.3, 0.7, 2.0, 1.0], up=300.0, batches=7), workers=2)
    batches, limits = {0: 3, 1: 7}, {0: (1, 4), 1: (1, 4)}
    costs = true_costs(world, 0.0, 0.0, batches, {0: 0, 1: 0}, limits, boundary=4, moving=False)
    for cuts in ((1, 1), (2, 3), (4, 1), (4, 4)):
        planned = simulate(costs, np.array(cuts)).end_s + END
        assert play(world, *cuts).ends == pytest.approx(planned.tolist(), rel=1e-12)


# -- moves -----------------------------------------------------------------------------------------------------------


def test_blocks_given_up_go_with_the_next_activation() -> None:
    """Commanded on the reply to batch 0: blocks 2 and 3, 50 B, go up with batch 1, which is served from block 2 on."""
    director = Recorder({0: {1: 1}})
    played = play(world_of(device()), 3, director=director)
    first, later = 6 + 1 + 0.5 + 0.5 + 0.45, 8.45
    assert played.epoch_s == pytest.approx(first + later + 0.5 + later + END)
    (move,) = played.named("move")
    assert (move["batch"], move["cut_before"], move["cut"], move["bytes_up"]) == (1, 3, 1, 50.0)
    # Complete when the activation is there.
    assert move["t"] == pytest.approx(first + 1 / 3 + 4 + 0.5 + 0.25, abs=1e-5)
    assert director.named("moved") == [(0, 1)]


def test_blocks_pulled_come_with_the_reply() -> None:
    """Blocks 2 to 4, 90 B at 200 B/s: 0.45 s; from the next batch on the client is fully local."""
    director = Recorder({0: {1: 4}})
    played = play(world_of(device()), 1, director=director)
    assert played.epoch_s == pytest.approx(8.45 + 0.45 + 2 * 10 + END)
    assert len(played.named("step")) == 1
    assert [event["batch"] for event in played.named("progress")] == [1, 2]
    assert [entry for _, entries, *_ in director.named("served") for entry in entries] == [(1, 8)]


def test_a_local_client_reads_its_command_a_batch_later() -> None:
    """Told on the answer to batch 0's progress, read at batch 1's end, in force from batch 2 on."""
    played = play(world_of(device(batches=4)), 4, director=Recorder({0: {1: 2}}))
    assert [event["batch"] for event in played.named("progress")] == [0, 1]
    # Blocks 3 and 4, 70 B, go up once.
    assert played.epoch_s == pytest.approx(2 * 10 + 2 * 7.25 + 0.7 + END)
    assert [event["cut"] for event in played.named("move")] == [2]


def test_a_local_client_reads_its_command_at_once_where_that_takes_next_to_no_time() -> None:
    """A hundredth of its batch at most."""
    played = play(world_of(device(batches=4, rtt_s=0.1)), 4, director=Recorder({0: {1: 2}}))
    assert [event["batch"] for event in played.named("progress")] == [0]
    assert played.epoch_s == pytest.approx(10 + 0.1 + 3 * (7.25 - 0.4) + 0.7 + 0.05)
    waiting = play(world_of(device(batches=4, rtt_s=0.1)), 4)
    assert waiting.epoch_s == pytest.approx(4 * 10.1 + 0.05)


def test_nothing_is_commanded_that_could_not_take_effect() -> None:
    for cut in (1, 4):
        assert not play(world_of(device(batches=1)), cut, director=Recorder({0: {1: 2}})).named("move")


def test_what_is_measured_is_told_one_batch_late() -> None:
    director = Recorder()
    play(world_of(device(), happenings=[Happening(1.0, 0, "compute", 3.0)]), 2, director=director)
    first, second = (measured for _, measured in director.named("measured"))
    assert first.block_s == {1: 1.0, 2: 2.0}
    assert second.block_s == {1: 3.0, 2: 6.0}
    assert (first.up.bytes, first.down.bytes) == (200, 200)
    # 2 s up, 1 s down and the round trip; neither queue nor service.
    assert first.away_s == pytest.approx(3.5)


def test_what_a_local_client_measures_is_told_with_the_batch_itself() -> None:
    director = Recorder()
    play(world_of(device(), happenings=[Happening(1.0, 0, "compute", 3.0)]), 4, director=director)
    assert [measured.block_s[2] for _, measured in director.named("measured")] == [2.0, 6.0, 6.0]


# -- what happens ----------------------------------------------------------------------------------------------------


def test_a_slower_device_counts_from_its_next_batch_on() -> None:
    happenings = [Happening(1.0, 0, "compute", 4.0), Happening(12.0, 0, "compute", 1.0)]
    played = play(world_of(device(), happenings=happenings), 4)
    assert played.epoch_s == pytest.approx(10 + 40 + 10 + END)


def test_a_slower_server_counts_from_its_next_group_on() -> None:
    """Batch 0 is served from 4.58 to 5.53 s."""
    played = play(world_of(device(), happenings=[Happening(5.0, None, "compute", 3.0)]), 1)
    assert [event["service_s"] for event in played.named("step")] == pytest.approx([0.95, 2.85, 2.85])


def test_a_slower_link_counts_at_once() -> None:
    """From the middle of the first upload on (1/3 s + 2 s), the other 200 B take 20 s, and downloads too."""
    played = play(world_of(device(batches=1), happenings=[Happening(1 / 3 + 2, 0, "link", 0.1)]), 1)
    assert played.epoch_s == pytest.approx(1 + 0.5 + 0.95 + 2 + 20 + 20 + END)


def test_a_dead_link_that_comes_back_only_costs_time() -> None:
    dead = [Happening(1.0, 0, "link", 0.0), Happening(31.0, 0, "link", 1.0)]
    assert play(world_of(device(), happenings=dead), 1).epoch_s == pytest.approx(3 * 8.45 + 30 + END)


def test_who_joins_begins_then_and_nobody_has_waited() -> None:
    happenings = [Happening(20.0, 1, "join")]
    world = world_of(device(), device(batches=1), happenings=happenings)
    played = play(world, 2, 2, boundary=2, heads=1, policy=lockstep(0, 1), absent=[1])
    assert played.ends[0] == pytest.approx(3 * 7.25 + END)
    assert played.ends[1] == pytest.approx(20 + 7.25 + END)


def test_who_leaves_ends_its_batch_and_goes_on_when_it_returns() -> None:
    happenings = [Happening(2.0, 0, "leave"), Happening(30.0, 0, "join")]
    director = Recorder()
    played = play(world_of(device(), device(batches=1), happenings=happenings), 4, 4, director=director)
    assert played.ends[0] == pytest.approx(30 + 2 * 10 + END)
    assert [(client, batches) for client, batches, *_ in director.named("opened")] == [(0, 3), (1, 1), (0, 2)]
    assert not played.lost


def test_who_returns_before_its_batch_is_done_stays() -> None:
    happenings = [Happening(2.0, 0, "leave"), Happening(5.0, 0, "join")]
    assert play(world_of(device(), happenings=happenings), 4).epoch_s == pytest.approx(3 * 10 + END)


def test_who_never_returns_is_lost_and_named() -> None:
    world = world_of(device(), device(), happenings=[Happening(12.0, 0, "leave")])
    played = play(world, 4, 4)
    assert played.lost == {0: "it left after batch 1 and did not return"}
    assert played.ends == [None, pytest.approx(30 + END)]


@pytest.mark.parametrize("at_s", [0.2, 3.0, 5.0, 7.0])
def test_a_crash_is_a_loss_wherever_the_batch_is(at_s: float) -> None:
    """In its forward, on its way up, at the server, on its way down; a group does not wait for it."""
    world = world_of(device(), device(), happenings=[Happening(at_s, 0, "crash")])
    played = play(world, 2, 2, boundary=2, heads=1, policy=lockstep(0, 1))
    assert played.lost == {0: "it crashed"}
    assert played.ends[1] is not None
    assert [event["client"] for event in played.named("client_lost")] == [0]
    assert len(played.named("step")) == 3


@pytest.mark.parametrize("cut", [1, 4])
def test_a_link_that_stays_dead_is_a_loss_and_no_hang(cut: int) -> None:
    """Where the client is fully local, it is found out at the end: the word that it is done does not get through."""
    world = world_of(device(), device(), happenings=[Happening(2.0, 0, "link", 0.0)])
    played = play(world, cut, 1)
    assert played.lost == {0: "its link is dead, for longer than faults.batch_s=50 s"}
    assert played.ends[1] is not None
    # Found out after the patience: from the upload's start, or from the last batch's end.
    began = 1 / 3 if cut == 1 else 30.0
    assert played.named("client_lost")[0]["t"] == pytest.approx(began + 50, abs=1e-5)


@pytest.mark.parametrize(("patience_s", "dead"), [(60.0, False), (50.0, True)])
def test_a_gap_longer_than_the_patience_is_a_loss(patience_s: float, dead: bool) -> None:
    """User case: a trace without a packet for 55 s, from 2 s on. Whoever has nothing to send then is not concerned."""
    gap = Looped([2.0, 57.0, 200.0], [100.0, 0.0, 100.0])
    world = world_of(device(up=gap), device(), device(up=gap))
    played = play(world, 1, 1, 4, patience_s=patience_s)
    reason = f"its link is dead, for longer than faults.batch_s={patience_s:g} s"
    assert played.lost == ({0: reason} if dead else {})
    assert None not in played.ends[1:]
    if dead:
        assert played.named("client_lost")[0]["t"] == pytest.approx(1 / 3 + patience_s, abs=1e-5)
    else:
        assert played.ends[0] == pytest.approx(55 + 3 * 8.45 + END)


@pytest.mark.parametrize(("patience_s", "dead"), [(60.0, False), (50.0, True)])
def test_the_last_word_waits_no_longer_than_the_patience(patience_s: float, dead: bool) -> None:
    happenings = [Happening(20.0, 0, "link", 0.0), Happening(85.0, 0, "link", 1.0)]
    played = play(world_of(device(), device(), happenings=happenings), 4, 4, patience_s=patience_s)
    assert played.ends == [None if dead else pytest.approx(85 + END), pytest.approx(30 + END)]


def test_nobody_left_ends_the_round() -> None:
    played = play(world_of(device(), happenings=[Happening(1.0, 0, "crash"), Happening(3.0, 0, "join")]), 1)
    assert played.lost == {0: "it crashed"}
    assert played.epoch_s == 0.0


# -- uploads that are still coming -----------------------------------------------------------------------------------


def looks(up: float | Looped, *happenings: Happening, chunk: int = 40) -> list[tuple[int, int, float]]:
    """Bytes and chunks so far, and seconds since the first chunk, of every look at 400 B in chunks of 40."""
    director = Recorder()
    play(world_of(device(batches=1, up=up), happenings=happenings), 1, director=director, chunk_bytes=chunk)
    return [(part.bytes, part.chunks, round(seconds, 9)) for _, part, seconds in director.named("coming")]


def test_an_upload_is_looked_at_while_it_comes() -> None:
    """100 B/s: the first chunk is there after 0.4 s, and 50 B more by every half second; only whole chunks are seen."""
    seen = looks(100.0)
    assert seen == [
        (80, 2, 0.5),
        (120, 3, 1.0),
        (160, 4, 1.5),
        (240, 6, 2.0),
        (280, 7, 2.5),
        (340 // 40 * 40, 8, 3.125),
    ]


def test_a_short_one_is_not_looked_at() -> None:
    assert looks(1000.0) == []
    assert looks(100.0, chunk=400) == []  # its first chunk is its last


def test_looks_see_a_link_stop_and_are_few() -> None:
    """It stops at 2 s, when 166 B have passed: nothing more comes until it is given up, 50 s after it began."""
    seen = looks(100.0, Happening(2.0, 0, "link", 0.0))
    assert seen[-1][:2] == (160, 4)
    assert seen[-1][2] > 35
    assert len(seen) < 25


def test_looks_agree_with_jitter_on_the_transfer() -> None:
    director = Recorder()
    world = world_of(*[device(batches=2)] * 4, jitter=0.3)
    play(world, 1, 1, 1, 1, director=director, chunk_bytes=40)
    looked = director.named("coming")
    assert len(looked) > 20
    for _, part, seconds in looked:
        assert part.last - part.first == pytest.approx(seconds)
        assert 40 <= part.bytes <= 400
        # As many chunks in proportion as by the transfer's own rate, which jitter spreads around 100 B/s.
        assert 0.3 < part.bytes / (40 + 100 * seconds) < 2.5


def test_a_path_that_varies_is_looked_at_as_it_is() -> None:
    """40 B in the first 0.4 s, then 10 B/s for 10 s, which is 2.5 chunks, then all at once."""
    seen = looks(Looped([0.4 + 1 / 3, 10.4 + 1 / 3, 20.0], [100.0, 10.0, 1e6]))
    assert [chunks for _, chunks, _ in seen] == [1] * 7 + [2] * 3 + [3]


# -- randomness ------------------------------------------------------------------------------------------------------


def test_jitter_is_seeded_and_does_not_depend_on_placement() -> None:
    world = world_of(device(), device(), jitter=0.2)
    assert play(world, 1, 2).events == play(world, 1, 2).events
    assert play(world, 1, 2).ends != play(world, 1, 2, seed=1).ends
    # Client 1 alone on its link and in its blocks has the same luck wherever client 0 is.
    local = [play(world, cut, 4).ends[1] for cut in (1, 4)]
    assert local[0] == local[1]
