"""``dtfl_localloss`` by hand: clients that wait for no gradient, and a server that works meanwhile."""

import math

import pytest

from dynsl_app.compose import compose
from dynsl_app.data.source import DataSpec
from dynsl_app.model.chain import Chain
from dynsl_app.model.probe import probe
from dynsl_app.plan import Plan, Power
from dynsl_app.server.batching import Continuous
from dynsl_app.server.director import Measured
from dynsl_app.telemetry.events import EventStream
from dynsl_app.testbed.links import Constant
from dynsl_app.testbed.local_loss import LocalLoss, classifier_shares, without_gradients
from dynsl_app.testbed.make_world import training_flops
from dynsl_app.testbed.run import Fixed, simulate_rounds
from dynsl_app.testbed.simulate import Clock
from dynsl_app.testbed.world import Client, Happening, Server, World


def played(
    *, clients=1, server_s=1.0, up=math.inf, rtt_s=0.0, cut=1, classifier=0.0, happenings=(), workers=1, director=None
) -> LocalLoss:
    """Ten batches a client, 3 s for each of two blocks, 10 bytes up."""
    one = Client("d", "d", (3.0, 3.0), Constant(up), Constant(math.inf), rtt_s, 10, Power(1, 1, 1))
    world = World(
        (one,) * clients,
        Server((0.0, server_s), 0.0, workers),
        (10.0, 0.0),
        (10.0, 0.0),
        (0.0, 0.0),
        tuple(happenings),
        0.0,
        0.0,
    )
    director = director or Fixed()
    simulation = LocalLoss(
        without_gradients(world),
        Plan(2, 2, dict.fromkeys(range(clients), cut)),
        range(clients),
        director,
        director,
        lambda lane: Continuous(1, 2**60),
        Clock(),
        EventStream([]),
        seed=0,
        round_=1,
        chunk_bytes=2**20,
        batch_samples=8,
    )
    simulation.classifiers = (classifier, 0.0)
    simulation.run()
    return simulation


@pytest.mark.parametrize(
    ("case", "epoch_s"),
    [
        ({}, 30),  # the last activation leaves at 28 s, is served by 29, and the client trains on until 30
        ({"server_s": 2.5}, 28 + 2.5),
        ({"server_s": 4.0}, 1 + 10 * 4),  # the server is the slower, from the first activation on
        ({"up": 2.0}, 1 + 10 * (5 + 1)),  # the link and the server, one after the other
        ({"rtt_s": 4.0}, 1 + 10 * (2 + 1 + 2) + 2),  # so is the round trip; the end goes up, too
        ({"classifier": 0.5}, 10 * (3 + 3)),  # half of 6 s a batch
        ({"cut": 2}, 60),  # the whole model is trained as ever
        ({"clients": 4}, 1 + 4 * 10),  # together they keep the server busy from 1 s on
        ({"clients": 4, "workers": 2}, 30),
    ],
)
def test_the_slower_side_makes_the_epoch(case, epoch_s):
    assert played(**case).epoch_s == pytest.approx(epoch_s)


class Listener(Fixed):
    """Keeps what it is told of batches."""

    def __init__(self) -> None:
        self.measured_of: list[Measured] = []

    def measured(self, client: int, measured: Measured) -> None:
        self.measured_of.append(measured)


@pytest.mark.parametrize("server_s", [1.0, 4.0], ids=["acknowledged before it has trained", "after"])
def test_what_its_link_took_is_told_with_the_next_batch(server_s: float):
    """5 s up and a round trip of 2 s, without the time at the server, though the client trained on meanwhile."""
    listener = Listener()
    played(up=2.0, rtt_s=2.0, server_s=server_s, director=listener)
    assert len(listener.measured_of) == 9
    for measured in listener.measured_of:
        assert measured.block_s == {1: 3.0}
        assert measured.up is not None
        assert measured.away_s == pytest.approx(7.0)


def test_an_acknowledgement_returns():
    course = played().courses[0]
    assert (course.bytes_up, course.bytes_down) == (100, 10 * 512)


def test_who_leaves_goes_on_when_it_is_back():
    """At 13 s it is at its fifth batch, which is served at 15.5; five more from 20 on, and the last one's service."""
    away = [Happening(13.0, 0, "leave"), Happening(20.0, 0, "join")]
    assert played(happenings=away, server_s=2.5).epoch_s == pytest.approx(20 + 4 * 3 + 1 + 2.5)


def test_who_crashes_is_lost_and_others_are_not():
    simulation = played(clients=2, happenings=[Happening(5.0, 1, "crash")])
    assert (simulation.courses[1].lost, simulation.courses[1].ended_s) == ("it crashed", None)
    assert simulation.epoch_s == pytest.approx(30)


def test_a_dead_link_ends_it():
    simulation = played(happenings=[Happening(5.0, 0, "link", 0.0)], up=100.0)
    assert "dead, for longer than faults.batch_s=300" in str(simulation.courses[0].lost)


def test_classifiers_are_small(chain: Chain):
    """Training an average of C·H·W values and a linear layer of C to 10, over the whole model's operations."""
    spec = DataSpec((1, 8, 8), 10)
    shares = classifier_shares(chain, spec, 4)
    assert len(shares) == len(chain)
    assert shares[-1] == 0
    assert all(0 < share < 0.1 for share in shares[:-1])
    assert classifier_shares(chain, spec, 8) == pytest.approx(shares)
    channels, height, width = probe(chain, spec)[0].shape
    operations = 3 * 4 * (channels * height * width + 2 * channels * 10)
    assert shares[0] * sum(training_flops(chain, spec, 4)) == pytest.approx(operations)


def test_it_runs_by_its_name():
    small = ["runtime=testbed", "model=mlp", "testbed.shape=[1,8,8]", "testbed.batches=20", "fleet=demo", "rounds=2"]
    once, again = (simulate_rounds(compose([*small, "algorithm=dtfl_localloss"])) for _ in range(2))
    assert once == again
    waiting = simulate_rounds(compose([*small, "algorithm=dtfl"]))
    assert once[0] < waiting[0]
