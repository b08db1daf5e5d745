"""The run as sober lines: a few per round, nothing per batch. For logs, pipes and ``flwr run --stream``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.filesize import decimal as human_bytes

from dynsl_app.telemetry.events import Event


class LinesSink:
    """Writes one line at the start and end of each round, one for each trouble, and a summary at the end.

    Parameters
    ----------
    write
        Takes one line without its end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._rounds = 0

    def handle(self, event: Event) -> None:
        """Write the lines for an event, if it has any."""
        match event["event"]:
            case "run_start":
                self._rounds = event["settings"]["rounds"]
                for line in _opening(event):
                    self._write(line)
            case "round_start":
                cuts = _cuts(event["cuts"])
                self._write(f"{self._round(event)}  starts: {_count(len(event['clients']), 'client')}, {cuts}")
            case "round_end":
                self._write(f"{self._round(event)}  {_results(event)}")
            case "client_lost":
                self._write(f"client {event['client']} is lost in round {event['round']}: {event['reason']}")
            case "stream_lost":
                self._write(f"client {event['client']}: stream lost in round {event['round']}: {event['reason']}")
            case "stream_resumed":
                self._write(f"client {event['client']}: stream is back, goes on at batch {event['next']}")
            case "waiting":
                clients = _listed(event["clients"])
                self._write(f"waiting for {event['seconds']:.0f} s for {event['for']}: client {clients}")
            case "warning":
                self._write(f"warning: {event['message']}")
            case "run_end":
                for line in _closing(event):
                    self._write(line)

    def close(self) -> None:
        """Nothing is held back."""

    def _round(self, event: Event) -> str:
        return f"round {event['round']:>{len(str(self._rounds))}}/{self._rounds}"


def _opening(event: Event) -> list[str]:
    model = f"{event['model']} ({_count(event['blocks'], 'block')}, {event['parameters']:,} parameters)"
    clients = _count(len(event["nodes"]), "client")
    return [
        *_folder(event),
        f"training    {model} on {event['data']} with {event['algorithm']}, {clients}",
    ]


def _results(event: Event) -> str:
    parts = [
        f"train loss {_number(event['train_loss'])} accuracy {_number(event['train_accuracy'])}",
        f"test loss {_number(event['loss'])} accuracy {_number(event['accuracy'])}",
        f"epoch {_number(event['epoch_s'], '8.2f')} s",
        f"up {human_bytes(event['bytes_up']):>8} down {human_bytes(event['bytes_down']):>8}",
    ]
    if event["lost"]:
        parts.append(f"lost client {_listed(event['lost'])}")
    return "  ".join(parts)


def _closing(event: Event) -> list[str]:
    return [
        f"finished    {_count(event['rounds'], 'round')} in {event['total_s']:.1f} s",
        f"accuracy    {_number(event['accuracy'])}, loss {_number(event['loss'])} on held-out data",
        f"epochs      {_epochs(event['epoch_s'])}",
        f"traffic     up {human_bytes(event['bytes_up'])}, down {human_bytes(event['bytes_down'])}",
        f"cuts        {_cuts(event['cuts'])}; {_count(event['moves'], 'move')} in mid-epoch",
        *_folder(event),
    ]


def _folder(event: Event) -> list[str]:
    """Where the run is kept; runs in virtual time do not say, so that equal ones have equal events."""
    return [f"run folder  {event['run_dir']}"] if "run_dir" in event else []


def _epochs(seconds: Sequence[float], shown: int = 6) -> str:
    if not seconds:
        return "none"
    listed = " ".join(f"{second:.2f}" for second in seconds[-shown:])
    if len(seconds) <= shown:
        return f"{listed} s"
    return f"… {listed} s, mean {sum(seconds) / len(seconds):.2f} s"


def _listed(clients: Sequence[int], shown: int = 8) -> str:
    more = f" and {len(clients) - shown} more" if len(clients) > shown else ""
    return ", ".join(str(client) for client in clients[:shown]) + more


def _cuts(cuts: Mapping[Any, int]) -> str:
    """How many clients have each cut: short for any number of clients."""
    return ", ".join(f"cut {cut} ({_count(count, 'client')})" for cut, count in sorted(Counter(cuts.values()).items()))


def _number(value: float | None, form: str = "6.4f") -> str:
    return format("-", ">6") if value is None else format(value, form)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
