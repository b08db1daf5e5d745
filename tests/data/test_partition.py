from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynsl_app.data.partition import partition
from dynsl_app.errors import DataError
from dynsl_app.settings import DataSettings


def parts(targets: Tensor, clients: int, seed: int = 0, **choice: Any) -> tuple[Tensor, ...]:
    return partition(targets, DataSettings(**choice), clients=clients, seed=seed)


def assert_exact_cover(found: tuple[Tensor, ...], samples: int, clients: int) -> None:
    assert len(found) == clients
    assert torch.equal(torch.cat(found).sort().values, torch.arange(samples))
    for part in found:
        assert len(part) > 0
        assert part.dtype == torch.int64
        assert all(a < b for a, b in pairwise(part.tolist()))


TARGETS = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(torch.tensor)


@pytest.mark.parametrize("kind", ["iid", "quantity", "dirichlet", "shards"])
def test_every_sample_goes_to_exactly_one_client_and_no_client_is_empty(kind: str) -> None:
    @settings(max_examples=100 if kind in ("iid", "quantity") else 25, deadline=None)
    @given(TARGETS, st.integers(1, 12), st.integers(0, 2**31), st.integers(1, 4), st.floats(0.2, 100))
    def law(targets: Tensor, clients: int, seed: int, shards: int, alpha: float) -> None:
        clients = min(clients, len(targets))
        choice = {"partition": kind, "shards": shards, "alpha": alpha}
        try:
            found = parts(targets, clients, seed, **choice)
        except DataError:
            if kind != "dirichlet":
                raise
            return  # no draw gave everyone a sample; the error has a test of its own
        assert_exact_cover(found, len(targets), clients)

    law()


@pytest.mark.parametrize("kind", ["iid", "quantity", "dirichlet", "shards"])
def test_a_function_of_the_seed(kind: str) -> None:
    """User case 25."""
    targets = torch.arange(200) % 10
    first, again, other = (parts(targets, 5, seed, partition=kind) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert sorted(len(part) for part in parts(torch.zeros(14, dtype=torch.int64), 4)) == [3, 3, 4, 4]


def skew(found: tuple[Tensor, ...], targets: Tensor) -> float:
    """Mean share of a client's most frequent class."""
    return sum(float(targets[part].bincount().max()) / len(part) for part in found) / len(found)


def test_dirichlet_is_more_skewed_the_smaller_alpha_is() -> None:
    targets = torch.arange(1000) % 10
    skews = [skew(parts(targets, 5, partition="dirichlet", alpha=alpha), targets) for alpha in (0.1, 1.0, 1000.0)]
    assert skews[0] > skews[1] + 0.1 > skews[2] + 0.2
    assert skews[2] < 0.13


def test_quantity_skews_sizes_and_not_classes() -> None:
    targets = torch.arange(4000) % 2
    small, large = (
        sorted(len(part) for part in parts(targets, 4, partition="quantity", alpha=alpha)) for alpha in (0.3, 1000.0)
    )
    assert small[-1] > 3 * small[0]
    assert large[-1] < 1.2 * large[0]
    assert skew(parts(targets, 4, partition="quantity", alpha=1000.0), targets) < 0.55


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_give_each_client_that_many_runs_of_classes(shards: int) -> None:
    targets = torch.arange(1200) % 12
    for part in parts(targets, 4, partition="shards", shards=shards):
        assert len(part) == 300
        assert len(targets[part].unique()) <= shards * (1 + -(-12 // (4 * shards)))
    by_hand = parts(targets, 12, partition="shards", shards=1)
    assert all(len(targets[part].unique()) == 1 for part in by_hand)


def test_shards_that_do_not_divide_use_every_sample() -> None:
    for samples in range(4, 60):
        assert_exact_cover(parts(torch.arange(samples) % 3, 4, partition="shards", shards=3), samples, 4)


@pytest.mark.parametrize("kind", ["iid", "quantity", "dirichlet", "shards"])
def test_fewer_samples_than_clients_names_clients_and_remedy(kind: str) -> None:
    with pytest.raises(
        DataError, match=r"3 training samples.*5 clients: clients 3 to 4.*Lower `clients` or raise data\.limit"
    ):
        parts(torch.arange(3), 5, partition=kind)


def test_a_client_that_stays_empty_is_named() -> None:
    with pytest.raises(DataError, match=r"client \d gets no training sample.*data\.alpha=0\.001.*Raise data\.alpha"):
        parts(torch.zeros(50, dtype=torch.int64), 6, partition="dirichlet", alpha=0.001)


def test_a_draw_ends_at_its_first_empty_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part takes milliseconds, so that thousands of clients would be refused only after a minute."""
    from flwr_datasets.partitioner import DirichletPartitioner

    asked, load = [], DirichletPartitioner.load_partition

    def count(self: DirichletPartitioner, client: int) -> object:
        asked.append(client)
        return load(self, client)

    monkeypatch.setattr(DirichletPartitioner, "load_partition", count)
    with pytest.raises(DataError, match="no training sample"):
        parts(torch.zeros(500, dtype=torch.int64), 200, partition="dirichlet", alpha=0.001)
    assert 10 <= len(asked) < 200


def test_dirichlet_draws_again_when_a_client_is_empty() -> None:
    targets = torch.arange(60) % 3
    for seed in range(20):
        assert_exact_cover(parts(targets, 6, seed, partition="dirichlet", alpha=0.5), 60, 6)
