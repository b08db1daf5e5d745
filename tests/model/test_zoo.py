"""Every architecture, cut anywhere, computes to the bit what the plain model computes."""

import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError
from dynsl_app.model.build import ZOO, build_chain, build_plain
from dynsl_app.model.chain import Chain
from dynsl_app.model.dropout import Dropout, seed_dropout
from dynsl_app.model.probe import probe
from dynsl_app.model.segment import Entry
from dynsl_app.plan import BatchKey
from dynsl_app.settings import ModelSettings

CONF = Path(__file__).parents[2] / "conf" / "model"
KEY = BatchKey(seed=1, client=2, round=3, batch=4)
SIZE = 3


@dataclass(frozen=True)
class Case:
    """An architecture with dropout on where it has any, and how many blocks it must have."""

    settings: ModelSettings
    spec: DataSpec
    blocks: int


CASES = {
    "cnn": Case(ModelSettings(name="cnn", dropout=0.2), DataSpec((1, 8, 8), 10), 5),
    "cnn_group": Case(ModelSettings(name="cnn", params={"norm": "group", "width": 8}), DataSpec((3, 16, 12), 7), 5),
    "mlp": Case(ModelSettings(name="mlp", dropout=0.2), DataSpec((1, 8, 8), 10), 4),
    "resnet18": Case(ModelSettings(name="resnet18"), DataSpec((1, 8, 8), 10), 10),
    "resnet18_standard": Case(ModelSettings(name="resnet18", stem="standard"), DataSpec((3, 40, 40), 10), 10),
    "mobilenet_v2": Case(ModelSettings(name="mobilenet_v2", dropout=0.2), DataSpec((3, 16, 16), 100), 20),
    "vgg11": Case(ModelSettings(name="vgg11", dropout=0.5), DataSpec((1, 32, 32), 10), 9),
    "vit_tiny": Case(ModelSettings(name="vit_tiny", dropout=0.1, params={"width": 48}), DataSpec((1, 8, 8), 10), 8),
}
CUTS = [(name, cut) for name, case in CASES.items() for cut in range(1, case.blocks + 1)]


def plain_of(case: Case) -> nn.Module:
    model = build_plain(case.settings, case.spec, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            # torchvision starts the ViT's head at zero, which would make all gradients below it zero.
            if not parameter.any():
                parameter.normal_(std=0.1, generator=generator)
    return model


def chain_of(case: Case) -> Chain:
    chain = build_chain(case.settings, case.spec, seed=3)
    chain.load_merged_state(plain_of(case).state_dict())
    return chain


def batch_of(case: Case, layout: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SIZE, *case.spec.shape, generator=generator).to(memory_format=layout)
    return x, torch.randint(case.spec.classes, (SIZE,), generator=generator)


@dataclass(frozen=True)
class Outcome:
    """All that one training batch leaves, by the plain model's names."""

    logits: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return found


@cache
def train_plain(name: str, layout: torch.memory_format = torch.contiguous_format) -> Outcome:
    model = plain_of(CASES[name]).train()
    x, target = batch_of(CASES[name], layout)
    seed_dropout(model, [(KEY, SIZE)])
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, target)
    loss.backward()
    return Outcome(logits.detach(), loss.detach(), gradients_of(model), dict(model.state_dict()))


