"""Print what of this checkout's environment is missing or old: "pins", "checkout", both or nothing.

Run it with the environment's own interpreter and ``-I``. ``--record`` notes the pyproject.toml that has just been
installed, because an editable install sees new code but neither new commands nor new metadata.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(sys.prefix) / "dynsl-pyproject.sha256"


def wrong_pins(requirements: str) -> list[str]:
    """The pins, of those for this platform, whose package is missing or has another version."""
    from packaging.requirements import Requirement

    installed = {normal(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    pins = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate()]
    return [str(pin) for pin in pins if not pin.specifier.contains(installed.get(normal(pin.name), "0.dev0"), True)]


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub("[-_.]+", "-", name).lower()


def is_installed(checkout: Path) -> bool:
    """Whether ``import dynsl_app`` finds this checkout, with its command, as of its present pyproject.toml."""
    spec = importlib.util.find_spec("dynsl_app")
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != checkout / "dynsl_app" / "__init__.py":
        return False
    command = Path(sys.prefix) / "bin" / "dynsl"
    return command.is_file() and RECORD.is_file() and RECORD.read_text() == fingerprint(checkout)


def fingerprint(checkout: Path) -> str:
    """Of the pyproject.toml."""
    return hashlib.sha256((checkout / "pyproject.toml").read_bytes()).hexdigest()


def outdated() -> list[str]:
    """What to install, in this order."""
    try:
        pins = wrong_pins((ROOT / "requirements.txt").read_text())
    except ImportError:  # a new environment has no packaging
        pins = ["packaging"]
    return (["pins"] if pins else []) + ([] if is_installed(ROOT) else ["checkout"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        RECORD.write_text(fingerprint(ROOT))
    else:
        print(*outdated())
