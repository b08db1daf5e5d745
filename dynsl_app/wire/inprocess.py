"""The data plane inside one process: the same links, frames and ends, without sockets or encoding.

Tensors are copied once, when sent, so that the halves are as separate as over a wire: neither side can see what
the other does to its copy. Bytes are counted as gRPC would count them.
"""

import itertools
import threading
import time
from dataclasses import replace

from dynsl_app.errors import LinkClosed
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Accept, Endpoint, Frame, Pacer, Transfer
from dynsl_app.wire.inbox import Inbox
from dynsl_app.wire.pacing import Carrier, Due
from dynsl_app.wire.protocol import encode, title
from dynsl_app.wire.serving import serve
from dynsl_app.wire.tensors import isolate

SCHEME = "inprocess"

_listeners: dict[str, "InprocessListener"] = {}
_lock = threading.Lock()
_numbers = itertools.count()


class InprocessTransport:
    """Makes listeners and links within this process."""

    def __init__(self, settings: WireSettings) -> None:
        self._settings = settings

    def listen(self, accept: Accept) -> "InprocessListener":
        return InprocessListener(self._settings, accept)

    def connect(self, endpoint: Endpoint, pacer: Pacer | None = None) -> "InprocessLink":
        with _lock:
            listener = _listeners.get(endpoint.address) if endpoint.scheme == SCHEME else None
        if listener is None:
            raise LinkClosed(
                f"nobody listens on {endpoint.scheme}:{endpoint.address} in this process: wire=inprocess works "
                "only with runtime=local (server and clients in one process); use wire=grpc"
            )
        return listener.open(pacer)


class InprocessListener:
    """A name in this process that links can be opened to."""

    def __init__(self, settings: WireSettings, accept: Accept) -> None:
        self._settings = settings
        self._accept = accept
        self._links: set[InprocessLink] = set()
        self._endpoint = Endpoint(SCHEME, f"listener-{next(_numbers)}")
        with _lock:
            _listeners[self._endpoint.address] = self

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def open(self, pacer: Pacer | None = None) -> "InprocessLink":
        """Make a link and serve its other end by ``accept`` in a thread of its own; the client's end."""
        server = InprocessLink(f"client {next(_numbers)} in this process", self._settings)
        client = InprocessLink(f"server {self._endpoint.address} in this process", self._settings)
        server.other, client.other = client, server
        if pacer is not None:
            server.emulate(pacer.down, pacer.rtt_s)
            client.emulate(pacer.up, pacer.rtt_s)
        with _lock:
            if self._endpoint.address not in _listeners:
                raise LinkClosed(f"the listener {self._endpoint.address} is closed")
            self._links.add(server)
        serve(server, self._accept, self._forget)
        return client

    def close(self) -> None:
        with _lock:
            _listeners.pop(self._endpoint.address, None)
            links = list(self._links)
        for link in links:
            link.close()

    def _forget(self, link: "InprocessLink") -> None:
        with _lock:
            self._links.discard(link)


class InprocessLink:
    """One end of a link; ``other`` is the other one, set once by the listener."""

    other: "InprocessLink"

    def __init__(self, peer: str, settings: WireSettings) -> None:
        self._peer = peer
        self._settings = settings
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._bytes_sent = 0
        self._rtt = 0.0
        self._carrier: Carrier | None = None

    def emulate(self, due: Due, rtt_s: float) -> None:
        """Send through one direction of an emulated network from now on."""
        self._rtt = rtt_s
        self._carrier = Carrier(due, self._settings.chunk_bytes, self.other._inbox.put)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def bytes_sent(self) -> int:
        return self._bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.other.bytes_sent

    @property
    def rtt(self) -> float | None:
        return self._rtt

    def round_trips(self) -> list[float]:
        # There are no heartbeats, since the round trip is known.
        return [self._rtt]

    @property
    def incoming(self) -> Transfer | None:
        carrier = self.other._carrier
        return None if carrier is None else carrier.under_way

    def trust(self) -> None:
        """Nothing to do: who is in this process is trusted."""

    def send(self, frame: Frame) -> None:
        size = encode(frame, self._settings.chunk_bytes, self._settings.max_frame_bytes).size
        now = time.monotonic()
        tensors = {name: isolate(tensor) for name, tensor in frame.tensors.items()}
        sent = replace(frame, tensors=tensors, received=Transfer(now, now, size, 1))
        with self._sending:
            try:
                if self._carrier is None:
                    self.other._inbox.put(sent)
                elif (error := self._inbox.error or self.other._inbox.error) is not None:
                    raise error.with_traceback(None)
                else:
                    self._carrier.send(sent, size, now)
            except LinkClosed:
                raise LinkClosed(f"cannot send the {title(frame)} to the {self._peer}: {self._inbox.error}") from None
            self._bytes_sent += size

    def receive(self, timeout: float | None = None) -> Frame:
        return self._inbox.get(timeout)

    def close(self) -> None:
        self._inbox.fail(LinkClosed(f"the link to the {self._peer} was closed by this side"), discard=True)
        if self._carrier is not None:
            self._carrier.close()
        self.other._inbox.fail(LinkClosed(f"the {self.other.peer} closed the link"))
