"""Contents of PEM files: certificates, and the private keys that belong to them, in a form that gRPC reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity import Expiry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

__all__ = ["PemCertificates", "pem_key"]


class PemCertificates(NamedTuple):
    """Certificates of a file.

    Attributes:
        pem: the certificates alone. gRPC reads files less leniently than operators write them: with a byte order mark,
            blanks, or no line break between two certificates.
        first: the first certificate.
        subject: its subject.
        expiries: when they expire. Of an authority that was renewed with its key, the first certificate counts alone,
            as for gRPC.
    """

    pem: bytes
    first: x509.Certificate
    subject: str
    expiries: tuple[Expiry, ...]

    @classmethod
    def read(cls, field: str, contents: bytes) -> Self:
        """Return the certificates of a file; raise InvalidValueError if there are none, or one cannot be read."""
        try:
            certificates = x509.load_pem_x509_certificates(contents)
            if contents.count(b"CERTIFICATE-----") != 2 * len(certificates):  # the library skips them
                raise ValueError("a certificate is cut off")
            pem = b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
            expiries: dict[tuple[x509.Name, bytes], Expiry] = {}
            for each in certificates:
                expiry = Expiry(field, "certificate", each.subject.rfc4514_string(), each.not_valid_after_utc)
                expiries.setdefault((each.subject, _key_bytes(each)), expiry)
            first = certificates[0]
            return cls(pem, first, first.subject.rfc4514_string(), tuple(expiries.values()))
        except Exception as error:  # the library has no class for errors of malformed parts
            expected = "certificates in PEM format"
            raise InvalidValueError.of(field, expected=expected, got="another file", hint=str(error)) from None


def pem_key(field: str, contents: bytes, certificate: x509.Certificate) -> bytes:
    """Return the private key of a file; raise InvalidValueError unless it is a certificate's, of an accepted kind."""
    try:
        key = load_pem_private_key(contents, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        expected = "a private key in PEM format, without a password"
        raise InvalidValueError.of(field, expected=expected, got="another file", hint=str(error)) from None
    # Clients of gRPC refuse others.
    expected = "an RSA key, or an ECDSA key of P-256 or P-384"
    if not isinstance(key, (EllipticCurvePrivateKey, RSAPrivateKey)):
        raise InvalidValueError.of(field, expected=expected, got=type(key).__name__)
    if isinstance(key, EllipticCurvePrivateKey) and not isinstance(key.curve, (SECP256R1, SECP384R1)):
        raise InvalidValueError.of(field, expected=expected, got=key.curve.name)
    if not _has_public_key(certificate, key.public_key()):
        expected = "the private key of the certificate in tls_cert"
        raise InvalidValueError.of(field, expected=expected, got="the key of another one")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


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
