"""SplitFed V1 equals FedAvg to the bit: every model, every cut, optimizers with state, both transports.

User cases 3, 4, 8: placement never changes the mathematics.
"""

from collections.abc import Callable

import parity_cases
import pytest
import torch
from parity_cases import MODELS, UNEQUAL, assert_same
from safetensors.torch import load_file
from torch import Tensor

from dynsl_app.compose import compose
from dynsl_app.data.load import load_source
from dynsl_app.model.build import build_chain
from dynsl_app.server.folder import RunFolder
from dynsl_app.telemetry.sinks.jsonl import read_events

Train = Callable[..., RunFolder]

COMMON = [*UNEQUAL, "rounds=2", "data.limit=24", "evaluation.batch=64"]
OPTIMIZERS = {**parity_cases.OPTIMIZERS, "sgd": [*parity_cases.OPTIMIZERS["sgd"], "optimizer.weight_decay=1e-4"]}


def cases() -> list[object]:
    """(model, cut, optimizer, wire): the quick selection, and the rest for ``--full``."""
    result: list[object] = []
    for model in MODELS:
        blocks = _blocks(model)
        some = {1, (blocks + 1) // 2, blocks - 1, blocks}
        for cut in range(1, blocks + 1):
            for optimizer in OPTIMIZERS:
                for wire in ("inprocess", "grpc"):
                    quick = wire == "inprocess" and (optimizer == "sgd" or cut in some)
                    quick = quick or (wire == "grpc" and optimizer == "sgd" and model == "cnn" and cut in some)
                    marks = [] if quick else [pytest.mark.full]
                    result.append(
                        pytest.param(model, cut, optimizer, wire, marks=marks, id=f"{model}-{cut}-{optimizer}-{wire}")
                    )
    return result


def _blocks(model: str) -> int:
    settings = compose([f"model={model}", *MODELS[model], *COMMON])
    return len(build_chain(settings.model, load_source(settings.data).spec, settings.seed))


def overrides(model: str, optimizer: str, *more: str) -> list[str]:
    return [f"model={model}", *MODELS[model], *COMMON, *OPTIMIZERS[optimizer], *more]


def weights(folder: RunFolder) -> dict[str, Tensor]:
    return load_file(folder.model)


@pytest.mark.parametrize(("model", "cut", "optimizer", "wire"), cases())
def test_equals_fedavg(train: Train, model: str, cut: int, optimizer: str, wire: str) -> None:
    whole = train(*overrides(model, optimizer, "algorithm=fedavg", "wire=inprocess"))
    split = train(*overrides(model, optimizer, "algorithm=splitfed_v1", f"algorithm.cut={cut}", f"wire={wire}"))
    assert_same(whole, split)
    # It did train, and it was split: what a run that does nothing could not show.
    start = compose(overrides(model, optimizer))
    initial = build_chain(start.model, load_source(start.data).spec, start.seed).merged_state()
    assert any(not torch.equal(initial[name], value) for name, value in weights(split).items())
    kinds = {event["event"] for event in read_events(split.events)}
    assert ("step" in kinds) == (cut < _blocks(model))


SWITCHES = {
    "persist": ["optimizer=adam", "optimizer.persist=run"],
    "persist-momentum": ["optimizer=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true", "optimizer.persist=run"],
    "adamw": ["optimizer=adamw", "optimizer.weight_decay=0.1"],
    "cosine-by-batch": ["optimizer=sgd", "optimizer.schedule.name=cosine", "optimizer.schedule.by=batch"],
    "step-by-epoch": ["optimizer.schedule.name=step", "optimizer.schedule.every=1", "local_epochs=2"],
    "clip-value": ["optimizer=sgd", "optimizer.clip=value", "optimizer.clip_limit=0.01"],
    "clip-block": ["optimizer=sgd", "optimizer.clip=block_norm", "optimizer.clip_limit=0.1"],
    "batchnorm-local": ["server.batchnorm=local"],
    "batchnorm-server": ["server.batchnorm=server"],
    "two-workers": ["server.workers=2"],
    "sampled": ["clients_per_round=2", "rounds=3"],
    "augmented": ["data.augment=[flip,crop]"],
}


@pytest.mark.parametrize("name", SWITCHES)
def test_no_setting_breaks_it(train: Train, name: str) -> None:
    """Resnet18 has BatchNorm, residuals and momentum's worth of state."""
    common = ["model=resnet18", *COMMON, *SWITCHES[name], "wire=inprocess"]
    whole = train(*common, "algorithm=fedavg")
    assert_same(whole, train(*common, "algorithm=splitfed_v1", "algorithm.cut=4"))


def test_persisting_state_matters(train: Train) -> None:
    """The comparison above can fail: forgetting the moments each round gives other weights."""
    common = ["model=mlp", *COMMON, "algorithm=splitfed_v1", "wire=inprocess"]
    kept, forgotten = (weights(train(*common, f"optimizer.persist={value}")) for value in ("run", "round"))
    assert any(not torch.equal(kept[name], forgotten[name]) for name in kept)
