import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import dynsl_app
from dynsl_app.summary import Summary, code_digest, installed_versions

SUMMARY = Summary(
    accuracy=0.9375,
    loss=0.25,
    rounds=2,
    epoch_s=(1.5, 1.25),
    total_s=4.0,
    bytes_up=2000,
    bytes_down=1000,
    moves=1,
    cuts={0: 2, 1: 3},
    clients=2,
    algorithm="uniform",
    model="cnn",
    data="digits",
    seed=0,
    name="run",
    run_dir="/runs/example",
)


def test_json_has_the_promised_fields_and_types() -> None:
    got = json.loads(SUMMARY.to_json())
    assert got["epoch_s"] == [1.5, 1.25]
    assert got["cuts"] == {"0": 2, "1": 3}
    assert got["versions"]["torch"] == installed_versions()["torch"]
    numbers = {"accuracy", "loss", "rounds", "epoch_s", "total_s", "bytes_up", "bytes_down", "moves", "cuts"}
    assert numbers | {"clients", "versions", "seed"} <= set(got)


def test_the_event_says_the_same_as_the_file() -> None:
    assert SUMMARY.fields() == json.loads(SUMMARY.to_json())


def test_it_is_read_again() -> None:
    assert Summary.from_json(SUMMARY.to_json()) == SUMMARY
    for text in ("{}", SUMMARY.to_json().replace("rounds", "turns"), '"text"', "{"):
        with pytest.raises((ValueError, TypeError, KeyError)):
            Summary.from_json(text)


def test_the_code_is_known_by_its_source(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("a.py", "x = 1"), ("a.py", "x = 2"), ("b.py", "x = 2")):
        (tmp_path / "a.py").unlink(missing_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / "notes.txt").write_text(name)
        digests.add(code_digest(tmp_path))
        (tmp_path / "notes.txt").unlink()
        assert code_digest(tmp_path) in digests
    assert len(digests) == 3
    assert installed_versions()["code"] == code_digest(Path(dynsl_app.__file__).parent)


def test_a_loss_that_is_not_finite_is_null() -> None:
    assert json.loads(replace(SUMMARY, loss=float("inf")).to_json())["loss"] is None


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SUMMARY.rounds = 3  # type: ignore[misc]
