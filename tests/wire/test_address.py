"""Addresses: what is read, what is advertised, and what is refused by the setting's name."""

import ipaddress

import pytest

from dynsl_app.errors import SettingsError
from dynsl_app.wire.address import advertised, split


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("lab.example:8500", ("lab.example", 8500)), ("[::1]:80", ("::1", 80))],
)
def test_split(text: str, parts: tuple[str, int]) -> None:
    assert split(text, "wire.bind") == parts


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":80", "host:", "host:http", "host:70000", "::1:80", "[]:80", "host:-1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"wire\.bind="):
        split(text, "wire.bind")


@pytest.mark.parametrize(
    ("bind", "advertise", "expected"),
    [
        ("127.0.0.1:0", None, "127.0.0.1:4711"),
        ("[::1]:0", None, "[::1]:4711"),
        ("0.0.0.0:0", "lab.example", "lab.example:4711"),
        ("0.0.0.0:0", "lab.example:9000", "lab.example:9000"),
        ("0.0.0.0:0", "lab.example:0", "lab.example:4711"),
        ("0.0.0.0:0", "192.0.2.7", "192.0.2.7:4711"),
        ("[::]:0", "2001:db8::1", "[2001:db8::1]:4711"),
        ("[::]:0", "[2001:db8::1]", "[2001:db8::1]:4711"),
        ("[::]:0", "[2001:db8::1]:9000", "[2001:db8::1]:9000"),
    ],
)
def test_advertised(bind: str, advertise: str | None, expected: str) -> None:
    assert advertised(bind, advertise, 4711) == expected


def test_a_wildcard_advertises_an_address_or_asks_for_one() -> None:
    """What depends on the machine: with a route to the outside there is an address, else the remedy is named."""
    try:
        host, port = split(advertised("0.0.0.0:0", None, 4711), "advertised")
    except SettingsError as error:
        assert "set wire.advertise" in str(error)  # noqa: PT017
    else:
        assert port == 4711
        assert not ipaddress.ip_address(host).is_unspecified
