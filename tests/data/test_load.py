import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from dynsl_app.data.load import client_data, load_source
from dynsl_app.data.loader import ClientData
from dynsl_app.data.source import DataSpec, Source, TensorSamples
from dynsl_app.errors import DataError, SettingsError
from dynsl_app.settings import DataSettings


def numbered(train: int, test: int, classes: int = 5) -> Source:
    """One-pixel samples that hold their own number; held-out ones from 1000 up."""

    def part(first: int, count: int) -> TensorSamples:
        numbers = torch.arange(first, first + count)
        return TensorSamples(numbers.to(torch.float32).view(-1, 1, 1, 1), numbers % classes)

    return Source(DataSpec((1, 1, 1), classes), part(0, train), part(1000, test))


def trained(data: ClientData, round: int = 1) -> list[int]:
    return [int(number) for images, _ in data.epoch(round, 0) for number in images.flatten()]


def held_out(data: ClientData) -> list[int]:
    return [int(number) for number in data.test.fetch(torch.arange(len(data.test))).flatten()]


def clients(source: Source, count: int, seed: int = 0, **choice: Any) -> list[ClientData]:
    chosen = DataSettings(**choice)
    return [client_data(source, chosen, client=client, clients=count, seed=seed) for client in range(count)]


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "quantity"])
def test_clients_share_out_training_and_held_out_samples(kind: str) -> None:
    everyone = clients(numbered(203, 41), 6, partition=kind)
    assert sorted(number for data in everyone for number in trained(data)) == list(range(203))
    assert sorted(number for data in everyone for number in held_out(data)) == list(range(1000, 1041))
    assert {len(data.test) for data in everyone} == {6, 7}
    if kind in ("dirichlet", "quantity"):
        assert len({data.samples for data in everyone}) > 2


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "quantity"])
def test_a_clients_data_do_not_depend_on_who_asked_before(kind: str) -> None:
    """User case 25."""
    source, chosen = numbered(90, 20), DataSettings(partition=kind)
    in_order = {k: client_data(source, chosen, client=k, clients=4, seed=3) for k in (0, 1, 2, 3)}
    at_random = {k: client_data(numbered(90, 20), chosen, client=k, clients=4, seed=3) for k in (2, 0, 3, 1)}
    for client in range(4):
        assert trained(in_order[client], 2) == trained(at_random[client], 2)
        assert held_out(in_order[client]) == held_out(at_random[client])


def test_the_seed_changes_who_gets_what() -> None:
    one, other = clients(numbered(60, 12), 3, seed=1), clients(numbered(60, 12), 3, seed=2)
    assert any(set(trained(a)) != set(trained(b)) for a, b in zip(one, other, strict=True))
    assert any(held_out(a) != held_out(b) for a, b in zip(one, other, strict=True))


def test_limit_counts_over_all_clients_and_leaves_held_out_data_alone() -> None:
    everyone = clients(numbered(200, 30), 4, limit=50)
    kept = sorted(number for data in everyone for number in trained(data))
    assert len(kept) == len(set(kept)) == 50
    assert kept != list(range(50))
    assert sum(len(data.test) for data in everyone) == 30
    again = clients(numbered(200, 30), 5, limit=50, partition="shards")
    assert sorted(number for data in again for number in trained(data)) == kept
    assert sum(data.samples for data in clients(numbered(20, 3), 4, limit=1000)) == 20


def test_local_takes_all_a_node_has_and_shares_out_the_limit() -> None:
    """User case 24."""
    mine = client_data(numbered(33, 7), DataSettings(partition="local"), client=2, clients=5, seed=0)
    assert sorted(trained(mine)) == list(range(33))
    assert held_out(mine) == list(range(1000, 1007))
    shares = [
        client_data(numbered(33, 7), DataSettings(partition="local", limit=17), client=k, clients=5, seed=0).samples
        for k in range(5)
    ]
    assert shares == [4, 4, 3, 3, 3]


def test_errors_name_the_client() -> None:
    with pytest.raises(DataError, match="clients 3 to 4"):
        client_data(numbered(50, 5), DataSettings(limit=3), client=0, clients=5, seed=0)
    with pytest.raises(DataError, match="client 1 has 0 training samples"):
        client_data(numbered(0, 5), DataSettings(partition="local"), client=1, clients=5, seed=0)
    with pytest.raises(DataError, match=r"client 1 has 5 training samples.*data\.tail=drop"):
        client_data(numbered(10, 5), DataSettings(tail="drop"), client=1, clients=2, seed=0)
    with pytest.raises(SettingsError, match="client 4: with 4 clients, ids are 0 to 3"):
        client_data(numbered(10, 5), DataSettings(), client=4, clients=4, seed=0)


def test_more_clients_than_held_out_samples_leaves_some_without() -> None:
    assert sorted(len(data.test) for data in clients(numbered(10, 2), 4)) == [0, 0, 1, 1]