def train_cut(name: str, cut: int, layout: torch.memory_format = torch.contiguous_format) -> Outcome:
    chain = chain_of(CASES[name]).train()
    x, target = batch_of(CASES[name], layout)
    for block in chain.span(0, len(chain)):
        seed_dropout(block, [(KEY, SIZE)])
    activation = x
    for block in chain.span(0, cut):
        activation = block(activation)
    entry = Entry(activation)
    logits = entry.tensor
    for block in chain.span(cut, len(chain)):
        logits = block(logits)
    loss = nn.functional.cross_entropy(logits, target)
    loss.backward()
    assert entry.gradient is not None
    activation.backward(entry.gradient)
    gradients: dict[str, Tensor] = {}
    for block in chain.span(0, len(chain)):
        for path, parameter in block.named_parameters_global():
            assert parameter.grad is not None, path
            gradients[path] = parameter.grad
    return Outcome(logits.detach(), loss.detach(), gradients, chain.merged_state())


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not same(one[name], other[name])] == []


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_cut_model_trains_to_the_bits_of_the_plain_one(name: str, cut: int) -> None:
    """User cases 3, 4 and 11: two halves joined by nothing but the activation and its gradient."""
    whole, split = train_plain(name), train_cut(name, cut)
    assert torch.equal(whole.logits, split.logits)
    assert torch.equal(whole.loss, split.loss)
    assert_same(whole.gradients, split.gradients)
    assert_same(whole.state, split.state)
    assert all(gradient.any() for path, gradient in split.gradients.items() if path.endswith("weight"))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
@pytest.mark.parametrize("cut", [1, 4])
def test_so_does_one_fed_with_channels_last(name: str, cut: int) -> None:
    whole, split = train_plain(name, torch.channels_last), train_cut(name, cut, torch.channels_last)
    assert torch.equal(whole.loss, split.loss)
    assert_same(whole.gradients, split.gradients)


def test_the_merged_state_is_the_plain_models(name: str) -> None:
    """User cases 2, 3, 14, 16 and 18: names, shapes, 0-d counters and every parameter, in exactly one block."""
    case = CASES[name]
    plain, chain = plain_of(case), chain_of(case)
    assert len(chain) == case.blocks
    assert_same(dict(plain.state_dict()), chain.merged_state())
    counters = [value for path, value in chain.merged_state().items() if path.endswith("num_batches_tracked")]
    assert all(value.shape == () for value in counters)
    fresh = build_plain(case.settings, case.spec, seed=4)
    fresh.load_state_dict(chain.merged_state())
    x, _ = batch_of(case)
    assert torch.equal(fresh.eval()(x), chain.eval()(x))
    assert sum(p.numel() for p in chain.parameters()) == sum(p.numel() for p in plain.parameters())


def test_cuts_are_probed(name: str) -> None:
    """User case 6: sizes at the cut are what training sends, and probing changes nothing."""
    case = CASES[name]
    chain = build_chain(case.settings, case.spec, seed=0).train()
    before = {path: value.clone() for path, value in chain.merged_state().items()}
    shapes = probe(chain, case.spec)
    assert all(module.training for module in chain.modules())
    assert_same(before, chain.merged_state())
    x, _ = batch_of(case)
    seed_dropout(chain, [(KEY, SIZE)])
    for block, shape in zip(chain.span(0, len(chain)), shapes, strict=True):
        x = block(x)
        assert (x.shape[1:], x.dtype) == (shape.shape, shape.dtype)
        assert x[0].numel() * x.element_size() == shape.bytes_per_sample
    assert shapes[-1].shape == (case.spec.classes,)


def test_no_block_writes_into_its_input(name: str) -> None:
    case = CASES[name]
    chain = build_chain(case.settings, case.spec, seed=0).train()
    seed_dropout(chain, [(KEY, SIZE)])
    x, _ = batch_of(case)
    for block in chain.span(0, len(chain)):
        x = x.detach()
        version = x._version
        y = block(x)
        assert x._version == version, f"block {block.index}"
        x = y


def test_all_dropout_is_ours(name: str) -> None:
    for model in (plain_of(CASES[name]), chain_of(CASES[name])):
        assert not [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]


@pytest.mark.parametrize("name", ["cnn", "mlp", "mobilenet_v2", "vgg11", "vit_tiny"])
def test_dropout_is_set_by_model_dropout(name: str) -> None:
    case = CASES[name]
    rates = [module.p for module in chain_of(case).modules() if isinstance(module, Dropout)]
    assert rates
    assert set(rates) == {case.settings.dropout}


