"""What the server trains, without links and threads: who is refused, and what a refusal leaves behind."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dynsl_app.model.chain import Block, Chain
from dynsl_app.plan import BatchKey, Plan
from dynsl_app.server.heads import Heads, Refused, Result, Work
from dynsl_app.settings import OptimizerSettings, Settings

NAN = float("nan")


def chain(*modules: nn.Module) -> Chain:
    """Each module a block."""
    return Chain(Block(k, [(str(k), module)]) for k, module in enumerate(modules, start=1))


def layers(batchnorm: bool = False) -> Chain:
    """Four features in, three classes; the same weights every time."""
    torch.manual_seed(0)
    private = nn.Linear(4, 4)
    with torch.no_grad():
        private.weight.mul_(8)
    middle = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) if batchnorm else nn.Linear(4, 4)
    return chain(nn.Linear(4, 4), private, middle, nn.Linear(4, 3))


def opened(model: Chain, *, shared: bool, clients: Sequence[int] = (0, 1, 2)) -> Heads:
    """Cut after block 1, block 2 private, 3 and 4 shared or private."""
    blocks = len(model)
    plan = Plan(blocks, 2 if shared else blocks, dict.fromkeys(clients, 1), heads=1 if shared else 0)
    heads = Heads(model, plan, Settings(optimizer=OptimizerSettings(name="sgd", lr=0.1, momentum=0.9)), {})
    for client in clients:
        heads.open(client, {}, {})
    return heads


def work(client: int, batch: int = 0, activation: Tensor | None = None) -> Work:
    generator = torch.Generator().manual_seed(100 * client + batch)
    own = torch.rand(2, 4, generator=generator) if activation is None else activation
    return Work(BatchKey(0, client, 1, batch), own, torch.tensor([0, client % 3]), 0.1, 1)


def everything(heads: Heads, clients: Sequence[int], *, shared: bool) -> dict[str, Tensor]:
    """All weights, buffers and optimizer state."""
    segments = {f"client {client}": heads.private(client) for client in clients}
    if shared:
        segments["head"] = heads.shared(0)
    return {
        f"{owner}/{name}": value.clone()
        for owner, segment in segments.items()
        for name, value in {**segment.weights(), **segment.optimizer_state()}.items()
    }


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]


def go(heads: Heads, works: Sequence[Work]) -> list[Result | Refused]:
    results = heads.backward(works)
    trained = [each for each, result in zip(works, results, strict=True) if isinstance(result, Result)]
    if trained:
        heads.step(trained)
    return results


BAD = {
    "NaN": torch.full((2, 4), NAN),
    "Inf": torch.tensor([[1.0, 2.0, float("inf"), 4.0]]).repeat(2, 1),
    "overflows": torch.full((2, 4), 3e38),
}


@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("what", BAD)
def test_a_refused_member_was_never_in_the_group(what: str, batchnorm: bool) -> None:
    """Weights, momentum and running statistics of head and others are those of the group without it."""
    with_it, without = (opened(layers(batchnorm), shared=True) for _ in range(2))
    for batch, bad in ((0, None), (1, BAD[what]), (2, None)):
        members = [0, 2] if batch == 2 else [0, 1, 2]
        works = [work(client, batch, bad if client == 1 else None) for client in members]
        results = go(with_it, works)
        reference = go(without, [each for each in works if each.activation is not bad])
        refused = [each.key.client for each, r in zip(works, results, strict=True) if isinstance(r, Refused)]
        assert refused == ([1] if bad is not None else [])
        kept = [result for result in results if isinstance(result, Result)]
        for mine, theirs in zip(kept, reference, strict=True):
            assert isinstance(theirs, Result)
            assert mine.loss == theirs.loss
            assert torch.equal(mine.gradient, theirs.gradient)
    assert_same(everything(with_it, (0, 2), shared=True), everything(without, (0, 2), shared=True))


def test_statistics_that_overflow_refuse_their_cause() -> None:
    """Variance beyond float32 makes BatchNorm's outputs zero and no loss NaN, but its running variance Inf."""
    with_it, without = (opened(layers(batchnorm=True), shared=True) for _ in range(2))
    works = [work(0), work(1, activation=torch.tensor([[1e30] * 4, [-1e30] * 4])), work(2)]
    results = go(with_it, works)
    assert [type(result) for result in results] == [Result, Refused, Result]
    assert isinstance(results[1], Refused)
    assert "running statistics in the shared head" in results[1].reason
    go(without, [works[0], works[2]])
    assert_same(everything(with_it, (0, 2), shared=True), everything(without, (0, 2), shared=True))
    assert with_it.finite(0)


