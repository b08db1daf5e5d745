"""The run as a live table at the bottom of a terminal, with finished rounds as lines above it."""

import threading
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from dynsl_app.telemetry.events import Event
from dynsl_app.telemetry.sinks.lines import LinesSink

_FRAME_ROWS = 6
"""Lines of the screen that are not clients: title, table's header, "and more", and room for the cursor."""


@dataclass
class _Progress:
    """How far one client is in this round."""

    client: int
    cut: int
    began: float
    batches: int = 0
    done: int = 0
    samples: int = 0
    loss: float | None = None
    updated: float = 0.0
    state: str = "waiting"

    @property
    def share(self) -> float:
        """Part of the round that is done, in 0..1."""
        return self.done / self.batches if self.batches else float(self.state == "done")

    @property
    def rate(self) -> float:
        """Samples per second since the client's stream opened."""
        seconds = self.updated - self.began
        return self.samples / seconds if seconds > 0 else 0.0


class LiveSink:
    """Shows each client's cut, progress, loss and speed while a round runs.

    Events only update a few numbers; a thread of rich's draws them, so that the display costs the same at any
    rate of batches. Where there are more clients than lines, the slowest are shown.
    """

    def __init__(self, console: Console, *, frames_per_second: float = 2.0) -> None:
        # Guards the numbers below. Never held while printing: rich draws under its own lock, then takes ours.
        self._lock = threading.Lock()
        self._console = console
        self._lines = LinesSink(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        self._rows: dict[int, _Progress] = {}
        self._round = 0
        self._rounds = 0
        self._accuracy: float | None = None
        self._origin = time.monotonic()
        self._live = Live(
            get_renderable=self.table, console=console, transient=True, refresh_per_second=frames_per_second
        )

    def handle(self, event: Event) -> None:
        """Update the table; what stays of the run is printed above it."""
        with self._lock:
            self._update(event)
        name = event["event"]
        if name == "round_start":
            self._live.start()
        elif name == "run_end":
            self._live.stop()
        if name != "round_start":
            self._lines.handle(event)

    def close(self) -> None:
        """Take the table off the screen and give the cursor back."""
        self._live.stop()

    def table(self) -> Table:
        """The table as it is now."""
        with self._lock:
            room = max(self._console.height - _FRAME_ROWS, 1)
            slowest = sorted(self._rows.values(), key=lambda row: (row.share, row.client))
            shown = sorted(slowest[:room], key=lambda row: row.client)
            table = Table(title=self._title(), title_justify="left", box=None, pad_edge=False)
            for heading in ("client", "cut", "batches"):
                table.add_column(heading, justify="right")
            table.add_column("", width=24)
            for heading in ("loss", "samples/s", ""):
                table.add_column(heading, justify="right")
            for row in shown:
                table.add_row(
                    str(row.client),
                    str(row.cut),
                    f"{row.done}/{row.batches}",
                    ProgressBar(total=max(row.batches, 1), completed=row.done, width=24),
                    "-" if row.loss is None else f"{row.loss:.4f}",
                    f"{row.rate:.0f}",
                    row.state,
                )
            if len(slowest) > room:
                table.caption = f"… and {len(slowest) - room} more, further on"
            return table

    def _title(self) -> str:
        accuracy = "" if self._accuracy is None else f" · test accuracy {self._accuracy:.4f}"
        elapsed = time.monotonic() - self._origin
        return f"round {self._round}/{self._rounds}{accuracy} · {elapsed:.0f} s"

    def _update(self, event: Event) -> None:
        if event["event"] != "round_start" and event.get("round", self._round) != self._round:
            return  # a client that comes late, from a round that is over
        match event["event"]:
            case "run_start":
                self._rounds = event["settings"]["rounds"]
                self._origin = time.monotonic() - event["t"]
            case "round_start":
                self._round = event["round"]
                self._rows = {
                    client: _Progress(client, event["cuts"][str(client)], began=event["t"])
                    for client in event["clients"]
                }
            case "stream_open":
                # A client may join a round under way.
                new = _Progress(event["client"], event.get("cut", 0), began=event["t"])
                row = self._rows.setdefault(event["client"], new)
                row.batches, row.began, row.state = event["batches"], event["t"], "training"
            case "step":
                for client, batch, samples in event["members"]:
                    self._advance(client, batch, samples, event)
            case "progress":
                self._advance(event["client"], event["batch"], event["samples"], event)
            case "client_done":
                self._rows[event["client"]].state = "done"
            case "client_lost":
                self._rows[event["client"]].state = "lost"
            case "stream_lost":
                self._rows[event["client"]].state = "reconnecting"
            case "stream_resumed":
                self._rows[event["client"]].state = "training"
            case "round_end":
                self._accuracy = event["accuracy"]

    def _advance(self, client: int, batch: int, samples: int, event: Event) -> None:
        row = self._rows[client]
        row.done = batch + 1
        row.samples += samples
        row.loss = event["loss"]
        row.updated = event["t"]
