"""``dtfl_localloss`` trains what plain torch trains with a detached activation and a classifier at each cut."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from parity_cases import MODELS, UNEQUAL, assert_same
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dynsl_app.compose import compose
from dynsl_app.data.load import client_data, load_source
from dynsl_app.inprocess import InProcessControl
from dynsl_app.model.build import build_chain
from dynsl_app.model.local_head import local_heads
from dynsl_app.model.probe import probe
from dynsl_app.run import run
from dynsl_app.server import checkpoint
from dynsl_app.server.folder import RunFolder
from dynsl_app.settings import Settings
from dynsl_app.telemetry.sinks.jsonl import read_events

Train = Callable[..., RunFolder]

CUTS = {0: 1, 1: 3, 2: 1}
"""Two clients share a classifier's cut. The first round's cut is the same for all, later ones follow the limits."""

LIMITS = ["'allocator.min_cut={0: 1, 1: 3, 2: 1}'", "'allocator.max_cut={0: 1, 1: 3, 2: 1}'"]
LIMITED = [limit.strip("'") for limit in LIMITS]
SGD = ["optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9"]
COMMON = [*UNEQUAL, "data.limit=36", "algorithm=dtfl_localloss", *LIMITED, *SGD]


def cuts_of(folder: RunFolder) -> list[dict[int, int]]:
    started = [event["cuts"] for event in read_events(folder.events) if event["event"] == "round_start"]
    return [{int(client): cut for client, cut in cuts.items()} for cuts in started]


def by_hand(settings: Settings, cuts: list[dict[int, int]]) -> tuple[dict[str, Tensor], dict[int, list[Tensor]]]:
    """The merged model after all rounds, and the classifiers' weights and biases by cut."""
    source = load_source(settings.data)
    model = build_chain(settings.model, source.spec, settings.seed)
    shapes = probe(model, source.spec)
    heads = {
        cut: list(weights.values()) for cut, weights in local_heads(shapes, source.spec.classes, settings.seed).items()
    }
    for round_, placed in enumerate(cuts, start=1):
        trained: list[tuple[int, dict[str, Tensor]]] = []
        own: dict[int, list[tuple[int, list[Tensor]]]] = {}
        for client, cut in placed.items():
            data = client_data(source, settings.data, client=client, clients=settings.clients, seed=settings.seed)
            blocks = copy.deepcopy(model)
            below, above = (nn.Sequential(*blocks.span(0, cut)), nn.Sequential(*blocks.span(cut, len(blocks))))
            blocks.train()
            head = nn.Linear(heads[cut][0].shape[1], source.spec.classes)
            head.load_state_dict(dict(zip(("weight", "bias"), heads[cut], strict=True)))
            both = [
                torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
                for part in (nn.ModuleList([below, head]), above)
            ]
            for x, y in data.epoch(round_, 0):
                activation = below(x)
                seen = activation.mean(dim=(2, 3)) if activation.dim() == 4 else activation.flatten(1)
                cross_entropy(head(seen), y).backward()
                cross_entropy(above(activation.detach()), y).backward()
                for optimizer in both:
                    optimizer.step()
                    optimizer.zero_grad()
            trained.append((data.samples, blocks.merged_state()))
            own.setdefault(cut, []).append((data.samples, [head.weight.detach(), head.bias.detach()]))
        model.load_merged_state({name: mean([(n, state[name]) for n, state in trained]) for name in trained[0][1]})
        for cut, parts in own.items():
            heads[cut] = [mean([(n, values[k]) for n, values in parts]) for k in range(2)]
    return model.merged_state(), heads


def mean(parts: list[tuple[int, Tensor]]) -> Tensor:
    """By samples, in float64."""
    total = sum(count for count, _ in parts)
    if not parts[0][1].is_floating_point():
        return torch.stack([value for _, value in parts]).amax(dim=0)
    summed = torch.zeros(parts[0][1].shape, dtype=torch.float64)
    for count, value in parts:
        summed += count * value.double()
    return (summed / total).to(parts[0][1].dtype)


