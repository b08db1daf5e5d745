"""What a finished run's folder tells: who its clients were, what they held when, and how long a batch took them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings
from dynsl_app.telemetry.sinks.jsonl import read_events
from dynsl_app.validate import from_yaml


@dataclass(frozen=True)
class Move:
    """A completed move in mid-epoch: from ``batch`` (counted from 0) of ``round`` on, ``after`` blocks."""

    round: int
    batch: int
    before: int
    after: int


@dataclass(frozen=True)
class Client:
    """One client's run.

    Attributes
    ----------
    starts
        Its cut at the start of each round that it took part in.
    moves
        In order.
    first_s, last_s
        Seconds from one batch to the next, medians: of its first round before its first move, and of its last round
        after its last move. None where the stream of events does not say.
    """

    id: int
    starts: Mapping[int, int]
    moves: tuple[Move, ...]
    first_s: float | None
    last_s: float | None


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    epoch_s
        Seconds of training, one number a round.
    moves
        Completed in mid-epoch, all clients.
    clients
        Those that took part, by id.
    """

    path: Path
    settings: Settings
    blocks: int
    accuracy: float | None
    epoch_s: tuple[float, ...]
    moves: int
    clients: tuple[Client, ...]

    @property
    def mean_epoch_s(self) -> float:
        """Seconds of training a round, on average."""
        return sum(self.epoch_s) / len(self.epoch_s)

    @property
    def model(self) -> bytes:
        """The model file; equal weights give equal bytes."""
        return (self.path / "model.safetensors").read_bytes()


def read_run(folder: Path) -> Run:
    """Read a finished run's folder.

    Raises
    ------
    SettingsError
        It is no run folder, or the run has not finished.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        settings = from_yaml((folder / "config.yaml").read_text(encoding="utf-8"))
        blocks, clients = _read_events(read_events(folder / "events.jsonl"))
        return Run(
            path=folder,
            settings=settings,
            blocks=blocks,
            accuracy=summary["accuracy"],
            epoch_s=tuple(summary["epoch_s"]),
            moves=summary["moves"],
            clients=clients,
        )
    except OSError as error:
        raise SettingsError(
            f"{folder}: {error.filename} cannot be read ({error.strerror}); give the folder of a finished run"
        ) from None
    except SettingsError as error:
        raise SettingsError(f"{folder}: its config.yaml is not of this version: {error}") from None
    except (ValueError, KeyError) as error:
        raise SettingsError(f"{folder}: not a run folder of this version ({error!r}); give another one") from None


@dataclass
class _Course:
    """A client as its events come."""

    starts: dict[int, int] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)
    at: float | None = None
    """When its last batch was done; None where the next batch's time says nothing: at a round's start, in a move."""

    def start(self, round_: int, cut: int) -> None:
        self.starts[round_] = cut
        self.at, self.last_s = None, []

    def move(self, move: Move) -> None:
        self.moves.append(move)
        self.at, self.last_s = None, []

    def batch(self, t: float) -> None:
        if self.at is not None:
            self.last_s.append(t - self.at)
            if len(self.starts) == 1 and not self.moves:
                self.first_s.append(t - self.at)
        self.at = t


def _read_events(events: Iterable[Mapping[str, Any]]) -> tuple[int, tuple[Client, ...]]:
    """The model's blocks, and the clients."""
    blocks = 0
    courses: dict[int, _Course] = {}
    for event in events:
        match event["event"]:
            case "run_start":
                blocks = event["blocks"]
            case "round_start":
                for client in event["clients"]:
                    course = courses.setdefault(client, _Course())
                    course.start(event["round"], event["cuts"][str(client)])
            case "stream_open" if "cut" in event:  # it may join in the midst of a round
                course = courses.setdefault(event["client"], _Course())
                if event["round"] not in course.starts:
                    course.start(event["round"], event["cut"])
            case "move":
                move = Move(event["round"], event["batch"], event["cut_before"], event["cut"])
                courses[event["client"]].move(move)
            case "step":
                for client, _, _ in event["members"]:
                    courses[client].batch(event["t"])
            case "progress":
                courses[event["client"]].batch(event["t"])
    clients = (
        Client(
            client,
            course.starts,
            tuple(course.moves),
            median(course.first_s) if course.first_s else None,
            median(course.last_s) if course.last_s else None,
        )
        for client, course in sorted(courses.items())
    )
    return blocks, tuple(clients)
