"""Aggregation: in order of client id, exact for identical copies, 0-d counters kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dynsl_app.model.chain import Block
from dynsl_app.server.aggregate import average, batchnorm_names, pool_statistics, private_average


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=24), st.integers(0, 2**31))
def test_identical_copies_keep_their_bits(samples: list[int], seed: int) -> None:
    value = torch.randn(200, generator=torch.Generator().manual_seed(seed)) * 1e-3
    merged = average([(count, {"w": value.clone()}) for count in samples])
    assert torch.equal(merged["w"], value)
    assert merged["w"].dtype == value.dtype


def test_weights_by_samples_and_keeps_kinds() -> None:
    """User case 18: 0-d counters keep shape and dtype; unequal ones take the maximum."""
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "flag": torch.tensor([True, False])}
    second = {"w": torch.tensor([4.0, 8.0]), "n": torch.tensor(5), "flag": torch.tensor([False, False])}
    merged = average([(1, first), (2, second)])
    assert torch.equal(merged["w"], torch.tensor([3.0, 6.0]))
    assert merged["n"].shape == ()
    assert merged["n"].dtype == torch.int64
    assert int(merged["n"]) == 5
    assert merged["flag"].tolist() == [True, False]


def test_nothing_to_average_is_an_error() -> None:
    with pytest.raises(ValueError, match="no contribution has samples"):
        average([(0, {"w": torch.zeros(1)})])


def bn_block() -> Block:
    return Block(1, [("features.0", nn.Conv2d(1, 2, 1)), ("features.1", nn.BatchNorm2d(2))])


def test_batchnorm_is_found_by_its_plain_names() -> None:
    names = {f"features.1.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert batchnorm_names([bn_block()]) == names


def test_pooled_variance_is_that_of_all_samples_together() -> None:
    """User case 19: a mean of variances ignores the spread between clients; pooling does not."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, generator=generator, dtype=torch.float64) + shift for n, shift in ((10, 0.0), (30, 5.0))]
    contributions: list[tuple[int, dict[str, Tensor]]] = [
        (len(p), {"b.running_mean": p.mean(), "b.running_var": p.var(unbiased=False)}) for p in parts
    ]
    pooled = pool_statistics(contributions, ["b.running_var"])
    assert torch.allclose(pooled["b.running_var"], torch.cat(parts).var(unbiased=False))
    names = {"b.running_mean", "b.running_var"}
    assert torch.allclose(private_average(contributions, names, "server")["b.running_var"], pooled["b.running_var"])
    averaged = private_average(contributions, names, "average")["b.running_var"]
    assert averaged < 0.5 * pooled["b.running_var"]
