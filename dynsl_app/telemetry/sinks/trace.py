"""``trace.json``: the run on a time line, in the Chrome trace event format that https://ui.perfetto.dev opens.

A process for the clients with a track each, one for their links likewise, one for the server with a track per
worker, and one for the rounds. Written as it happens, so memory does not grow with the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynsl_app.telemetry import strict_json
from dynsl_app.telemetry.events import Event

_RUN, _CLIENTS, _SERVER, _LINKS = 1, 2, 3, 4
_MOMENTS = ("stream_lost", "stream_resumed", "client_lost", "waiting", "checkpoint", "warning")
"""Events shown as a mark in time."""


@dataclass(frozen=True)
class _Batch:
    """A batch that the server has done, until its client's next one tells what the link took: times in seconds."""

    arrived: float
    taken: float
    done: float
    details: Mapping[str, Any]


class TraceSink:
    """Turns steps, progress and rounds into slices.

    A step tells when it ended (``t``), how long the head worked (``service_s``) and how long the batch had
    waited (``wait_s``), and of each member's batch before, how long it was on the link (``exchanges``). Only the sum of
    both ways can be measured without a common clock: half of it is shown as each (choice). Where it is unknown, as
    for a client's last batch, own compute and link are one slice.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[")
        self._empty = True
        self._tracks: set[tuple[int, int]] = set()
        self._free_since: dict[int, float] = {}
        self._open: dict[int, _Batch] = {}
        self._round_began = 0.0
        for process, name in ((_RUN, "run"), (_CLIENTS, "clients"), (_SERVER, "server"), (_LINKS, "links")):
            self._write(name="process_name", ph="M", pid=process, args={"name": name})

    def handle(self, event: Event) -> None:
        """Write the slices that an event ends."""
        match event["event"]:
            case "round_start":
                self._round_began = event["t"]
            case "stream_open":
                self._settle(event["client"], None)
                self._free_since[event["client"]] = event["t"]
            case "step":
                self._step(event)
            case "client_done":
                self._settle(event["client"], None)
            case "progress":
                self._settle(event["client"], None)
                details = {key: event.get(key) for key in ("batch", "samples", "loss")}
                self._slice("batch", _CLIENTS, event["client"], self._began(event["client"]), event["t"], details)
                self._free_since[event["client"]] = event["t"]
            case "round_end":
                self._settle_all()
                details = {key: event.get(key) for key in ("accuracy", "loss", "train_loss", "epoch_s")}
                self._slice(f"round {event['round']}", _RUN, 0, self._round_began, event["t"], details)
                self._file.flush()
            case name if name in _MOMENTS:
                if name == "client_lost":
                    self._settle(event["client"], None)
                details = {key: value for key, value in event.items() if key not in ("t", "event")}
                self._track(_RUN, 0)
                self._write(name=name, ph="i", s="g", pid=_RUN, tid=0, ts=_microseconds(event["t"]), args=details)

    def close(self) -> None:
        """Write what is held back, and close the array: then it is JSON. Perfetto also opens one that was cut off."""
        self._settle_all()
        self._file.write("\n]\n")
        self._file.close()

    def _step(self, event: Event) -> None:
        done = event["t"]
        taken = done - event["service_s"]
        arrived = taken - event["wait_s"]
        members = event["members"]
        details = {"head": event["head"], "loss": event["loss"], "members": members}
        self._slice("step", _SERVER, event.get("worker", 0), taken, done, details)
        exchanges = event.get("exchanges") or [None] * len(members)
        for (client, batch, samples), exchange in zip(members, exchanges, strict=True):
            self._settle(client, exchange)
            self._open[client] = _Batch(arrived, taken, done, {"batch": batch, "samples": samples})

    def _settle(self, client: int, exchange: Sequence[float] | None) -> None:
        """Write a client's last batch; ``exchange``: its seconds on the link, both ways, and at the server."""
        batch = self._open.pop(client, None)
        if batch is None:
            return
        began = self._began(client)
        arrived, replied = max(began, batch.arrived), max(began, batch.done)
        if exchange is None:
            self._slice("client and link", _CLIENTS, client, began, arrived, batch.details)
            free = replied
        else:
            way = max(exchange[0], 0.0) / 2
            sent = max(began, arrived - way)
            # The gradient leaves before the server's blocks have stepped.
            replied = min(replied, max(batch.taken, batch.arrived + exchange[1]))
            self._slice("client", _CLIENTS, client, began, sent, batch.details)
            self._slice("up", _LINKS, client, sent, arrived, batch.details)
            self._slice("down", _LINKS, client, replied, replied + way, batch.details)
            free = replied + way
        self._slice("queue", _CLIENTS, client, arrived, batch.taken, batch.details)
        self._slice("head", _CLIENTS, client, max(arrived, batch.taken), replied, batch.details)
        self._free_since[client] = free

    def _settle_all(self) -> None:
        for client in list(self._open):
            self._settle(client, None)

    def _began(self, client: int) -> float:
        return self._free_since.get(client, self._round_began)

    def _slice(self, name: str, process: int, track: int, begin: float, end: float, args: Mapping[str, Any]) -> None:
        self._track(process, track)
        times = {"ts": _microseconds(begin), "dur": _microseconds(max(end - begin, 0.0))}
        self._write(name=name, ph="X", pid=process, tid=track, **times, args=args)

    def _track(self, process: int, track: int) -> None:
        """Name a track when it is first used."""
        if (process, track) not in self._tracks:
            self._tracks.add((process, track))
            names = {_RUN: "rounds", _CLIENTS: f"client {track}", _SERVER: f"worker {track}", _LINKS: f"link {track}"}
            name = names[process]
            self._write(name="thread_name", ph="M", pid=process, tid=track, args={"name": name})

    def _write(self, **entry: Any) -> None:
        self._file.write(("\n" if self._empty else ",\n") + strict_json.dumps(entry))
        self._empty = False


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
