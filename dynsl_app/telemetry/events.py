"""One stream of events; sinks subscribe to it and are the only place where they have an effect.

What events there are, and their fields, is in ``docs/run-folder.md``.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dynsl_app.errors import DynslError

Event = Mapping[str, Any]
"""``t`` (seconds), ``event`` (its name) and the event's own fields, as JSON has them: mappings have string keys."""

BATCH_EVENTS = frozenset({"step", "progress"})
"""Events whose number grows with the batches; all others are a few per client and round."""

_log = logging.getLogger(__name__)


class SinkDegraded(DynslError):
    """A sink goes on, but with less than it was asked for. Raised by ``handle`` after it has done its work."""


class Sink(Protocol):
    """Where events go."""

    def handle(self, event: Event) -> None:
        """Take one event. Called by one thread at a time, of those that compute: must be quick.

        An exception unsubscribes the sink, except :class:`SinkDegraded`; either becomes a warning for the
        others, and never stops the run.
        """
        ...

    def close(self) -> None:
        """Write what is held back. Nothing is handled afterwards."""
        ...


class EventStream:
    """Stamps events with the time and hands them to all sinks, in one order for all. Thread-safe.

    Parameters
    ----------
    sinks
        Subscribers; the stream closes them.
    clock
        Seconds, from any origin; the stream counts from its own construction.
    start
        Seconds that had passed before, when a run is resumed.
    """

    def __init__(
        self, sinks: Sequence[Sink], clock: Callable[[], float] = time.monotonic, *, start: float = 0.0
    ) -> None:
        self._sinks = list(sinks)
        self._clock = clock
        self._origin = clock() - start
        self._lock = threading.Lock()
        self._closed = False

    def emit(self, event: str, **fields: Any) -> None:
        """Send one event to all sinks. After :meth:`close` (a thread that comes late) it does nothing."""
        with self._lock:
            if not self._closed:
                # Read under the lock, so that times never decrease along the stream.
                self._spread({"t": round(self._clock() - self._origin, 6), "event": event, **fields})

    def close(self) -> None:
        """Close all sinks. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for sink in self._sinks:
                try:
                    sink.close()
                except Exception as error:  # the other sinks are to be closed too
                    _log.warning("%s could not be closed: %s", _name(sink), error, exc_info=error)

    def _spread(self, event: Event) -> None:
        warnings = []
        for sink in list(self._sinks):
            try:
                sink.handle(event)
            except SinkDegraded as error:
                warnings.append(str(error))
            except Exception as error:  # whatever a sink does must not stop the run
                self._sinks.remove(sink)
                warnings.append(f"{_name(sink)} is off for the rest of the run: {type(error).__name__}: {error}")
                _log.debug("%s failed on %s", _name(sink), event["event"], exc_info=error)
                self._give_up(sink)
        for message in warnings:
            if not self._sinks:
                _log.warning(message)
            # Ends: every further failure leaves one sink fewer.
            self._spread({"t": event["t"], "event": "warning", "message": message})

    def _give_up(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:  # it has failed already
            _log.debug("%s failed on close", _name(sink), exc_info=error)


class WithoutBatches:
    """Passes on everything but events per batch (``events.detail=round``), so that very many clients fit."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def handle(self, event: Event) -> None:
        """Pass on an event unless it is one per batch."""
        if event["event"] not in BATCH_EVENTS:
            self._sink.handle(event)

    def close(self) -> None:
        """Close the sink behind."""
        self._sink.close()

    def __str__(self) -> str:
        return _name(self._sink)


def _name(sink: Sink) -> str:
    return str(sink) if isinstance(sink, WithoutBatches) else type(sink).__name__
