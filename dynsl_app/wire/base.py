"""The data plane's interface: frames over links, made by a transport.

One link is one bidirectional stream between one client and the server for one round. Two transports
implement it, gRPC and in-process; everything above sees only this file.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

Scalar = bool | int | float | str | None


class Kind(enum.IntEnum):
    """Kinds of frame. Client to server unless said otherwise; the numbers are part of the published layout."""

    HELLO = 1
    """Opens a stream: meta ``token``, ``batches`` (R_i), ``samples`` (S_i); tensor ``profile`` if it was asked for."""
    WELCOME = 2
    """Server: the stream is accepted; meta ``next`` is the batch that the server expects."""
    ACTIVATION = 3
    """Tensors ``activation`` and ``target`` of one batch; what was measured of the batch before
    (:mod:`dynsl_app.telemetry.report`); with the first batch of a lower cut, the state of the blocks given up."""
    GRADIENT = 4
    """Server: tensor ``gradient`` at the cut; meta ``loss``, ``correct``; to command a move, ``cut`` and its
    ``generation``, with the state of the blocks that a higher cut brings."""
    PROGRESS = 5
    """A fully local client finished a batch: meta ``loss``, ``correct``, ``samples``; and what was measured; tensor
    ``probe`` if the answer before asked for one (:mod:`dynsl_app.telemetry.probing`)."""
    ACK = 6
    """Server: answers PROGRESS and END; may command a move like GRADIENT, or ask for a ``probe``, bytes; sends one
    back."""
    END = 7
    """The client has done all its batches of the round."""
    ERROR = 8
    """Either way: meta ``message``. The sender closes the stream after it."""
    PING = 9
    """Either way: heartbeat, answered by PONG inside the transport; never seen above it."""
    PONG = 10


@dataclass(frozen=True)
class Transfer:
    """When a frame's bytes arrived, by the receiver's monotonic clock: seconds of first and last chunk."""

    first: float
    last: float
    bytes: int
    chunks: int


@dataclass(frozen=True)
class Frame:
    """One message of the data plane.

    ``batch`` counts from 0 over the round; ``micro`` is 0 for now (one micro-batch a batch);
    ``generation`` counts the placements that the client has had in this round, from 0.
    ``meta`` holds scalars only. ``received`` is set by the receiving side and never sent.
    """

    kind: Kind
    client: int
    round: int
    batch: int = 0
    micro: int = 0
    generation: int = 0
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    received: Transfer | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens. ``address`` is ``host:port`` (or an in-process name).

    ``certificate`` is the PEM that the client must trust, and nothing else; None without TLS.
    """

    scheme: str
    address: str
    certificate: bytes | None = None


class Link(Protocol):
    """One open stream. ``send`` may be called from any thread, ``receive`` from one at a time.

    A frame's tensors belong to the receiver: dense, in main memory, without history. They may share storage with
    each other, never elements, and never with what the sender holds.
    """

    @property
    def peer(self) -> str:
        """Who is on the other side, for messages to people."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes of the frames sent so far, headers included, the transport's own heartbeats not."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of the frames that have come so far, headers included, the transport's own heartbeats not."""
        ...

    @property
    def rtt(self) -> float | None:
        """Least round-trip time of the heartbeats so far, the peer's hold time apart, in seconds."""
        ...

    def round_trips(self) -> list[float]:
        """Round-trip times like ``rtt`` of the heartbeats since the last call, in seconds; at most the newest few."""
        ...

    @property
    def incoming(self) -> Transfer | None:
        """What has come of a frame that is under way, ``last`` being its newest chunk; None between frames."""
        ...

    def trust(self) -> None:
        """The peer has shown its token: take frames up to ``wire.max_frame_bytes``, not small ones only.

        A server's link begins untrusted, a client's (which checked the certificate) trusted.
        """
        ...

    def send(self, frame: Frame) -> None:
        """Queue a frame. Tensors must not be changed afterwards.

        Raises
        ------
        LinkClosed
            The link is down.
        WireError
            The frame is too large, or the layout cannot carry what it holds; the link stays open.
        """
        ...

    def receive(self, timeout: float | None = None) -> Frame:
        """Wait for the next frame, at most ``timeout`` seconds.

        Raises
        ------
        LinkClosed
            The peer is gone (or its heartbeat stopped), after all frames it sent have been received.
        WireError
            The peer sent what is not acceptable; the link is closed.
        TimeoutError
            Nothing came in time; the link stays open.
        """
        ...

    def close(self) -> None:
        """Send what is queued, then close. Safe to call twice."""
        ...


class Listener(Protocol):
    """The server side of a transport."""

    @property
    def endpoint(self) -> Endpoint:
        """What clients connect to; goes into the control plane's message."""
        ...

    def close(self) -> None:
        """Close all links and free the port."""
        ...


Accept = Callable[[Link], None]
"""Serves one link: called in a thread of the link's own; the link is closed when it returns."""


class Pacer(Protocol):
    """An emulated network between a client and its server; any thread may ask."""

    @property
    def rtt_s(self) -> float:
        """Round-trip time that it adds, seconds."""
        ...

    def up(self, size: int, ready: float) -> float:
        """When a chunk reaches the server's side.

        Parameters
        ----------
        size
            Bytes; chunks are told in the order in which they are sent.
        ready
            When the client had it to send, by ``time.monotonic``, like the result.
        """
        ...

    def down(self, size: int, ready: float) -> float:
        """When a chunk that the server had to send at ``ready`` reaches the client's side; see :meth:`up`."""
        ...


class Transport(Protocol):
    """Makes listeners and links."""

    def listen(self, accept: Accept) -> Listener:
        """Start to listen. Raises SettingsError when the address cannot be bound."""
        ...

    def connect(self, endpoint: Endpoint, pacer: Pacer | None = None) -> Link:
        """Open a link, through an emulated network if there is one.

        Raises LinkClosed when nobody answers in time, WireError on another version.
        """
        ...


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Payload bytes of tensors as sent, in bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)
