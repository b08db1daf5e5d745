"""The server's end of the data plane: one listener for the whole run, one controller at a time behind it."""

import threading
from contextlib import suppress

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.server.controller import Controller
from dynsl_app.telemetry.events import EventStream
from dynsl_app.wire.base import Endpoint, Frame, Kind, Link, Transport

_HELLO_S = 20.0
"""How long an unknown peer may take to say who it is, seconds (choice)."""


class DataPlane:
    """Listens, and hands each stream to the round it belongs to."""

    def __init__(self, transport: Transport, events: EventStream) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._controller: Controller | None = None
        self._round = 0
        self._listener = transport.listen(self._accept)

    @property
    def endpoint(self) -> Endpoint:
        """Where clients connect to."""
        return self._listener.endpoint

    def begin(self, round_: int, controller: Controller) -> None:
        """From now on streams belong to this round."""
        with self._lock:
            self._controller, self._round = controller, round_

    def end(self) -> None:
        """No round is running; streams are refused."""
        with self._lock:
            self._controller = None

    def close(self) -> None:
        """Close all streams and free the port."""
        self._listener.close()

    def _accept(self, link: Link) -> None:
        try:
            hello = _hello(link)
            with self._lock:
                controller, round_ = self._controller, self._round
            if controller is None or hello.round != round_:
                raise WireError(
                    f"client {hello.client}: round {hello.round} is not running; wait for the next round's order"
                )
            controller.serve(link, hello)
        except LinkClosed:
            pass  # a peer that went before it said who it is
        except WireError as error:
            self._events.emit("warning", message=f"refused a stream from {link.peer}: {error}")
            with suppress(LinkClosed):  # it may not have waited for the reason
                link.send(Frame(Kind.ERROR, 0, 0, meta={"message": str(error)}))


def _hello(link: Link) -> Frame:
    """The first frame of a stream; raises WireError if it is no HELLO, or none comes in time."""
    try:
        frame = link.receive(timeout=_HELLO_S)
    except TimeoutError:
        raise WireError(f"a stream from {link.peer} said nothing for {_HELLO_S:g} s") from None
    if frame.kind is not Kind.HELLO:
        raise WireError(f"a stream from {link.peer} began with {frame.kind.name}; HELLO with a token comes first")
    return frame
