"""An authority that signs certificates of servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Issued", "expiry_of", "names_in", "with_previous"]

_CLOCK_SKEW = datetime.timedelta(hours=1)
"""How far the clocks of clients may be behind."""


class Issued(NamedTuple):
    """A certificate and its private key, as PEM files have them."""

    cert: bytes
    key: bytes


class Authority:
    """An authority with a key of its own.

    Keys are ECDSA P-256: clients of gRPC refuse Ed25519 in certificates of servers.

    Attributes:
        own: the authority's certificate and key.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.own = _issued(certificate, key)

    @classmethod
    def new(cls, days: float) -> Self:
        """Return a new authority, whose certificate expires after some days."""
        return cls._self_signed(_name("Rollserve development CA"), ec.generate_private_key(ec.SECP256R1()), days)

    def renewed(self, days: float) -> Self:
        """Return the authority with a new certificate of the same name and key.

        Whatever the authority has signed, and will sign, verifies by the old certificate as well as by the new one.
        """
        return self._self_signed(self._certificate.subject, self._key, days)

    @classmethod
    def _self_signed(cls, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> Self:
        builder = _builder(name, name, key, days).add_extension(x509.BasicConstraints(True, 0), critical=True)
        builder = builder.add_extension(_usage(is_authority=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def of(cls, own: Issued) -> Self:
        """Return the authority with a certificate and key that `new` has made.

        Raises:
            ValueError: they cannot be read, or do not belong together.
        """
        certificate = x509.load_pem_x509_certificate(own.cert)
        key = load_pem_private_key(own.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key is another certificate's")
        return cls(certificate, key)

    @property
    def starts(self) -> datetime.datetime:
        """Time at which the authority's certificate becomes valid."""
        return self._certificate.not_valid_before_utc

    @property
    def expires(self) -> datetime.datetime:
        """Time at which the authority's certificate expires."""
        return self._certificate.not_valid_after_utc

    def server(self, names: Iterable[str], days: float) -> Issued:
        """Return a new certificate for a server that clients reach by these host names and addresses."""
        names = list(names)
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        # Clients look at the alternatives alone; a common name has 64 characters at most.
        common = next((name for name in names if len(name) <= 64), "server")
        return self._issue(common, days, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, name: str, days: float) -> Issued:
        """Return a new certificate for a client."""
        return self._issue(name, days, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(
        self, name: str, days: float, purpose: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None = None
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(is_authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority_key, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return _issued(builder.sign(self._key, hashes.SHA256()), key)


def names_in(cert: bytes) -> list[str]:
    """Return the names of a certificate in PEM format: host names and addresses of a server, or a client's name.

    Raises:
        ValueError: it is no such certificate.
    """
    certificate = x509.load_pem_x509_certificate(cert)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return [str(name.value) for name in names]


def expiry_of(cert: bytes) -> datetime.datetime:
    """Return when a certificate in PEM format expires."""
    return x509.load_pem_x509_certificate(cert).not_valid_after_utc


def with_previous(cert: bytes, file: bytes) -> bytes:
    """Return a renewed authority's certificate, followed by the ones of its file that still count.

    Of the authority itself only the latest one is kept. The new certificate is the first: gRPC takes the first one with
    the signer's name and key, even if it has expired.
    """
    new, now = x509.load_pem_x509_certificate(cert), datetime.datetime.now(datetime.UTC)
    latest, *others = x509.load_pem_x509_certificates(file)
    kept = [each for each in others if each.public_key() != new.public_key()]
    kept = [each for each in (latest, *kept) if each.not_valid_after_utc > now]
    return b"".join(each.public_bytes(Encoding.PEM) for each in (new, *kept))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
