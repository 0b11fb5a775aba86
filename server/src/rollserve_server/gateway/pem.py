"""Contents of PEM files: certificates, and the private keys that belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity import Expiry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

__all__ = ["certificates_in", "check_key", "expiries_of"]


def certificates_in(field: str, contents: bytes) -> list[x509.Certificate]:
    """Return the certificates of a file; raise InvalidValueError if there are none."""
    try:
        return x509.load_pem_x509_certificates(contents)
    except ValueError as error:
        expected = "certificates in PEM format"
        raise InvalidValueError.of(field, expected=expected, got="another file", hint=str(error)) from None


def expiries_of(setting: str, certificates: Iterable[x509.Certificate]) -> list[Expiry]:
    """Return when the certificates of a setting's file expire.

    Of an authority that was renewed with its key, the first certificate counts alone, as for gRPC.
    """
    found: dict[tuple[x509.Name, bytes], Expiry] = {}
    for each in certificates:
        expiry = Expiry(setting, "certificate", each.subject.rfc4514_string(), each.not_valid_after_utc)
        found.setdefault((each.subject, _key_bytes(each)), expiry)
    return list(found.values())


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


def _key_bytes(certificate: x509.Certificate) -> bytes:
    """Return a certificate's public key; the whole certificate if the key is of an unknown kind."""
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return certificate.tbs_certificate_bytes


def _has_public_key(certificate: x509.Certificate, key: PublicKeyTypes) -> bool:
    try:
        return certificate.public_key() == key
    except (ValueError, UnsupportedAlgorithm):  # of another kind
        return False
