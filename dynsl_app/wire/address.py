"""Addresses as ``host:port``: reading them, and finding the one that clients can reach."""

import ipaddress
import socket

from dynsl_app.errors import SettingsError

_BEYOND = ("192.0.2.1", 9)
"""An address reserved for documentation; a UDP socket "connected" to it sends nothing and tells our own address."""


def split(text: str, setting: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` into its parts.

    Raises
    ------
    SettingsError
        It is neither; names ``setting``.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise SettingsError(
            f"{setting}={text!r} is not host:port, such as 0.0.0.0:8500 or [::]:8500 (port 0: any free one)"
        )
    return bare, int(port)


def check_free(text: str, setting: str) -> None:
    """Refuse an address that cannot be listened on, before gRPC logs that in words of its own.

    Raises
    ------
    SettingsError
        None of the addresses that ``text`` (``host:port``) stands for is this machine's, with its port free.
    """
    host, port = split(text, setting)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise unusable(text, setting, error.strerror or str(error)) from None
    reasons = []
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As gRPC does: a port whose last connections have not faded yet is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            reasons.append(error.strerror or str(error))
        else:
            return
    raise unusable(text, setting, reasons[0])


def unusable(text: str, setting: str, reason: str) -> SettingsError:
    """The error for an address that cannot be listened on."""
    return SettingsError(
        f"{setting}={text}: cannot listen there ({reason}); give an address of this machine and a free port (0: any), "
        f"or stop what holds the port"
    )


def advertised(bind: str, advertise: str | None, port: int) -> str:
    """Where clients connect to: ``wire.advertise`` (its port optional), else what ``bind`` says.

    A wildcard stands for this machine's address on the route to the outside.

    Raises
    ------
    SettingsError
        ``bind`` is a wildcard and this machine has no such route, or ``advertise`` is not an address.
    """
    if advertise is None:
        host, _ = split(bind, "wire.bind")
        return _join(_outward() if host in ("0.0.0.0", "::") else host, port)
    if _is_bare(advertise):
        return _join(advertise.removeprefix("[").removesuffix("]"), port)
    host, named = split(advertise, "wire.advertise")
    return _join(host, named or port)


def _is_bare(text: str) -> bool:
    """Whether it is a host without a port."""
    try:
        ipaddress.IPv6Address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return ":" not in text
    return True


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _outward() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_BEYOND)
        except OSError as error:
            raise SettingsError(
                "wire.bind is a wildcard and this machine has no route to the outside to tell its address: "
                "set wire.advertise to the host that clients connect to"
            ) from error
        return str(probe.getsockname()[0])
