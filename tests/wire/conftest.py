"""Listeners that echo, and links to them, over every transport."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dynsl_app.errors import LinkClosed
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Accept, Frame, Kind, Link, Listener
from dynsl_app.wire.transport import make_transport


def echo(link: Link) -> None:
    """Trust the first frame's sender, then send back whatever comes."""
    frame = link.receive()
    link.trust()
    link.send(frame)
    try:
        while True:
            frame = link.receive()
            link.send(
                Frame(Kind.GRADIENT, frame.client, frame.round, frame.batch, meta=frame.meta, tensors=frame.tensors)
            )
    except LinkClosed:
        return


@pytest.fixture(params=["grpc", "grpc+tls", "inprocess"])
def settings(request: pytest.FixtureRequest) -> WireSettings:
    """Settings of each transport, with small chunks so that frames have several."""
    name, _, tls = request.param.partition("+")
    return WireSettings(name=name, tls="on" if tls else "off", chunk_bytes=2**16)


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    """Start listeners that end with the test."""
    listeners = []

    def start(settings: WireSettings, accept: Accept = echo) -> Listener:
        listener = make_transport(settings).listen(accept)
        listeners.append(listener)
        return listener

    yield start
    for listener in listeners:
        listener.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., Link]]:
    """Open links that are closed with the test; a greeting makes the echoing side trust them."""
    links = []

    def start(settings: WireSettings, listener: Listener, *, greet: bool = True) -> Link:
        link = make_transport(settings).connect(listener.endpoint)
        links.append(link)
        if greet:
            link.send(Frame(Kind.HELLO, 0, 0))
            link.receive(20)
        return link

    yield start
    for link in links:
        link.close()


@pytest.fixture
def user_certificate(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Make a certificate signed by an authority of the user's own, as files: certificate, key."""

    def make(*, names: list[x509.GeneralName], days: int = 10) -> tuple[str, str]:
        authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(days=100))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(authority, hashes.SHA256())
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(pem))
        (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")

    return make
