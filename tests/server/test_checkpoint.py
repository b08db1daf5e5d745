import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynsl_app.errors import SettingsError
from dynsl_app.server import checkpoint as module
from dynsl_app.server import durable
from dynsl_app.server.checkpoint import Checkpoint, load, save

ROOT = Path(__file__).parents[2]


def make(number: int) -> Checkpoint:
    """A checkpoint whose every part tells its round."""
    return Checkpoint(
        number,
        {"fc.weight": torch.full((50, 20), float(number)), "fc.count": torch.tensor(number)},
        {"client/0/optimizer": {"1/fc.weight/exp_avg": torch.full((30,), float(number))}},
        {"epoch_s": [0.1] * number},
    )


def check(got: Checkpoint, number: int) -> None:
    want = make(number)
    assert got.round == number
    assert got.meta == want.meta
    assert_same(got.weights, want.weights)
    assert list(got.states) == list(want.states)
    for group, tensors in want.states.items():
        assert_same(got.states[group], tensors)


def assert_same(got: Any, want: Any) -> None:
    assert set(got) == set(want)
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert torch.equal(got[name], want[name])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- what is kept ------------------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tensors = st.sampled_from(
    [torch.tensor(3), torch.tensor(0.5, dtype=torch.float64), torch.zeros(0, 2), torch.ones(2, 2).bfloat16()]
)


@given(states=st.dictionaries(text, st.dictionaries(text, tensors, max_size=3), max_size=3))
def test_any_named_groups_come_back(
    tmp_path_factory: pytest.TempPathFactory, states: dict[str, dict[str, torch.Tensor]]
) -> None:
    """Empty groups, odd names, every dtype and shape."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    save(folder, Checkpoint(1, {"w": torch.ones(1)}, states))
    got = load(folder)
    assert list(got.states) == list(states)
    for group, want in states.items():
        assert_same(got.states[group], want)


def test_numbers_in_meta_come_back_to_the_bit(tmp_path: Path) -> None:
    meta = {"losses": [0.1 + 0.2, 1e-300, None], "bytes_up": 2**60}
    save(tmp_path, Checkpoint(1, {}, meta=meta))
    assert load(tmp_path).meta == meta


def test_the_newest_is_loaded_and_the_last_two_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 9, 10):
        assert save(tmp_path, make(number)).name == f"round-{number:06d}"
    assert names(tmp_path) == ["round-000009", "round-000010"]
    check(load(tmp_path), 10)


def test_no_pickle(tmp_path: Path) -> None:
    path = save(tmp_path, make(1))
    assert names(path) == ["checkpoint.json", "model.safetensors", "states.safetensors"]


def test_going_on_from_an_earlier_round_replaces_the_later_ones(tmp_path: Path) -> None:
    for number in (6, 7):
        save(tmp_path, make(number))
    save(tmp_path, make(6))
    assert names(tmp_path) == ["round-000006"]
    check(load(tmp_path), 6)


# -- what is missing or damaged ----------------------------------------------------------------------------------------


def test_nothing_to_resume_names_the_folder_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"nothing to resume in {tmp_path}.*resume=<run folder>"):
        load(tmp_path / "checkpoint")


def test_other_files_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, make(1))
    (tmp_path / "round-notes").mkdir()
    (tmp_path / "round-000009.tmp").mkdir()
    check(load(tmp_path), 1)


@pytest.mark.parametrize("part", ["checkpoint.json", "model.safetensors", "states.safetensors"])
@pytest.mark.parametrize("damage", [0, 10, 0.5, None])
def test_a_damaged_one_is_skipped(tmp_path: Path, part: str, damage: float | None) -> None:
    """Cut to nothing, to 10 bytes, to half; or gone."""
    save(tmp_path, make(1))
    file = save(tmp_path, make(2)) / part
    if damage is None:
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[: damage if isinstance(damage, int) else int(len(content) * damage)])
    check(load(tmp_path), 1)


# -- death at any moment -----------------------------------------------------------------------------------------------


class Death(BaseException):
    """Ends the process as far as the code under test can tell."""


def dying_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let everything that changes the disk die at the ``steps``-th of them, before it has an effect or half way."""
    count = itertools.count()
    taken = 0

    def mortal(work: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            if next(count) == steps:
                if half is not None:
                    half(*args)
                raise Death
            return work(*args, **options)

        return call

    def half_saved(path: Path, tensors: Any) -> None:
        path.write_bytes(b"\x40\x00\x00")

    def half_deleted(path: Path, *_: Any) -> None:
        for file in sorted(path.glob("*"))[:1]:
            file.unlink()

    monkeypatch.setattr(module, "sync", mortal(durable.sync))
    monkeypatch.setattr(module, "save_tensors", mortal(durable.save_tensors, half_saved))
    monkeypatch.setattr(shutil, "rmtree", mortal(shutil.rmtree, half_deleted))
    monkeypatch.setattr(Path, "rename", mortal(Path.rename))
    monkeypatch.setattr(Path, "mkdir", mortal(Path.mkdir))
    monkeypatch.setattr(Path, "write_text", mortal(Path.write_text))
    return lambda: taken


def test_death_at_any_step_leaves_this_or_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User case 38, at every step that saving takes; afterwards the run goes on."""
    for steps in itertools.count():
        folder = tmp_path / str(steps)
        for number in (1, 2):
            save(folder, make(number))
        with monkeypatch.context() as patch:
            taken = dying_after(steps, patch)
            try:
                save(folder, make(3))
                died = False
            except Death:
                died = True
        if not died:
            break
        assert taken() == steps + 1
        found = load(folder)
        assert found.round in (2, 3)
        check(found, found.round)
        save(folder, make(found.round + 1))
        check(load(folder), found.round + 1)
        assert not list(folder.glob("*.tmp"))
    assert steps >= 10


def test_kill_9_while_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """User case 38: the real thing, with a process that does nothing but save."""
    code = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from dynsl_app.server.checkpoint import Checkpoint, save\n"
        "for n in itertools.count(1):\n"
        "    value = torch.full((200_000,), float(n))\n"
        "    save(Path(sys.argv[1]), Checkpoint(n, {'w': value}, {'s': {'v': value}}, {'n': n}))\n"
        "    print(n, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(5):
        told = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    got = load(tmp_path)
    assert got.round >= told
    assert got.meta == {"n": got.round}
    assert bool((got.weights["w"] == got.round).all())
    assert bool((got.states["s"]["v"] == got.round).all())
    save(tmp_path, make(got.round + 1))
    check(load(tmp_path), got.round + 1)