def test_a_fault_that_no_member_has_alone_refuses_all_suspects() -> None:
    """Each is constant, so that its own variance is zero; together theirs is beyond float32."""
    model = chain(nn.Linear(4, 4), nn.Identity(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    heads = opened(model, shared=True)
    before = everything(heads, (0, 1), shared=True)
    works = [work(client, activation=torch.full((2, 4), sign * 3e19)) for client, sign in ((0, 1.0), (1, -1.0))]
    assert all(isinstance(result, Refused) for result in go(heads, works))
    assert_same(everything(heads, (0, 1), shared=True), before)
    assert all(isinstance(result, Result) for result in go(heads, [work(2)]))


def test_a_gradient_that_overflows_in_the_shared_head_refuses_its_cause() -> None:
    """Loss and gradient at the cut are finite, but one step would leave Inf in everybody's head."""
    # Block 3's gradient is what block 4 passes down times block 3's input; the logits are finite.
    last, small = nn.Linear(4, 3, bias=False), nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        last.weight.copy_(torch.tensor([[1e4], [-1e4], [0.0]]).expand(3, 4))
        small.weight.fill_(1e-9)

    def model() -> Chain:
        return chain(nn.Linear(4, 4), nn.Identity(), small, last)

    with_it, without = opened(model(), shared=True), opened(model(), shared=True)
    large = work(1, activation=torch.full((2, 4), 3e37))
    works = [work(0), replace(large, target=torch.tensor([1, 1])), work(2)]
    first, second, third = go(with_it, works)
    assert isinstance(second, Refused)
    assert second.reason.startswith("batch 0: its gradient in the shared head has NaN or Inf; lower optimizer.lr")
    assert isinstance(first, Result)
    assert isinstance(third, Result)
    go(without, [works[0], works[2]])
    assert_same(everything(with_it, (0, 2), shared=True), everything(without, (0, 2), shared=True))
    assert with_it.finite(0)


def test_all_are_refused_when_the_head_itself_is_broken() -> None:
    heads = opened(layers(), shared=True)
    with torch.no_grad():
        heads.shared(0).blocks[0].get_parameter("stages.0.weight").fill_(NAN)
    results = heads.backward([work(client) for client in range(3)])
    assert all(isinstance(result, Refused) and "its loss has NaN or Inf" in result.reason for result in results)
    assert not heads.finite(0)


def test_what_a_model_raises_is_a_reason() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no Tuesdays")

    heads = opened(chain(nn.Linear(4, 4), Picky(), nn.Linear(4, 3)), shared=False)
    (result,) = heads.backward([work(0)])
    assert result == Refused("batch 0: the server cannot train on it: no Tuesdays")


def test_separate_heads_share_nothing() -> None:
    """One client's training leaves another's copies, and the merged model, as they were."""
    model = layers()
    before = {name: value.clone() for name, value in model.merged_state().items()}
    heads = opened(model, shared=False)
    untouched = everything(heads, (1, 2), shared=False)
    go(heads, [work(0)])
    assert_same(everything(heads, (1, 2), shared=False), untouched)
    assert_same(model.merged_state(), before)
    assert not torch.equal(heads.private(0).weights()["4.weight"], before["4.weight"])


def test_a_members_gradient_is_that_of_its_own_mean_loss() -> None:
    """Whatever the sizes of the others (ALGORITHMS §2); without layers that couple samples, to rounding."""
    together, alone = opened(layers(), shared=True), opened(layers(), shared=True)
    large = Work(BatchKey(0, 2, 1, 0), torch.rand(7, 4), torch.zeros(7, dtype=torch.int64), 0.1, 1)
    own, _, _ = together.backward([work(0), work(1), large])
    (reference,) = alone.backward([work(0)])
    assert isinstance(own, Result)
    assert isinstance(reference, Result)
    torch.testing.assert_close(own.gradient, reference.gradient)
