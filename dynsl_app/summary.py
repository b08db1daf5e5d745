"""What a finished run says of itself: ``summary.json``, and the event ``run_end``."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dynsl_app.telemetry import strict_json

_REPORTED = ("dynsl", "torch", "torchvision", "flwr", "grpcio", "numpy")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results may depend on."""
    versions = {"python": platform.python_version()}
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
        Of Python and the packages that results may depend on.
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
