"""README's commands are the ones that work: each is run here, or composed where running it is another test's part."""

import re
import shlex
from pathlib import Path

import pytest

from dynsl_app.compose import compose, split_overrides

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [
    line.split("    #")[0].strip()
    for language, text in BLOCKS
    if not language
    for line in text.replace("\\\n", " ").splitlines()
    if line.strip()
]


def commands(start: str) -> list[str]:
    return [line for line in LINES if line.startswith(start)]


def test_every_command_is_covered() -> None:
    known = ("dynsl ", "flwr run", "./scripts/", "python scripts/", "export ", "flower-supernode ")
    assert LINES
    assert not [line for line in LINES if not line.startswith(known)]


@pytest.mark.parametrize("line", commands("dynsl "))
def test_dynsl_commands_compose(line: str) -> None:
    words = [word for word in shlex.split(line)[1:] if not word.startswith("-")]
    choices = [word.split("=")[1].split(",") if "," in word else [word.split("=")[1]] for word in words]
    first = [f"{word.split('=')[0]}={values[0]}" for word, values in zip(words, choices, strict=True)]
    settings = compose(first)
    assert settings.rounds >= 1


@pytest.mark.parametrize("line", [*commands("flwr run"), *commands("python scripts/")])
def test_overrides_in_one_string_compose(line: str) -> None:
    """tests/e2e and tests/test_compare_cuts.py run such commands for real."""
    words = shlex.split(line)
    overrides = words[words.index("--run-config") + 1] if "--run-config" in words else f"overrides='{words[-1]}'"
    assert compose(split_overrides(overrides.removeprefix("overrides='").removesuffix("'"))).rounds >= 1


@pytest.mark.parametrize("line", commands("./scripts/"))
def test_scripts_exist(line: str) -> None:
    script = ROOT / shlex.split(line)[0]
    assert script.stat().st_mode & 0o100


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_library_example_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [text for language, text in BLOCKS if language == "python"]
    assert len(example.splitlines()) <= 20
    assert "flwr" not in example
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNSL_RUNS", raising=False)
    exec(compile(example, "README.md", "exec"), {})
    accuracy, *_ = capsys.readouterr().out.strip().splitlines()[-1].split()
    assert float(accuracy) > 0.8
    assert list((tmp_path / "runs").glob("*/model.safetensors"))


def test_the_allocators_defaults_are_the_documented_ones() -> None:
    rows = re.findall(
        r"^\| `allocator\.(\w+)` \| `?([\w.]+)`? \|", (ROOT / "docs" / "allocator.md").read_text(), re.MULTILINE
    )
    assert {name for name, _ in rows} >= {
        "mid_epoch",
        "period",
        "min_gain",
        "settle",
        "cooldown",
        "guard",
        "memory_share",
    }
    allocator = compose([]).allocator
    assert dict(rows) == {name: str(getattr(allocator, name)).lower() for name, _ in rows}
