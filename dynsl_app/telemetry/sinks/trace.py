"""``trace.json``: the run on a time line, in the Chrome trace event format that https://ui.perfetto.dev opens.

A process for the clients with a track each, one for the server with a track per head, and one for the
rounds. Written as it happens, so memory does not grow with the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynsl_app.telemetry import strict_json
from dynsl_app.telemetry.events import Event

_RUN, _CLIENTS, _SERVER = 1, 2, 3
_MOMENTS = ("stream_lost", "stream_resumed", "client_lost", "waiting", "checkpoint", "warning")
"""Events shown as a mark in time."""


class TraceSink:
    """Turns steps, progress and rounds into slices.

    A step tells when it ended (``t``), how long the head worked (``service_s``) and how long the batch had
    waited (``wait_s``); what lies between a client's last gradient and the arrival of its next batch is the
    client's own compute and its link.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[")
        self._empty = True
        self._tracks: set[tuple[int, int]] = set()
        self._free_since: dict[int, float] = {}
        self._round_began = 0.0
        for process, name in ((_RUN, "run"), (_CLIENTS, "clients"), (_SERVER, "server")):
            self._write(name="process_name", ph="M", pid=process, args={"name": name})

    def handle(self, event: Event) -> None:
        """Write the slices that an event ends."""
        match event["event"]:
            case "round_start":
                self._round_began = event["t"]
            case "stream_open":
                self._free_since[event["client"]] = event["t"]
            case "step":
                self._step(event)
            case "progress":
                details = {key: event.get(key) for key in ("batch", "samples", "loss")}
                self._slice("batch", _CLIENTS, event["client"], self._began(event["client"]), event["t"], details)
                self._free_since[event["client"]] = event["t"]
            case "round_end":
                details = {key: event.get(key) for key in ("accuracy", "loss", "train_loss", "epoch_s")}
                self._slice(f"round {event['round']}", _RUN, 0, self._round_began, event["t"], details)
                self._file.flush()
            case name if name in _MOMENTS:
                details = {key: value for key, value in event.items() if key not in ("t", "event")}
                self._track(_RUN, 0)
                self._write(name=name, ph="i", s="g", pid=_RUN, tid=0, ts=_microseconds(event["t"]), args=details)

    def close(self) -> None:
        """Close the array, so that the file is JSON. Perfetto also opens one that was cut off."""
        self._file.write("\n]\n")
        self._file.close()

    def _step(self, event: Event) -> None:
        done = event["t"]
        taken = done - event["service_s"]
        arrived = taken - event["wait_s"]
        members = event["members"]
        # A private head has no number; its track is its client's.
        head = event["head"] if event["head"] is not None else members[0][0]
        self._slice("step", _SERVER, head, taken, done, {"loss": event["loss"], "members": members})
        for client, batch, samples in members:
            details = {"batch": batch, "samples": samples}
            began = self._began(client)
            self._slice("client and link", _CLIENTS, client, began, max(began, arrived), details)
            self._slice("queue", _CLIENTS, client, max(began, arrived), taken, details)
            self._slice("head", _CLIENTS, client, taken, done, details)
            self._free_since[client] = done

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
            name = {_RUN: "rounds", _CLIENTS: f"client {track}", _SERVER: f"head {track}"}[process]
            self._write(name="thread_name", ph="M", pid=process, tid=track, args={"name": name})

    def _write(self, **entry: Any) -> None:
        self._file.write(("\n" if self._empty else ",\n") + strict_json.dumps(entry))
        self._empty = False


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
