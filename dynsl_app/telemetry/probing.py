"""When the link of a fully local client is probed, with how many bytes, and what its frames say of it.

A split client's batches measure its link. A fully local one sends next to nothing, so its link could recover unseen:
the server's ACK then asks for a probe, so many opaque bytes with the next PROGRESS, and sends them back at once.
Client and server take that exchange like one of activation and gradient (:meth:`LinkEstimate.exchange`).

Choices. A probe is asked for when an estimate has become wider than :data:`WIDE`, which age sees to, or when the last
measurement was off by more than noise and a second one would settle it. It has as many bytes as take clearly longer
than round trips vary, by the present estimate: few over a link believed to be bad. It must have been earned:
:data:`SHARE` of the client's time goes into a purse, a probe's time comes out of it, so that the more probes take the
rarer they are, and neither client nor link spends more than that share on them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dynsl_app.errors import WireError
from dynsl_app.telemetry.link import LinkEstimate
from dynsl_app.wire.base import Frame, Scalar

SHARE = 0.01
"""Of a fully local client's time, for probes (choice)."""

WIDE = 0.25
"""Relative width above which a link's estimate is worth a probe: about 16 batches after a single one (choice)."""

MOST_BYTES = 2**20
"""Of a probe each way (choice)."""

_LEAST_BYTES = 2**8
"""Less than what its frame has besides (choice)."""

_CLEAR = 8.0
"""By how many times a probe exceeds what counts as noise: a link may be so much faster and still be measured
(choice)."""

_UNDER_WAY = 2
"""Batches from asking to hearing of it: the probe comes with the next one, its report with the one after."""

_PROBE = "probe"
"""In an ACK's meta: bytes asked for. As a tensor: the bytes, in PROGRESS and in the ACK that sends them back."""


class Prober:
    """Paces the probes of one client's link.

    Parameters
    ----------
    link
        What is known of it.
    """

    def __init__(self, link: LinkEstimate) -> None:
        self._link = link
        self._purse_s = 0.0
        self._charged_s = 0.0
        self._asked_at = 0.0

    def earn(self, seconds: float) -> None:
        """The client has trained for so long on its own."""
        self._purse_s += SHARE * seconds

    def ask(self, batch: float) -> int:
        """Bytes to ask the client for now, as of batch ``batch``; 0: no probe."""
        if self._charged_s and batch < self._asked_at + _UNDER_WAY:
            return 0
        link = self._link
        width = max(way.reading(batch).relative_width for way in (link.up, link.down))
        in_doubt = link.up.level.in_doubt or link.down.level.in_doubt
        if width <= WIDE and not in_doubt:
            return 0
        byte_s = 1 / link.up.value + 1 / link.down.value
        size = round(min(max(_CLEAR * link.noise_s / byte_s, _LEAST_BYTES), MOST_BYTES))
        cost_s = size * byte_s + link.rtt.value
        # Not more than a second one is saved up; the one that settles a doubt may be paid for afterwards.
        self._purse_s = min(self._purse_s, 2 * cost_s)
        if self._purse_s < (0.0 if in_doubt else cost_s):
            return 0
        self._purse_s -= cost_s
        self._charged_s, self._asked_at = cost_s, batch
        return size

    def spent(self, seconds: float) -> None:
        """What the last probe really took; nothing if there was none."""
        if self._charged_s:
            self._purse_s += self._charged_s - seconds
            self._charged_s = 0.0


def asking(size: int) -> Mapping[str, Scalar]:
    """What an ACK says to ask for a probe; nothing for 0."""
    return {_PROBE: size} if size else {}


def asked(reply: Frame) -> int:
    """Bytes that an answer asks a client for, 0 for none.

    Raises
    ------
    WireError
        It is not a number of bytes that a probe can have.
    """
    size = reply.meta.get(_PROBE, 0)
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        raise WireError(
            f"client {reply.client}, batch {reply.batch}: a probe of {size!r} bytes was asked for, at most "
            f"{MOST_BYTES} are sent; both sides must run the same version"
        )
    return size


def carrying(payload: Tensor | None) -> Mapping[str, Tensor]:
    """The tensors of a frame that carries a probe, uint8 (bytes,); none for None."""
    return {} if payload is None else {_PROBE: payload}


def carried(frame: Frame, size: int) -> Tensor | None:
    """The probe in a client's frame, None if there is none.

    Raises
    ------
    WireError
        It is not the one of ``size`` bytes that was asked for.
    """
    payload = frame.tensors.get(_PROBE)
    if payload is not None and (payload.dtype != torch.uint8 or payload.shape != (size,) or not size):
        raise WireError(
            f"client {frame.client}, batch {frame.batch}: its probe is {payload.dtype}{list(payload.shape)}, asked for "
            f"were {size} bytes; both sides must run the same version"
        )
    return payload