def test_the_small_stem_is_chosen_by_the_images_size() -> None:
    """ResNet-18 keeps the whole resolution up to 64 pixels; the published cut of 4.2 MB at batch 32 is there."""

    def first(stem: str, side: int) -> tuple[int, ...]:
        chain = build_chain(ModelSettings(name="resnet18", stem=stem), DataSpec((3, side, side), 2), seed=0)  # type: ignore[arg-type]
        return probe(chain, DataSpec((3, side, side), 2))[0].shape

    assert first("auto", 64) == (64, 64, 64)
    assert first("auto", 65) == (64, 17, 17)
    assert first("small", 65) == (64, 65, 65)
    assert first("standard", 32) == (64, 8, 8)
    spec = DataSpec((3, 32, 32), 10)
    cut = probe(build_chain(ModelSettings(name="resnet18"), spec, seed=0), spec)[3]
    assert cut.shape == (128, 16, 16)
    assert 32 * cut.bytes_per_sample == 4 * 2**20


def test_the_cnn_has_a_cut_of_4_mb() -> None:
    spec = DataSpec((3, 32, 32), 10)
    assert 32 * probe(build_chain(ModelSettings(name="cnn"), spec, seed=0), spec)[0].bytes_per_sample == 4 * 2**20


def test_vgg_takes_torchvisions_head_for_large_images() -> None:
    standard = ModelSettings(name="vgg11", params={"head": "standard"})
    weights = build_plain(standard, DataSpec((3, 32, 32), 10), seed=0).state_dict()
    assert weights["classifier.0.weight"].shape == (4096, 25088)
    small = build_plain(ModelSettings(name="vgg11"), DataSpec((3, 32, 32), 10), seed=0).state_dict()
    assert small["classifier.0.weight"].shape == (512, 512)
    assert weights.keys() == small.keys()


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (ModelSettings(name="vgg11"), (1, 8, 8), r"vgg11 .* at least 32×32 and got 1×8×8; set data.resize=32"),
        (ModelSettings(name="cnn"), (3, 3, 9), r"cnn .* at least 4×4 and got 3×3×9; set data.resize=4"),
        (ModelSettings(name="vit_tiny"), (3, 24, 32), r"square images and got 3×24×32; set data.resize=24"),
        (ModelSettings(name="vit_tiny", params={"patch": 5}), (3, 32, 32), r"patches of 5 .* set model.params.patch"),
        (ModelSettings(name="vit_tiny", params={"heads": 5}), (3, 32, 32), r"cannot be built .* see model.params"),
        (ModelSettings(name="cnn", params={"norm": "layer"}), (1, 8, 8), r"model.params.norm='layer' is not one of"),
        (ModelSettings(name="cnn", params={"norm": "group", "width": 12}), (1, 8, 8), r"width=12 is not a multiple"),
        (ModelSettings(name="mlp", params={"hidden": []}), (1, 8, 8), r"model.params.hidden is empty"),
        (ModelSettings(name="vgg11", params={"head": "tiny"}), (3, 32, 32), r"'tiny' is not one of auto, small"),
    ],
)
def test_what_does_not_fit_is_refused(settings: ModelSettings, shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_chain(settings, DataSpec(shape, 10), seed=0)


def test_conf_offers_every_architecture_with_the_builders_own_defaults() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} == {*ZOO, "custom"}
    for name in ZOO:
        conf = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
        assert isinstance(conf, dict)
        builder = importlib.import_module(f"dynsl_app.model.zoo.{name}").build
        defaults = {key: p.default for key, p in inspect.signature(builder).parameters.items()}
        assert conf["name"] == name
        options = {key: list(v) if isinstance(v, tuple) else v for key, v in defaults.items()}
        for key in ("shape", "classes", "stem", "dropout"):
            options.pop(key, None)
        assert conf.get("params", {}) == options


@pytest.mark.parametrize("side", [1, 7, 8, 11, 28, 32, 48, 64, 96, 224])
def test_vit_patches_fit_the_image(side: int) -> None:
    plain = build_plain(ModelSettings(name="vit_tiny", params={"depth": 1}), DataSpec((1, side, side), 10), seed=0)
    assert side % plain.patch_size == 0  # type: ignore[operator]
    assert plain.patch_size == 1 or side // plain.patch_size >= 7  # type: ignore[operator]
