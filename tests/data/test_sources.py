"""Sources, each read from files that the test writes in the source's own format."""

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dynsl_app.data.load import load_source
from dynsl_app.data.source import Samples, Source
from dynsl_app.data.sources.vision import VISION_SETS
from dynsl_app.data.transforms import square
from dynsl_app.errors import DataError, SettingsError
from dynsl_app.settings import DataSettings


def load(root: Path | None = None, **choice: Any) -> Source:
    return load_source(DataSettings(**choice), root=None if root is None else str(root))


def everything(samples: Samples) -> Tensor:
    return samples.fetch(torch.arange(len(samples)))


def assert_sound(source: Source) -> None:
    for part in (source.train, source.test):
        images = everything(part)
        assert images.dtype == torch.float32
        assert images.shape == (len(part), *source.spec.shape)
        assert images.isfinite().all()
        assert part.targets.dtype == torch.int64
        assert part.targets.shape == (len(part),)
        assert part.targets.min() >= 0
        assert part.targets.max() < source.spec.classes
        some = torch.tensor([3, 0, 3])
        assert torch.equal(part.fetch(some), images[some])


# digits


def test_digits_are_standardised_and_split_the_same_way_in_each_class() -> None:
    source = load()
    assert_sound(source)
    assert source.spec.shape == (1, 8, 8)
    assert source.spec.classes == 10
    assert (len(source.train), len(source.test)) == (1442, 355)
    assert everything(source.train).mean().abs() < 1e-3
    assert (everything(source.train).std() - 1).abs() < 1e-3
    assert source.test.targets.bincount().min() >= 34


def test_digits_held_out_are_not_trained_on() -> None:
    source = load()
    train = {image.numpy().tobytes() for image in everything(source.train)}
    assert not any(image.numpy().tobytes() in train for image in everything(source.test))


# synthetic


@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((1, 5, 9), 3), ((4, 1, 1), 2)])
def test_synthetic_has_any_shape_and_class_count(shape: tuple[int, int, int], classes: int) -> None:
    source = load(name="synthetic", shape=shape, classes=classes, samples=40)
    assert_sound(source)
    assert source.spec.shape == shape
    assert source.spec.classes == classes
    assert len(source.train) == 40
    assert len(source.test) >= classes
    assert source.test.targets.bincount(minlength=classes).min() >= 1


def test_synthetic_parts_differ_and_repeat() -> None:
    choice: dict[str, Any] = {"name": "synthetic", "shape": (1, 6, 6), "samples": 50}
    source, again = load(**choice), load(**choice, alpha=0.7)
    assert torch.equal(everything(source.train), everything(again.train))
    assert not torch.equal(everything(source.train)[:10], everything(source.test)[:10])
    longer = load(**(choice | {"samples": 60}))
    assert torch.equal(everything(longer.train)[:50], everything(source.train))


def test_synthetic_classes_can_be_told_apart() -> None:
    source = load(name="synthetic", shape=(3, 16, 16), classes=10, samples=500)
    images, targets = everything(source.train).flatten(1), source.train.targets
    means = torch.stack([images[targets == label].mean(0) for label in range(10)])
    guesses = torch.cdist(everything(source.test).flatten(1), means).argmin(1)
    assert (guesses == source.test.targets).float().mean() > 0.95


# torchvision's


def write_idx(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(
        struct.pack(">HBBiii", 0, 8, 3, *images.shape) + images.tobytes()
    )
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">HBBi", 0, 8, 1, len(labels)) + labels.tobytes())


def pixels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files_are_read_and_standardised(name: str, folder: str, tmp_path: Path) -> None:
    """User case 24."""
    train, labels = pixels(12, 28, 28), np.arange(12, dtype=np.uint8) % 10
    write_idx(tmp_path / folder / "raw", "train", train, labels)
    write_idx(tmp_path / folder / "raw", "t10k", pixels(5, 28, 28), labels[:5])
    source = load(name=name, root=str(tmp_path))
    assert_sound(source)
    assert (len(source.train), len(source.test)) == (12, 5)
    expected = (torch.from_numpy(train).unsqueeze(1) / 255 - VISION_SETS[name].mean[0]) / VISION_SETS[name].std[0]
    torch.testing.assert_close(everything(source.train), expected)
    assert source.train.targets.tolist() == labels.tolist()


