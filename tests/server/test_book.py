"""What the server makes of measurements: the costs that plans are made from."""

from dataclasses import replace

import numpy as np
import pytest

from dynsl_app.cost.instance import ClientCosts, Instance
from dynsl_app.cost.model import costs_of
from dynsl_app.plan import Power
from dynsl_app.server import book
from dynsl_app.server.book import Book, Sizes

PROFILE_S = (0.004, 0.003, 0.002, 0.001)
SIZES = Sizes(up=(4000, 3000, 2000, 0), down=(3900, 2900, 1900, 0), state=(100, 200, 300, 400))
BATCH, CHUNK = 8, 1 << 20
BATCHES = {0: 10, 1: 30, 2: 5}


def costs(known: Book, boundary: int, heads: int):
    limits = dict.fromkeys(BATCHES, (1, len(PROFILE_S)))
    return known.costs(BATCHES, dict.fromkeys(BATCHES, 1), boundary, 2, limits, moving=False, heads=heads)


def instance(boundary: int, slowness: float = 1.0) -> Instance:
    clients = [
        ClientCosts(
            name=str(client),
            batches=batches,
            block_s=PROFILE_S,
            up_Bps=book._PRIOR_BPS,
            down_Bps=book._PRIOR_BPS,
            rtt_s=book._PRIOR_RTT_S,
            cut=1,
        )
        for client, batches in BATCHES.items()
    ]
    return Instance(
        workers=2,
        boundary=boundary,
        server_call_s=slowness * book._CALL_S,
        server_block_s=tuple(slowness * seconds for seconds in PROFILE_S),
        up_bytes=SIZES.up,
        down_bytes=SIZES.down,
        clients=tuple(clients),
    )


@pytest.mark.parametrize(("boundary", "heads"), [(4, 0), (3, 1), (2, 1)])
def test_costs_are_those_of_the_same_problem_on_paper(boundary: int, heads: int) -> None:
    """Before anything is measured all numbers are known, h0 and the serial part of a shared head among them."""
    live, paper = costs(Book(PROFILE_S, BATCH, SIZES, CHUNK), boundary, heads), costs_of(instance(boundary))
    np.testing.assert_allclose(live.c, paper.c)
    np.testing.assert_allclose(live.server_s, paper.server_s)
    assert live.shared_s == pytest.approx(paper.shared_s)
    assert live.shared_floor_s == pytest.approx(paper.shared_floor_s)
    assert (live.shared_s > 0) == (boundary < 4)


def test_a_shared_heads_measured_times_are_what_plans_are_made_from() -> None:
    """Three times slower than profiled; groups of one, merged ones, and ones whose members entered at several cuts."""
    known, boundary = Book(PROFILE_S, BATCH, SIZES, CHUNK), 3

    def seconds(*cuts: int) -> float:
        return 3 * (book._CALL_S + sum(sum(PROFILE_S[cut:]) for cut in cuts))

    for cuts in [(1,), (2,), (3,), (1, 1, 1), (3, 3), (1, 2, 3), (2, 3)] * 8:
        assert known.service.add_group(0, [(cut, BATCH) for cut in cuts], seconds(*cuts), wait_s=0.5)
    live, paper = costs(known, boundary, 1), costs_of(instance(boundary, slowness=3))
    np.testing.assert_allclose(live.server_s, paper.server_s, rtol=0.05)
    assert live.shared_s == pytest.approx(paper.shared_s, rel=0.05)
    assert live.shared_floor_s == pytest.approx(paper.shared_floor_s, rel=0.05)


def test_several_heads_are_serial_each_for_itself() -> None:
    """Clients 0 and 2 use head 0, client 1 head 1, which is the busiest."""
    known = Book(PROFILE_S, BATCH, SIZES, CHUNK)
    one, two = costs(known, 3, 1), costs(known, 3, 2)
    busiest = replace(instance(3), clients=tuple(c for c in instance(3).clients if c.name == "1"))
    assert two.shared_floor_s == pytest.approx(costs_of(busiest).shared_floor_s)
    assert two.shared_s == pytest.approx(one.shared_s / 2)
    np.testing.assert_allclose(two.server_s, one.server_s)


def test_energy_is_known_where_all_powers_are() -> None:
    """10 W·C + 4 W·A/β↑ + 3 W·G/β↓ for client 0, twice that for client 1; the link's rates are the prior's."""
    known = Book(PROFILE_S, BATCH, SIZES, CHUNK, {0: Power(10, 4, 3), 1: Power(20, 8, 6)})
    limits = dict.fromkeys(BATCHES, (1, 4))
    two = known.costs({0: 10, 1: 30}, {0: 1, 1: 1}, 4, 1, limits, moving=False)
    assert two.energy_J is not None
    sent = [
        4 * up / book._PRIOR_BPS + 3 * down / book._PRIOR_BPS for up, down in zip(SIZES.up, SIZES.down, strict=True)
    ]
    joules = [10 * compute + each for compute, each in zip((0.004, 0.007, 0.009, 0.010), sent, strict=True)]
    np.testing.assert_allclose(two.energy_J, [joules, [2 * each for each in joules]])
    assert known.costs(BATCHES, dict.fromkeys(BATCHES, 1), 4, 1, limits, moving=False).energy_J is None


def test_a_newcomer_is_taken_for_a_typical_client_until_it_tells_of_itself() -> None:
    known = Book(PROFILE_S, BATCH, SIZES, CHUNK)
    known.guess(7)
    assert 7 not in known._clients, "of nobody follows nothing"
    for client, slowness in enumerate((1.0, 3.0, 50.0)):
        known.introduce(client, [slowness * seconds for seconds in PROFILE_S])
        for way, Bps in ((known.client(client).link.up, 1e6), (known.client(client).link.down, 1e7)):
            way.level.value = Bps * slowness
    known.guess(7)
    guessed = known.client(7)
    assert guessed.slowdown.block_s == pytest.approx([3 * seconds for seconds in PROFILE_S])
    assert (guessed.link.up.value, guessed.link.down.value) == pytest.approx((3e6, 3e7))
    known.guess(2)
    assert known.client(2).slowdown.block_s == pytest.approx([50 * seconds for seconds in PROFILE_S])
    known.introduce(7, PROFILE_S)
    assert known.client(7).slowdown.block_s == pytest.approx(PROFILE_S)
    assert known.client(7).link.up.value == pytest.approx(3e6), "its profile says nothing of its link"