def test_digits_flow_from_settings_to_batches() -> None:
    chosen = DataSettings(batch=32, partition="dirichlet", augment=["flip", "crop"], resize=12)
    everyone = [client_data(load_source(chosen), chosen, client=k, clients=4, seed=0) for k in range(4)]
    assert sum(data.samples for data in everyone) == 1442
    for data in everyone:
        images, targets = next(data.epoch(1, 0))
        assert images.shape == (32, 1, 12, 12)
        assert targets.shape == (32,)


def test_a_source_is_read_once_per_process() -> None:
    assert load_source(DataSettings()) is load_source(DataSettings())
    assert load_source(DataSettings()) is not load_source(DataSettings(resize=9))


# a user's own

OWN = """
import torch
from dynsl_app.data.load import load_source
from dynsl_app.data.source import DataSpec, Source, TensorSamples
from dynsl_app.settings import DataSettings

def make(root="", count=3, classes=2, side=4, spec_side=4, dtype=torch.float32, labels=torch.int64):
    count = len(root) or count
    part = TensorSamples(torch.zeros(count, 1, side, side), torch.arange(count))
    return Source(DataSpec((1, spec_side, spec_side), classes), part, part)

def no_source():
    return [1, 2]

def halved(name):
    return load_source(DataSettings(name=name))

def floats():
    source = make(classes=3)
    source.train.targets = source.train.targets.float()
    return source
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def load_own(module: str, function: str, *, resize: int | None = None, **params: Any) -> Source:
    chosen = DataSettings(name="custom", target=f"{module}.{function}", params=params, resize=resize)
    return load_source(chosen, allow=frozenset({module}))


def test_a_users_own_source_is_called_with_params(own: str) -> None:
    source = load_own(own, "make", count=4, classes=4)
    assert (len(source.train), source.spec.classes) == (4, 4)
    assert load_own(own, "make", classes=3, resize=9).spec.shape == (1, 9, 9)


def test_a_nodes_own_root_overrides_the_settings(own: str) -> None:
    """User case 21."""
    chosen = DataSettings(target=f"{own}.make", root="settings", params={"classes": 20})
    assert len(load_source(chosen, allow=frozenset({own})).train) == len("settings")
    assert len(load_source(chosen, root="of the node", allow=frozenset({own})).train) == len("of the node")


def test_a_users_own_source_may_build_on_another(own: str) -> None:
    assert load_own(own, "halved", name="digits").spec.shape == (1, 8, 8)


def test_a_users_own_source_needs_permission(own: str) -> None:
    with pytest.raises(SettingsError, match="setting `allow`"):
        load_source(DataSettings(target=f"{own}.make"))
    with pytest.raises(SettingsError, match=r"needs data\._target_"):
        load_source(DataSettings(name="custom"))


@pytest.mark.parametrize(
    ("function", "params", "message"),
    [
        ("no_source", {}, "returned list, not dynsl_app.data.source.Source"),
        ("make", {"cuont": 3}, r"cannot be called with \['cuont'\]"),
        ("make", {"classes": 2}, "train: targets are 0 to 2; with 2 classes they must be 0 to 1"),
        (
            "make",
            {"classes": 3, "spec_side": 5},
            r"gave torch.float32 of shape \(1, 1, 4, 4\); expected .*\(1, 1, 5, 5\)",
        ),
        ("floats", {}, r"targets are torch.float32 of shape \(3,\); expected int64"),
    ],
)
def test_a_users_own_source_that_does_not_fit_is_refused(
    own: str, function: str, params: dict[str, Any], message: str
) -> None:
    with pytest.raises((SettingsError, DataError), match=message) as caught:
        load_own(own, function, **params)
    assert own in str(caught.value)


# configuration and imports


CONF = Path(__file__).parents[2] / "conf" / "data"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_file_of_the_group_holds_valid_settings_of_its_name(path: Path) -> None:
    settings = DataSettings(**OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]
    assert settings.name == path.stem
    assert settings.batch == 8, "scripts rely on the default"


def test_all_sources_have_a_file_in_the_group() -> None:
    names = {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "image_folder", "synthetic", "custom"}
    assert {path.stem for path in CONF.glob("*.yaml")} == names


def test_a_client_imports_heavy_libraries_only_where_they_are_used() -> None:
    """User case 34."""
    code = (
        "import sys, torch\n"
        "from dynsl_app.data.load import client_data, load_source\n"
        "from dynsl_app.settings import DataSettings\n"
        "for kind in ('iid', 'quantity'):\n"
        "    chosen = DataSettings(name='synthetic', shape=(1, 4, 4), samples=40, resize=6, partition=kind)\n"
        "    next(client_data(load_source(chosen), chosen, client=0, clients=3, seed=0).epoch(1, 0))\n"
        "heavy = {'flwr', 'flwr_datasets', 'datasets', 'pandas', 'sklearn', 'torchvision', 'hydra'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