def write_cifar(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A small CIFAR folder, and torchvision told these files' checksums instead of the real ones."""
    from torchvision import datasets

    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder = root / kind.base_folder
    folder.mkdir()
    sums: dict[str, str] = {}

    def write(file: str, content: dict[str, Any]) -> None:
        raw = pickle.dumps(content)
        (folder / file).write_bytes(raw)
        sums[file] = hashlib.md5(raw).hexdigest()

    parts = []
    for number, (file, _) in enumerate(kind.train_list + kind.test_list):
        parts.append(pixels(4 + number, 3 * 32 * 32))
        key = "labels" if name == "cifar10" else "fine_labels"
        write(file, {"data": parts[-1], key: [k % VISION_SETS[name].spec.classes for k in range(len(parts[-1]))]})
    write(kind.meta["filename"], {kind.meta["key"]: [str(k) for k in range(VISION_SETS[name].spec.classes)]})
    monkeypatch.setattr(kind, "train_list", [[file, sums[file]] for file, _ in kind.train_list])
    monkeypatch.setattr(kind, "test_list", [[file, sums[file]] for file, _ in kind.test_list])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": sums[kind.meta["filename"]]})
    return np.concatenate(parts[:-1])


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_files_are_read_and_standardised(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_cifar(tmp_path, name, monkeypatch)
    source = load(tmp_path, name=name)
    assert_sound(source)
    assert source.spec == VISION_SETS[name].spec
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (VISION_SETS[name].mean, VISION_SETS[name].std))
    torch.testing.assert_close(everything(source.train), (torch.from_numpy(raw).view(-1, 3, 32, 32) / 255 - mean) / std)


@pytest.mark.parametrize("name", list(VISION_SETS))
def test_a_missing_folder_names_it_and_the_remedies(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root.*download") as caught:
        load(tmp_path / "nowhere", name=name)
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "data_root" in str(caught.value)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(DataError, match=rf"data={name} reads a local folder, but data\.root is not set"):
        load(name=name)


def test_a_download_that_fails_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz:\nTried https://…")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", unreachable)
    with pytest.raises(DataError, match=r"data=mnist: cannot read it.*Error downloading.*network"):
        load(tmp_path, name="mnist", download=True)


def test_damaged_files_are_a_data_error(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, "train", pixels(6, 28, 28), np.zeros(6, np.uint8))
    write_idx(raw, "t10k", pixels(2, 28, 28), np.zeros(2, np.uint8))
    whole = (raw / "train-images-idx3-ubyte").read_bytes()
    for damaged in (whole[:2000], whole[:3], b""):
        (raw / "train-images-idx3-ubyte").write_bytes(damaged)
        with pytest.raises(DataError, match=r"data=mnist: cannot read it from data\.root="):
            load(tmp_path, name="mnist")


def test_files_of_another_shape_or_count_are_refused(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, "t10k", pixels(2, 28, 28), np.zeros(2, np.uint8))
    write_idx(raw, "train", pixels(6, 20, 28), np.zeros(6, np.uint8))
    with pytest.raises(DataError, match=r"shape \(6, 1, 20, 28\).*expected N of shape \(1, 28, 28\)"):
        load(tmp_path, name="mnist")
    write_idx(raw, "train", pixels(6, 28, 28), np.zeros(5, np.uint8))
    with pytest.raises(DataError, match="and 5 labels"):
        load(tmp_path, name="mnist")


# resize


def test_resize_applies_to_both_parts_of_any_source() -> None:
    source, plain = load(resize=20), load()
    assert_sound(source)
    assert source.spec.shape == (1, 20, 20)
    assert source.spec.classes == 10
    assert torch.equal(everything(source.train), square(everything(plain.train), 20))
    assert torch.equal(source.test.targets, plain.test.targets)
    assert load(resize=8).spec == plain.spec


def test_square_scales_the_shorter_side_and_keeps_the_middle() -> None:
    image = torch.arange(12.0).view(1, 1, 2, 6).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert square(image, 4).tolist() == image[:, :, :, 4:8].tolist()
    assert square(image.mT, 4).tolist() == image.mT[:, :, 4:8, :].tolist()
    for height, width in [(5, 7), (7, 5), (4, 4), (1, 9)]:
        out = square(torch.rand(2, 3, height, width), 6)
        assert out.shape == (2, 3, 6, 6)
        assert out.is_contiguous()
    torch.testing.assert_close(square(torch.full((1, 1, 9, 13), 0.5), 4), torch.full((1, 1, 4, 4), 0.5))


def test_names_and_params_that_fit_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"data\.name=mnits is unknown; choose one of digits, synthetic, mnist"):
        load(name="mnits")
    with pytest.raises(SettingsError, match=r"data=digits takes no data\.params; given: width"):
        load(params={"width": 3})


@pytest.mark.parametrize("name", ["digits", "synthetic", "cifar10", "cifar100"])
def test_local_needs_a_set_that_can_differ_between_nodes(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"data\.partition=local.*data={name} is the same everywhere"):
        load(tmp_path, name=name, partition="local")


# image folders


def write_images(root: Path, part: str, counts: dict[str, int], size: tuple[int, int] = (6, 4)) -> None:
    for name, count in counts.items():
        folder = root / part / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", size, (10 * number, 100, 200)).save(folder / f"{number:03d}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path, "train", {"cat": 5, "dog": 7})
    write_images(tmp_path, "test", {"cat": 4, "dog": 4})
    return tmp_path


