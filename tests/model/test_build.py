"""Building from settings: seeds, options, and the hook for users' own models."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import ModelError, SettingsError
from dynsl_app.model.build import build_chain, build_plain
from dynsl_app.model.chain import Chain
from dynsl_app.model.dropout import Dropout, seed_dropout
from dynsl_app.model.probe import probe
from dynsl_app.plan import BatchKey
from dynsl_app.settings import ModelSettings

SPEC = DataSpec((1, 8, 8), 10)

OWN = '''
import torch
from torch import nn


def sequential(shape, classes, width=4, dropout=0.5):
    size = width * shape[1] * shape[2]
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 1),
        nn.Sequential(nn.ReLU(inplace=True), nn.Dropout2d(dropout), nn.Flatten()),
        nn.Linear(size, classes),
    )


class Step(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Net(nn.Module):
    """A skip connection, functional steps, a bare parameter."""

    def __init__(self, classes, fault=""):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 2.0))
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(64, classes)
        self.fault = fault

    def forward(self, x):
        x = x * self.scale
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))

    def blocks(self):
        scale = Scale(self.scale)
        relu, flatten = Step(torch.relu), nn.Flatten()
        convolution = [("conv", self.conv), ("norm", self.norm)]
        stages = [("", scale)], convolution, [("act", relu)], [("flat", flatten), ("head", self.head)]
        match self.fault:
            case "missing":
                return [[("conv", self.conv), ("head", self.head)]]
            case "twice":
                return [stages[0], stages[1], stages[1], stages[2], stages[3]]
            case "name":
                return [[("", scale)], [("conv2", self.conv), ("norm", self.norm)], stages[2], stages[3]]
            case "step":
                return [stages[0], stages[1], stages[3]]
            case "inplace":
                return [stages[0], stages[1], [("act", Step(torch.relu_))], stages[3]]
            case "empty":
                return [stages[0], [], stages[1], stages[2], stages[3]]
            case "flat":
                return [self.conv, self.head]
            case "tuple":
                return [stages[0], [*stages[1], ("pair", Step(lambda x: (x, x)))], stages[2], stages[3]]
        return stages


class Scale(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


def tied():
    one, other = nn.Linear(64, 64), nn.Linear(64, 64)
    other.weight = one.weight
    return nn.Sequential(nn.Flatten(), one, other)


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))


def uncut():
    return nn.Linear(64, 10)


def number():
    return 3


def anything(**options):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, options["out"]))


def attention():
    return nn.Sequential(nn.Flatten(2), nn.Sequential(nn.Identity(), nn.MultiheadAttention(64, 2, dropout=0.1)))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def build_own(module: str, function: str, **params: Any) -> Chain:
    settings = ModelSettings(name="custom", target=f"{module}.{function}", params=params)
    return build_chain(settings, SPEC, seed=0, allow=frozenset({module}))


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[path]) for path, value in one.items())


def test_a_seed_gives_the_same_weights_whole_or_in_blocks_from_any_thread() -> None:
    settings = ModelSettings(name="cnn")
    expected = [dict(build_plain(settings, SPEC, seed).state_dict()) for seed in range(4)]
    assert not torch.equal(expected[0]["classifier.weight"], expected[1]["classifier.weight"])
    found: dict[int, dict[str, Tensor]] = {}
    start = threading.Barrier(4)

    def build(seed: int) -> None:
        start.wait()
        found[seed] = build_chain(settings, SPEC, seed).merged_state()

    threads = [threading.Thread(target=build, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert_same(expected[seed], found[seed])


def test_building_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    build_chain(ModelSettings(name="mlp"), SPEC, seed=2**70)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ModelSettings(name="resnet19"), "model.name='resnet19' is not one of cnn, mlp, resnet18"),
        (ModelSettings(name="cnn", stem="small"), "cnn has no stem: leave model.stem at its default"),
        (ModelSettings(name="resnet18", dropout=0.1), "resnet18 has no dropout"),
        (ModelSettings(name="cnn", params={"wide": 3}), "cnn has no option 'wide' .*'width'"),
        (ModelSettings(name="cnn", params={"shape": [1, 8, 8]}), "model.params.shape is set by the data"),
        (ModelSettings(name="cnn", params={"dropout": 0.1}), "model.params.dropout is set by model.dropout"),
        (ModelSettings(target="os.system"), "'os', which this node does not allow"),
        (ModelSettings(target="dynsl_app.model.build.importlib"), "not a function or class"),
    ],
)
def test_unknown_settings_are_refused(settings: ModelSettings, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_chain(settings, SPEC, seed=0)


def test_an_option_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model cnn cannot be built .* see model.params"):
        build_chain(ModelSettings(name="cnn", params={"hidden": "many"}), SPEC, seed=0)


def test_a_users_sequential_has_a_block_per_child(own: str) -> None:
    chain = build_own(own, "sequential", width=3)
    assert len(chain) == 3
    assert list(chain.merged_state()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [(m.p, m.dims, m.place) for m in chain.modules() if isinstance(m, Dropout)] == [(0.5, 2, (2, 0))]
    assert probe(chain, SPEC)[0].shape == (3, 8, 8)
    # The second block starts with an in-place ReLU, which would write into what the other side holds.
    x = torch.randn(2, 3, 8, 8)
    before = x.clone()
    seed_dropout(chain, [(BatchKey(0, 0, 1, 0), 2)])
    chain.block(2)(x)
    assert torch.equal(x, before)


def test_model_dropout_reaches_a_builder_that_takes_it(own: str) -> None:
    settings = ModelSettings(target=f"{own}.sequential", dropout=0.25)
    chain = build_chain(settings, SPEC, seed=0, allow=frozenset({own}))
    assert [m.p for m in chain.modules() if isinstance(m, Dropout)] == [0.25]


def test_a_users_module_with_blocks_is_cut_there(own: str) -> None:
    """User case 16: parameters that are not in a layer, and steps that are not modules."""
    chain = build_own(own, "Net")
    assert len(chain) == 4
    assert list(chain.merged_state())[:3] == ["scale", "conv.weight", "conv.bias"]
    settings = ModelSettings(target=f"{own}.Net")
    plain = build_plain(settings, SPEC, seed=0, allow=frozenset({own}))
    plain.load_state_dict(chain.merged_state())
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain.train()(x), chain.train()(x))
    assert_same(dict(plain.state_dict()), chain.merged_state())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "its blocks leave out scale, norm.weight, norm.bias, norm.running_mean"),
        ("twice", "its blocks hold conv.weight, .* more than once"),
        ("name", "block 2: 'conv2.weight' is not that tensor's name"),
        ("step", "do not compute what the whole model does"),
        ("inplace", "block 3 writes into its input"),
        ("empty", "does not say where it can be cut"),
        ("flat", "does not say where it can be cut"),
        ("tuple", "block 2 returns tuple; what crosses a cut is one tensor"),
    ],
)
def test_wrong_blocks_are_refused(own: str, fault: str, message: str) -> None:
    """User case 16: nothing is lost on splitting, or the split is refused."""
    with pytest.raises(ModelError, match=message):
        build_own(own, "Net", fault=fault)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("tied", r"one tensor under two names \(1.weight, 2.weight\)"),
        ("lazy", "has lazy layers"),
        ("uncut", "Linear does not say where it can be cut"),
        ("number", "returned int; it must return a torch.nn.Module"),
        ("attention", r"1\.1 \(MultiheadAttention\) drops inside its own kernel"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(own: str, function: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_own(own, function)


def test_a_builder_may_take_any_option(own: str) -> None:
    assert probe(build_own(own, "anything", out=10), SPEC)[-1].shape == (10,)


def test_an_image_that_the_model_does_not_take_is_named(own: str) -> None:
    settings = ModelSettings(target=f"{own}.Net")
    with pytest.raises(ModelError, match=r"1×9×9 .* Set data.resize"):
        build_chain(settings, DataSpec((1, 9, 9), 10), seed=0, allow=frozenset({own}))


def test_the_documented_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (tmp_path / "mymodels.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    shapes = [cut.shape for cut in probe(build_own("mymodels", "Net", width=64), SPEC)]
    assert shapes == [(64, 8, 8), (10,)]
