"""Contents of PEM files: certificates, and the private keys that belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

__all__ = ["certificates_in", "check_key"]


def certificates_in(field: str, contents: bytes) -> list[x509.Certificate]:
    """Return the certificates of a file; raise InvalidValueError if there are none."""
    try:
        return x509.load_pem_x509_certificates(contents)
    except ValueError as error:
        expected = "certificates in PEM format"
        raise InvalidValueError.of(field, expected=expected, got="another file", hint=str(error)) from None


def check_key(field: str, contents: bytes, certificate: x509.Certificate) -> None:
    """Raise InvalidValueError unless a file has the private key of a certificate, of a kind that clients accept."""
    try:
        key = load_pem_private_key(contents, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        expected = "a private key in PEM format, without a password"
        raise InvalidValueError.of(field, expected=expected, got="another file", hint=str(error)) from None
    if not isinstance(key, (EllipticCurvePrivateKey, RSAPrivateKey)):  # clients of gRPC refuse others
        raise InvalidValueError.of(field, expected="an ECDSA or RSA key", got=type(key).__name__)
    if not _has_public_key(certificate, key.public_key()):
        expected = "the private key of the certificate in tls_cert"
        raise InvalidValueError.of(field, expected=expected, got="the key of another one")


def _has_public_key(certificate: x509.Certificate, key: PublicKeyTypes) -> bool:
    try:
        return certificate.public_key() == key
    except (ValueError, UnsupportedAlgorithm):  # of another kind
        return False