@pytest.mark.parametrize("wire", ["inprocess", "grpc"])
@pytest.mark.parametrize(
    "model", [["mlp", "model.dropout=0"], ["cnn", "model.dropout=0"], ["resnet18"]], ids=lambda m: m[0]
)
def test_it_trains_what_plain_torch_trains(train: Train, model: list[str], wire: str) -> None:
    """Clients at different cuts, unequal data, a tail of one sample, BatchNorm."""
    name, *options = model
    overrides = [*COMMON, f"model={name}", *options, "rounds=3"]
    folder = train(*overrides, f"wire={wire}")
    cuts = cuts_of(folder)
    assert cuts[1:] == [CUTS, CUTS]
    merged, heads = by_hand(compose(overrides), cuts)
    saved = load_file(folder.model)
    assert saved.keys() == merged.keys()
    for name, value in merged.items():
        assert torch.equal(saved[name], value), name
    kept = checkpoint.load(folder.checkpoint).states
    for cut, (weight, bias) in heads.items():
        assert torch.equal(kept[f"cut/{cut}/local_head"][f"local_head.{cut}.weight"], weight)
        assert torch.equal(kept[f"cut/{cut}/local_head"][f"local_head.{cut}.bias"], bias)


@pytest.mark.parametrize(
    "model",
    [pytest.param(model, marks=[] if model in ("mlp", "cnn", "vit_tiny") else pytest.mark.full) for model in MODELS],
)
def test_every_model_trains_alike_over_both_wires(train: Train, model: str) -> None:
    """With dropout, Adam that persists, and two workers; it is another training than with gradients."""
    overrides = [*UNEQUAL, "data.limit=36", *LIMITED, f"model={model}", *MODELS[model], "rounds=2"]
    overrides += ["optimizer.persist=run", "server.workers=2"]
    alone = [train(*overrides, "algorithm=dtfl_localloss", f"wire={wire}") for wire in ("inprocess", "grpc")]
    assert_same(*alone)
    with_gradients = train(*overrides, "algorithm=dtfl", "wire=inprocess")
    assert alone[0].model.read_bytes() != with_gradients.model.read_bytes()


def test_nothing_but_acknowledgements_returns(train: Train) -> None:
    down = {}
    for algorithm in ("dtfl", "dtfl_localloss"):
        folder = train(*COMMON[:-3], "model=cnn", f"algorithm={algorithm}", "wire=grpc", "rounds=1")
        (end,) = [event for event in read_events(folder.events) if event["event"] == "round_end"]
        down[algorithm] = end["bytes_down"]
    assert down["dtfl_localloss"] < 0.2 * down["dtfl"]


def test_a_fully_local_client_has_no_classifier(train: Train) -> None:
    """Whoever holds the whole model trains it on its own loss as ever."""
    whole = [*UNEQUAL, "data.limit=36", "model=mlp", "rounds=2", "wire=inprocess"]
    alone = train(*whole, "algorithm=dtfl_localloss", "algorithm.cut=4", "allocator.min_cut=4")
    assert_same(alone, train(*whole, "algorithm=fedavg"))


def test_it_goes_on_after_a_checkpoint(train: Train, tmp_path: Path) -> None:
    """Classifiers and their optimizers' state come back."""
    overrides = [*UNEQUAL, "data.limit=36", *LIMITED, "model=cnn", "algorithm=dtfl_localloss", "wire=inprocess"]
    overrides += ["optimizer.persist=run", "logging.console=off"]
    folder = RunFolder(tmp_path / "run")
    for given in ([*overrides, "rounds=2", f"run_dir={folder.path}"], [f"resume={folder.path}", "rounds=4"]):
        settings = compose(given)
        run(settings, InProcessControl(settings.clients))
    assert_same(folder, train(*overrides, "rounds=4"))
