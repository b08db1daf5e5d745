"""Certificates and tokens: what is made, what is taken from the user, what is refused with a remedy."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dynsl_app.errors import SettingsError
from dynsl_app.wire.security import (
    NAME,
    check_plaintext,
    load_identity,
    new_token,
    run_identity,
    same_token,
    verified_name,
)


def test_run_certificate_fits_its_hosts_and_clocks_that_differ() -> None:
    identity = run_identity(["127.0.0.1", "::1", "lab.example"])
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME, "lab.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert verified_name(identity.certificate) == NAME
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=29)
    assert "PRIVATE" not in repr(identity)
    assert run_identity([]).key != identity.key


def test_user_certificate_is_taken(user_certificate) -> None:
    certificate, key = user_certificate(names=[x509.DNSName("lab.example")])
    identity = load_identity(certificate, key)
    assert identity.certificate == Path(certificate).read_bytes()
    assert verified_name(identity.certificate) == "lab.example"


def test_user_certificate_is_checked(tmp_path: Path, user_certificate) -> None:
    certificate, key = user_certificate(names=[x509.DNSName("lab.example")])
    text = tmp_path / "text.pem"
    text.write_text("hello")
    encrypted = tmp_path / "encrypted.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    encrypted.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    other = tmp_path / "other.pem"
    other.write_bytes(run_identity([]).key)
    for pair, message in [
        ((certificate, None), "go together"),
        ((None, key), "go together"),
        (
            (str(tmp_path / "none.pem"), key),
            r"wire\.certificate: cannot read .*none\.pem .*leave out wire\.cert",
        ),
        ((certificate, str(tmp_path / "none.pem")), r"wire\.key: cannot read"),
        ((str(text), key), r"wire\.certificate: .* holds no PEM"),
        ((certificate, str(text)), r"wire\.key: .* holds no PEM"),
        ((certificate, str(encrypted)), "encrypted"),
        ((certificate, str(other)), "is not the key of"),
    ]:
        with pytest.raises(SettingsError, match=message):
            load_identity(*pair)


def test_expired_and_nameless_certificates_are_refused(user_certificate) -> None:
    with pytest.raises(SettingsError, match="expired on"):
        load_identity(*user_certificate(names=[x509.DNSName("lab.example")], days=-1))
    with pytest.raises(SettingsError, match="subject alternative name"):
        load_identity(*user_certificate(names=[]))


def test_plaintext_stays_on_this_machine() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        check_plaintext(host)
    for host in ("0.0.0.0", "::", "192.0.2.1", "lab.example"):
        with pytest.raises(SettingsError, match=r"wire\.tls=on"):
            check_plaintext(host)


def test_tokens() -> None:
    token = new_token()
    assert len(token) >= 43
    assert token != new_token()
    assert same_token(token, token)
    for given in ("", token[:-1], token + "x", new_token(), "δ", None, 5):
        assert not same_token(given, token)
