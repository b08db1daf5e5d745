"""Keys for a Flower deployment on loopback: the SuperLink's certificate, and a key per SuperNode."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dynsl_app.wire.security import run_identity


def make_server_certificate(certificate: Path, key: Path) -> None:
    """Write a certificate for loopback that signs itself, and its key, both PEM."""
    identity = run_identity(["127.0.0.1", "localhost"])
    certificate.write_bytes(identity.certificate)
    _write_secret(key, identity.key)


def make_node_key(key: Path) -> Path:
    """Write a SuperNode's private key as Flower wants it (OpenSSH, P-384); returns the public key's path."""
    private = ec.generate_private_key(ec.SECP384R1())
    _write_secret(
        key,
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public = key.with_suffix(".pub")
    public.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


def _write_secret(path: Path, secret: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(secret)
