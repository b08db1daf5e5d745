import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynsl_app.data.augment import PADDING, augment, crop, flip
from dynsl_app.data.loader import ClientData, Tail, batch_sizes
from dynsl_app.data.source import Samples, TensorSamples
from dynsl_app.errors import DataError


def numbered(count: int, side: int = 6) -> Samples:
    """Samples whose pixels are their own number, and so are their targets."""
    numbers = torch.arange(count)
    return TensorSamples(numbers.to(torch.float32).view(-1, 1, 1, 1).expand(-1, 2, side, side), numbers)


def data(
    count: int, *, client: int = 0, batch: int = 4, tail: Tail = "merge", names: tuple[str, ...] = ()
) -> ClientData:
    return ClientData(numbered(count), numbered(0), client=client, seed=5, batch=batch, tail=tail, augment=names)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 40), st.sampled_from(["keep", "drop", "merge"]))
def test_sizes_follow_the_tail_policy(samples: int, batch: int, tail: Tail) -> None:
    """User case 20."""
    sizes = batch_sizes(samples, batch, tail)
    full, rest = divmod(samples, batch)
    assert sum(sizes) == (full * batch if tail == "drop" else samples)
    assert all(size == batch for size in sizes[:-1])
    if tail == "drop":
        assert len(sizes) == full
    elif tail == "merge":
        assert all(size != 1 for size in sizes) or batch == 1 or samples == 1
        assert sizes[-1:] == ((batch + 1,) if full and rest == 1 else (rest or batch,))
    else:
        assert sizes[-1] == (rest or batch)


@pytest.mark.parametrize("tail", ["keep", "drop", "merge"])
@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 9])
def test_an_epoch_has_the_promised_batches_and_each_sample_at_most_once(tail: Tail, count: int) -> None:
    """User case 20."""
    one = data(count, tail=tail)
    batches = list(one.epoch(round=1, epoch=0))
    assert [len(targets) for _, targets in batches] == list(one.sizes)
    assert len(batches) == one.batches_per_epoch
    seen = torch.cat([targets for _, targets in batches])
    assert len(seen) == len(seen.unique()) == one.samples
    assert one.samples == (count - count % 4 if tail == "drop" else count)
    for images, targets in batches:
        assert images.dtype == torch.float32
        assert targets.dtype == torch.int64
        assert torch.equal(images, targets.to(torch.float32).view(-1, 1, 1, 1).expand(-1, 2, 6, 6))


def test_drop_leaves_out_other_samples_in_other_epochs() -> None:
    one = data(7, tail="drop")
    left_out = {tuple(set(range(7)) - set(torch.cat([t for _, t in one.epoch(1, e)]).tolist())) for e in range(5)}
    assert len(left_out) > 1


def test_drop_never_leaves_a_client_without_batches_unnoticed() -> None:
    """User case 20."""
    with pytest.raises(
        DataError, match=r"client 3 has 3 training samples.*data\.tail=merge or keep, or lower data\.batch"
    ):
        data(3, client=3, tail="drop")
    assert data(3, tail="merge").sizes == data(3, tail="keep").sizes == (3,)


def test_a_client_without_samples_is_named() -> None:
    with pytest.raises(DataError, match="client 2 has 0 training samples"):
        data(0, client=2)


def order(one: ClientData, round: int = 1, epoch: int = 0) -> list[int]:
    return torch.cat([targets for _, targets in one.epoch(round, epoch)]).tolist()


def test_order_differs_by_client_round_and_epoch() -> None:
    orders = [
        order(data(30, client=client), round, epoch) for client in range(3) for round in range(2) for epoch in range(2)
    ]
    assert len({tuple(each) for each in orders}) == len(orders)


def run_alone(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def run_backwards(jobs: list[Callable[[], None]]) -> None:
    for job in reversed(jobs):
        torch.rand(3)
        job()


def run_in_threads(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_batches_do_not_depend_on_arrival_threads_or_the_global_generator() -> None:
    """User case 25."""

    def everything(run: Callable[[list[Callable[[], None]]], None]) -> dict[int, list[Tensor]]:
        got: dict[int, list[Tensor]] = {}

        def job(client: int) -> None:
            one = data(9 + 4 * client, client=client, names=("flip", "crop"))
            got[client] = [images for round in (1, 2) for images, _ in one.epoch(round, 0)]

        run([lambda client=client: job(client) for client in range(4)])  # type: ignore[misc]
        return got

    expected = everything(run_alone)
    for run in (run_backwards, run_in_threads):
        actual = everything(run)
        assert all(
            torch.equal(a, b) for client in range(4) for a, b in zip(expected[client], actual[client], strict=True)
        )


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    list(data(20, names=("flip", "crop")).epoch(1, 0))
    assert torch.equal(torch.rand(4), expected)


def test_a_later_batch_does_not_depend_on_the_ones_before() -> None:
    one, skipped = data(12, names=("crop", "flip")), data(12, names=("crop", "flip"))
    batches = skipped.epoch(1, 0)
    next(batches)
    for (a, _), (b, _) in zip(list(one.epoch(1, 0))[1:], batches, strict=True):
        assert torch.equal(a, b)


def test_flip_mirrors_about_half_and_changes_nothing_else() -> None:
    images = torch.rand(400, 3, 5, 7)
    out = flip(images, torch.Generator().manual_seed(0))
    kinds = Counter(
        "same" if torch.equal(a, b) else "mirror" if torch.equal(a, b.flip(2)) else "?"
        for a, b in zip(images, out, strict=True)
    )
    assert kinds.keys() == {"same", "mirror"}
    assert 150 < kinds["mirror"] < 250


def test_crop_shifts_every_image_by_its_own_offset_and_fills_with_zeros() -> None:
    images = torch.rand(300, 2, 6, 8) + 1
    out = crop(images, torch.Generator().manual_seed(0))
    assert out.shape == images.shape
    assert out.is_contiguous()
    padded = torch.nn.functional.pad(images, [PADDING] * 4)
    offsets = Counter()
    for k in range(len(images)):
        found = [
            (top, left)
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            if torch.equal(padded[k, :, top : top + 6, left : left + 8], out[k])
        ]
        assert len(found) == 1
        offsets.update(found)
    assert {top for top, _ in offsets} == {left for _, left in offsets} == set(range(2 * PADDING + 1))


def test_augmentation_depends_on_its_seed_only() -> None:
    images = torch.rand(8, 3, 6, 6)
    assert torch.equal(augment(images, ["flip", "crop"], 3), augment(images, ["flip", "crop"], 3))
    assert not torch.equal(augment(images, ["flip", "crop"], 3), augment(images, ["flip", "crop"], 4))
    assert augment(images, [], 3) is images
