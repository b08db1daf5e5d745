"""Who may speak: the run's certificate, the streams' tokens, and where TLS may be off."""

import datetime
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dynsl_app.errors import SettingsError

NAME = "dynsl"
"""The name in a run's certificate that clients check; the address they connect to need not be in it."""

VALID = datetime.timedelta(days=30)
BACKDATED = datetime.timedelta(days=1)
"""From one day ago, since devices' clocks differ, for a month: longer than a run."""


@dataclass(frozen=True)
class Identity:
    """A server's certificate (PEM, public) and its private key (PEM, never leaves the server)."""

    certificate: bytes
    key: bytes = field(repr=False)


def run_identity(hosts: Iterable[str]) -> Identity:
    """Make a self-signed certificate for one run: EC P-256, for the name ``NAME`` and these hosts or addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    names: list[x509.GeneralName] = [x509.DNSName(NAME)]
    for host in hosts:
        address = _address(host)
        names.append(x509.DNSName(host) if address is None else x509.IPAddress(address))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def load_identity(certificate: str | None, key: str | None) -> Identity:
    """Read the user's own certificate and key (``wire.certificate``, ``wire.key``).

    Raises
    ------
    SettingsError
        One of the two is missing, unreadable, not PEM, encrypted or expired, or they do not belong together.
    """
    if certificate is None or key is None:
        raise SettingsError(
            "wire.certificate and wire.key go together: give both, or neither for a certificate of the run"
        )
    certificate_pem, key_pem = _read(certificate, "wire.certificate"), _read(key, "wire.key")
    try:
        leaf = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise SettingsError(f"wire.certificate: {certificate} holds no PEM certificate ({error})") from error
    try:
        private = serialization.load_pem_private_key(key_pem, password=None)
    except TypeError as error:
        raise SettingsError(f"wire.key: {key} is encrypted; give a key without passphrase") from error
    except ValueError as error:
        raise SettingsError(f"wire.key: {key} holds no PEM private key ({error})") from error
    if private.public_key() != leaf.public_key():
        raise SettingsError(f"wire.key: {key} is not the key of the certificate in {certificate}")
    if leaf.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise SettingsError(f"wire.certificate: {certificate} expired on {leaf.not_valid_after_utc:%Y-%m-%d}; renew it")
    verified_name(certificate_pem)
    return Identity(certificate_pem, key_pem)


def verified_name(certificate: bytes) -> str:
    """The name to hold a server against: the first DNS name, else IP address, that its certificate is for.

    The certificate itself is what a client trusts, and it came over the control plane, so any of its names will do.

    Raises
    ------
    SettingsError
        It is not PEM or is for no name.
    """
    try:
        extensions = x509.load_pem_x509_certificate(certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise SettingsError(f"the certificate is not PEM or has no subject alternative name ({error})") from error
    hosts = [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]
    if not hosts:
        raise SettingsError("the certificate's subject alternative name has neither a DNS name nor an IP address")
    return hosts[0].replace("*", NAME)


def check_plaintext(host: str) -> None:
    """Refuse to listen without TLS anywhere but on this machine.

    Raises
    ------
    SettingsError
        ``host`` is not loopback.
    """
    address = _address(host)
    if host != "localhost" and (address is None or not address.is_loopback):
        raise SettingsError(
            f"wire.tls=off would send activations and tokens in the clear on {host}: set wire.tls=on, "
            "or wire.bind to 127.0.0.1"
        )


def new_token() -> str:
    """A secret for one client's stream in one round: 256 random bits."""
    return secrets.token_urlsafe(32)


def same_token(given: object, expected: str) -> bool:
    """Compare in constant time; anything but the very text is another token."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{setting}: cannot read {path} ({error.strerror}); give a PEM file that the server's user may read, or "
            f"leave out wire.certificate and wire.key, and a certificate is made for the run"
        ) from error
