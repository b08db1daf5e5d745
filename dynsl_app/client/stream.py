"""The client's end of its stream: survives a lost connection without losing or repeating a step."""

import logging
import time
from collections.abc import Callable, Sequence

from dynsl_app.errors import ClientLost, LinkClosed, WireError
from dynsl_app.settings import FaultSettings
from dynsl_app.telemetry.report import introduction
from dynsl_app.wire.base import Frame, Kind, Link, Scalar

_log = logging.getLogger(__name__)

_BACKOFF_S = (0.1, 2.0)
"""First and longest pause between attempts to connect again (choice)."""


class Stream:
    """Sends frames and waits for their answers; reconnects and sends again what is not answered.

    The server recognises a batch by its id, so a frame that is sent twice is trained on once.

    Parameters
    ----------
    connect
        Opens a link to the server; raises LinkClosed.
    hello
        The frame that opens the stream, token included.
    faults
        Time-outs.
    """

    def __init__(self, connect: Callable[[], Link], hello: Frame, faults: FaultSettings) -> None:
        self._connect, self._hello, self._faults = connect, hello, faults
        self._unanswered: list[Frame] = []
        self._link = self._open(faults.connect_s)

    def send(self, frame: Frame) -> None:
        """Send a frame that will be answered; its tensors must not be changed until it is."""
        self._unanswered.append(frame)
        try:
            self._link.send(frame)
        except LinkClosed as error:
            self._reopen(error)

    def answer(self, batch: int) -> Frame:
        """Wait for the answer to the frame of this batch.

        Raises
        ------
        ClientLost
            The server gave this client up (the message says why), or did not answer in time.
        """
        # The server may itself wait one batch deadline for another client (lockstep) before it answers.
        patience = 2 * self._faults.batch_s
        while True:
            try:
                frame = self._link.receive(timeout=patience)
            except LinkClosed as error:
                self._reopen(error)
                continue
            except TimeoutError:
                raise ClientLost(
                    f"client {self._hello.client}: no answer to batch {batch} for {patience:g} s; the server is stuck "
                    f"or far too busy (faults.batch_s={self._faults.batch_s:g})"
                ) from None
            if frame.kind is Kind.ERROR:
                raise ClientLost(str(frame.meta.get("message")))
            # After a reconnection an answer can come twice.
            if frame.batch == batch and frame.kind in (Kind.GRADIENT, Kind.ACK):
                self._unanswered = [sent for sent in self._unanswered if sent.batch > batch]
                return frame

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def _reopen(self, cause: LinkClosed) -> None:
        _log.warning("client %d: stream lost (%s); connecting again", self._hello.client, cause)
        self._link.close()
        self._link = self._open(self._faults.reconnect_s, self._unanswered)

    def _open(self, seconds: float, unanswered: list[Frame] | None = None) -> Link:
        deadline, pause = time.monotonic() + seconds, _BACKOFF_S[0]
        while True:
            link: Link | None = None
            try:
                link = self._connect()
                link.send(self._hello)
                welcome = link.receive(timeout=max(1.0, deadline - time.monotonic()))
                if welcome.kind is Kind.ERROR:
                    raise ClientLost(str(welcome.meta.get("message")))
                if welcome.kind is not Kind.WELCOME:
                    raise WireError(f"the stream was answered with {welcome.kind.name} instead of WELCOME")
                for frame in unanswered or ():
                    link.send(frame)
                return link
            except (LinkClosed, TimeoutError) as error:
                if link is not None:
                    link.close()
                if time.monotonic() + pause > deadline:
                    raise ClientLost(
                        f"client {self._hello.client}: no stream to the server within {seconds:g} s: {error}"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, _BACKOFF_S[1])
            except BaseException:
                if link is not None:
                    link.close()
                raise


def hello(
    client: int,
    round_: int,
    token: str,
    batches: int,
    samples: int,
    profile_s: Sequence[float] = (),
    memory_bytes: int | None = None,
) -> Frame:
    """The frame that opens a stream: R_i batches in the round over S_i samples an epoch; p[l] and free memory if known.

    ``memory_bytes``: free for training on the device.
    """
    told = introduction(profile_s, memory_bytes)
    meta: dict[str, Scalar] = {"token": token, "batches": batches, "samples": samples, **told.meta}
    return Frame(Kind.HELLO, client, round_, meta=meta, tensors=told.tensors)