def test_image_folder_numbers_classes_by_name_and_reads_pixels(folder: Path) -> None:
    source = load(folder, name="image_folder")
    assert_sound(source)
    assert source.spec.shape == (3, 4, 6)
    assert source.spec.classes == 2
    assert source.train.targets.tolist() == [0] * 5 + [1] * 7
    image = source.train.fetch(torch.tensor([2]))[0]
    torch.testing.assert_close(image[:, 0, 0], torch.tensor([20.0, 100.0, 200.0]) / 255)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_every_mode_come_to_the_same_channels(folder: Path, mode: str, channels: int) -> None:
    if mode == "I;16":
        odd = Image.fromarray(np.full((4, 6), 100 * 257, np.uint16))
    else:
        odd = Image.new("L", (6, 4), 100).convert(mode)
    (folder / "train" / "cat" / "000.png").unlink()
    odd.save(folder / "train" / "cat" / ("000.tif" if mode == "CMYK" else "000.png"))
    source = load(folder, name="image_folder", params={"channels": channels})
    assert source.spec.shape == (channels, 4, 6)
    value = source.train.fetch(torch.tensor([0])) * 255
    if mode == "1":
        assert set(value.flatten().tolist()) <= {0.0, 255.0}
    else:
        torch.testing.assert_close(value, torch.full((1, channels, 4, 6), 100.0), atol=1.01, rtol=0)


def test_image_folder_standardises_when_asked(folder: Path) -> None:
    plain = load(folder, name="image_folder")
    params = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 1.0]}
    source = load(folder, name="image_folder", params=params)
    mean, std = (torch.tensor(params[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    assert torch.equal(everything(source.test), (everything(plain.test) - mean) / std)


def test_images_that_differ_in_size_need_resize(folder: Path) -> None:
    write_images(folder, "test", {"dog": 1}, size=(9, 5))
    with pytest.raises(DataError, match=r"000\.png is 6×4 pixels.*dog.*9×5.*Set data\.resize"):
        load(folder, name="image_folder")
    source = load(folder, name="image_folder", resize=8)
    assert_sound(source)
    assert source.spec.shape == (3, 8, 8)


def test_a_file_that_is_no_image_is_named(folder: Path) -> None:
    broken = folder / "train" / "dog" / "006.png"
    whole = broken.read_bytes()
    broken.write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"cannot read .*006\.png.*Repair or remove it"):
        load(folder, name="image_folder")
    broken.write_bytes(whole[:-30])
    source = load(folder, name="image_folder")
    with pytest.raises(DataError, match=r"cannot read .*006\.png.*Repair or remove it"):
        source.train.fetch(torch.tensor([11]))


def test_missing_or_odd_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere.train.*data\.root.*data_root"):
        load(tmp_path / "nowhere", name="image_folder")
    write_images(folder, "test", {"horse": 1})
    with pytest.raises(DataError, match=r"test holds folders that are no class: horse.*The classes are cat, dog"):
        load(folder, name="image_folder")
    (tmp_path / "empty" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"at least two; found \['cat'\]"):
        load(tmp_path / "empty", name="image_folder")
    (tmp_path / "empty" / "train" / "dog").mkdir()
    with pytest.raises(DataError, match=r"no image .* in the class folders of .*train"):
        load(tmp_path / "empty", name="image_folder")


def test_a_nodes_own_folder_may_lack_classes_and_a_part_but_not_their_names(tmp_path: Path) -> None:
    """User case 24."""
    write_images(tmp_path, "train", {"dog": 4})
    with pytest.raises(SettingsError, match=r"one and would number the others differently: set data\.params\.classes"):
        load(tmp_path, name="image_folder", partition="local")
    params = {"classes": ["cat", "dog", "horse"]}
    source = load(tmp_path, name="image_folder", partition="local", params=params)
    assert source.spec.classes == 3
    assert source.train.targets.tolist() == [1] * 4
    assert len(source.test) == 0
    with pytest.raises(DataError, match="no image in"):
        load(tmp_path / "nowhere", name="image_folder", partition="local", params=params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"clases": ["a", "b"]}, "clases"),
        ({"channels": 2}, "channels"),
        ({"classes": ["a"]}, "at least two names"),
        ({"classes": ["a", "a"]}, "each once"),
        ({"mean": [0.5, 0.5, 0.5]}, "give both"),
        ({"mean": [0.5], "std": [0.5]}, "one number for each of the 3 channels"),
        ({"mean": [0.5] * 3, "std": [0.5, 0.0, 0.5]}, "above zero"),
    ],
)
def test_wrong_params_of_an_image_folder_are_named(folder: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=rf"data\.params.*{message}"):
        load(folder, name="image_folder", params=params)
