"""What a finished run says of itself: ``summary.json``, and the event ``run_end``."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dynsl_app.telemetry import strict_json

_REPORTED = ("dynsl", "torch", "torchvision", "flwr", "grpcio", "numpy")


def code_digest(package: Path) -> str:
    """Twelve hexadecimal digits that differ where a package's source does, whatever its version says."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]


_CODE = code_digest(Path(__file__).parent)
"""Of this package, as it was when the process began, for the code that runs is that."""


def installed_versions() -> dict[str, str]:
    """Versions of Python and of packages that results may depend on, and as ``code`` a digest of this one's source."""
    versions = {"python": platform.python_version(), "code": _CODE}
    for package in _REPORTED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True)
class Summary:
    """A run's final numbers.

    Attributes
    ----------
    accuracy, loss
        Of the merged model after the last round, on held-out data: a fraction, a mean; None without such data.
    rounds
        Rounds completed, those before a resume included.
    epoch_s
        Seconds of training per round (all its local epochs): first batch's start to last batch's end at the
        controller, start-up apart.
    total_s
        Seconds from the start of the run to its end, start-up included.
    bytes_up, bytes_down
        Data plane, all clients to the server and back.
    moves
        Completed mid-epoch moves.
    cuts
        Final cut n_i by partition id.
    clients
        Number of clients that the run was for.
    run_dir
        Absolute path of the run folder.
    versions
        Of Python, the packages that results may depend on, and this one's source.
    """

    accuracy: float | None
    loss: float | None
    rounds: int
    epoch_s: tuple[float, ...]
    total_s: float
    bytes_up: int
    bytes_down: int
    moves: int
    cuts: Mapping[int, int]
    clients: int
    algorithm: str
    model: str
    data: str
    seed: int
    name: str
    run_dir: str
    versions: Mapping[str, str] = field(default_factory=installed_versions)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON has them: what ``run_end`` carries."""
        cuts = {str(client): cut for client, cut in self.cuts.items()}
        return asdict(self) | {"cuts": cuts, "epoch_s": list(self.epoch_s)}

    def to_json(self) -> str:
        """``summary.json``'s text: strict JSON, null where a number is not finite."""
        return strict_json.dumps(self.fields(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Summary":
        """Inverse of :meth:`to_json`. Raises ValueError, TypeError or KeyError if it is of another layout."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("a summary is a JSON object")
        cuts = {int(client): cut for client, cut in fields.pop("cuts").items()}
        return cls(**fields | {"cuts": cuts, "epoch_s": tuple(fields["epoch_s"])})
