"""The run folder: where everything that a run leaves behind is."""

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from torch import Tensor

from dynsl_app.errors import SettingsError
from dynsl_app.server.durable import replacing, save_tensors
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.telemetry.sinks.jsonl import events_with_end

_LONGEST_NAME = 80


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run; ``path`` is absolute. ``docs/run-folder.md`` says what each file holds.

    ``made``: whether the folder itself was made for this run.
    """

    path: Path
    made: bool = field(default=False, compare=False)

    @property
    def config(self) -> Path:
        """Settings as composed."""
        return self.path / "config.yaml"

    @property
    def events(self) -> Path:
        """The stream of events."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """A row per round."""
        return self.path / "metrics.csv"

    @property
    def summary(self) -> Path:
        """Final numbers."""
        return self.path / "summary.json"

    @property
    def model(self) -> Path:
        """The whole model's weights."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Folder of checkpoints to resume from."""
        return self.path / "checkpoint"

    @property
    def trace(self) -> Path:
        """Time line for Perfetto."""
        return self.path / "trace.json"

    @classmethod
    def create(cls, settings: Settings, default_base: Path) -> "RunFolder":
        """Make the folder of a new run: ``run_dir``, else ``<time>-<name>`` under ``$DYNSL_RUNS`` or ``default_base``.

        ``run_dir`` may exist and hold other files, but not another run.

        Raises
        ------
        SettingsError
            If the folder cannot be made or written to, or ``run_dir`` holds a run already.
        """
        if settings.run_dir is None:
            base = Path(os.environ.get("DYNSL_RUNS") or default_base).expanduser().absolute()
            setting = f"$DYNSL_RUNS={base}" if os.environ.get("DYNSL_RUNS") else f"the default place for runs, {base}"
            make, wanted = _make_unique, base / f"{datetime.now():%Y%m%d-%H%M%S}-{_file_name(settings.name)}"
        else:
            setting = f"run_dir={settings.run_dir}"
            make, wanted = _make_given, Path(settings.run_dir).expanduser().absolute()
        try:
            path, made = make(wanted)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise SettingsError(
                f"{setting}: cannot make a run folder there ({error.strerror}: {error.filename}); "
                f"choose a writable folder with run_dir=<path> or $DYNSL_RUNS"
            ) from error
        folder = cls(path, made)
        # An empty stream is from a run that was refused before it began; after that, the folder may be used again.
        if folder.begun:
            raise SettingsError(
                f"{setting} holds a run already ({folder.events}); continue it with resume={path}, "
                f"or choose another run_dir"
            )
        return folder

    @classmethod
    def reopen(cls, path: Path, after_round: int) -> "RunFolder":
        """The folder of an earlier run, to be continued after ``after_round``, the checkpoint's.

        What ``events.jsonl`` says of later rounds, and of an end, is dropped (a torn last line too), so that the
        continued curve has every round once. ``summary.json`` goes: the run is not finished any more.
        """
        folder = cls(path.expanduser().absolute())
        folder.summary.unlink(missing_ok=True)
        if folder.events.exists():
            kept = 0
            for end, event in events_with_end(folder.events):
                if event["event"] == "run_end" or event.get("round", 0) > after_round:
                    break
                kept = end
            os.truncate(folder.events, kept)
        return folder

    @property
    def begun(self) -> bool:
        """Whether anything has happened in the run."""
        return self.events.exists() and self.events.stat().st_size > 0

    def discard(self) -> None:
        """Take away what was written for a run that never began, and the folder if it was made for it."""
        for file in (self.config, self.events, self.metrics, self.trace):
            file.unlink(missing_ok=True)
        if self.made:
            with suppress(OSError):  # somebody else has put something there
                self.path.rmdir()

    def elapsed(self) -> float:
        """Seconds that the run had taken by its last event; 0 for a new one."""
        last = 0.0
        if self.events.exists():
            for _, event in events_with_end(self.events):
                last = event["t"]
        return last

    def write_config(self, text: str) -> None:
        """Write ``config.yaml``."""
        with replacing(self.config) as draft:
            draft.write_text(text, encoding="utf-8")

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``."""
        with replacing(self.summary) as draft:
            draft.write_text(summary.to_json(), encoding="utf-8")

    def write_model(self, state: Mapping[str, Tensor]) -> None:
        """Write ``model.safetensors``; equal weights give equal bytes."""
        with replacing(self.model) as draft:
            save_tensors(draft, state)


def _make_given(path: Path) -> tuple[Path, bool]:
    """Make a folder unless it is there; and whether it was made."""
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    return path, made


def _make_unique(path: Path) -> tuple[Path, bool]:
    """Make a folder that did not exist: several runs may start in the same second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    attempt, candidate = 1, path
    while True:
        try:
            candidate.mkdir()
            return candidate, True
        except FileExistsError:
            attempt += 1
            candidate = path.with_name(f"{path.name}-{attempt}")


def _file_name(name: str) -> str:
    """A run's name as part of a file name: no separators, nothing hidden, never empty."""
    return re.sub(r"[^\w.+=-]+", "-", name)[:_LONGEST_NAME].strip("-.") or "run"
