"""Certificates of the gateway: read from files, checked, and read again for each connection."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import grpc
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

    from rollserve_server.identity import ExpiryLog
    from rollserve_server.settings import TlsSettings

__all__ = ["CertificateFiles", "check_certificates"]


_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Contents:
    """Contents of the files, unchecked.

    Attributes:
        cert: the server's certificate, and those between it and its authority.
        key: its private key.
        client_ca: authorities of the clients' certificates; None if clients need none.
    """

    cert: bytes
    key: bytes = dataclasses.field(repr=False)
    client_ca: bytes | None

    @classmethod
    def read(cls, settings: TlsSettings) -> Self:
        """Read the files; raises InvalidValueError if one cannot be read."""
        client_ca = settings.tls_client_ca
        return cls(
            _read("tls_cert", settings.tls_cert),
            _read("tls_key", settings.tls_key),
            None if client_ca is None else _read("tls_client_ca", client_ca),
        )

    def check(self) -> _Checked:
        """Return what gRPC serves with; raise InvalidValueError unless it can."""
        # Imported late: cryptography takes 0.1 s, which a server without TLS need not wait for.
        from rollserve_server.gateway.certificates import PemCertificates, pem_key

        own = PemCertificates.read("tls_cert", self.cert)
        key = pem_key("tls_key", self.key, own.first)
        expiries, client_ca = own.expiries, None
        if self.client_ca is not None:
            authorities = PemCertificates.read("tls_client_ca", self.client_ca)
            expiries, client_ca = (*expiries, *authorities.expiries), authorities.pem
        shown = {
            "subject": own.subject,
            "serial": f"{own.first.serial_number:x}",
            "expires": own.expiries[0].expires.isoformat(),
        }
        return _Checked(grpc.ssl_server_certificate_configuration([(key, own.pem)], client_ca), expiries, shown)


class _Checked(NamedTuple):
    """Contents of the files that can be used.

    Attributes:
        configuration: the contents for gRPC.
        expiries: when the certificates expire.
        shown: what the log says of the server's certificate.
    """

    configuration: grpc.ServerCertificateConfiguration
    expiries: Sequence[Expiry]
    shown: Mapping[str, str]


class CertificateFiles:
    """Files that each new connection gets its certificate from.

    The files are compared by their contents: where Kubernetes swaps the folder that links lead to, neither the paths
    nor the times of the links change. Contents that cannot be used are logged once, and the previous ones stay in use.
    """

    def __init__(self, settings: TlsSettings, expiry_log: ExpiryLog) -> None:
        """Read the files for the first time.

        Args:
            settings: names the files.
            expiry_log: is told when new contents expire.

        Raises:
            InvalidValueError: they cannot be used.
        """
        self._settings = settings
        self._expiry_log = expiry_log
        self._lock = threading.Lock()  # threads of gRPC, and the event loop, read the files
        self._refused: _Contents | str | None = None
        contents = _Contents.read(settings)
        self._use(contents, contents.check())
        self._served = self._checked

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that uses the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._served.configuration,
            self._changed,  # type: ignore[arg-type]  # which lacks None, for no change
            self._settings.tls_client_ca is not None,
        )

    def expiries(self) -> Sequence[Expiry]:
        """Return when the certificates expire that a new connection would use."""
        with self._lock:
            self._read_again()
            return self._checked.expiries

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what a new connection uses from now on; None for no change. gRPC calls it from one of its threads."""
        with self._lock:
            self._read_again()
            if self._served is self._checked:
                return None
            self._served = self._checked
            return self._served.configuration

    def _read_again(self) -> None:
        """Use the present contents of the files, if they can be used."""
        try:
            contents = _Contents.read(self._settings)
        except InvalidValueError as error:
            self._refuse(str(error), error)
            return
        if contents in (self._used, self._refused):
            return
        try:
            self._use(contents, contents.check())
        except InvalidValueError as error:
            self._refuse(contents, error)

    def _use(self, contents: _Contents, checked: _Checked) -> None:
        self._used, self._checked, self._refused = contents, checked, None
        _log.info("certificate in use", extra=checked.shown)
        self._expiry_log.note(checked.expiries)

    def _refuse(self, found: _Contents | str, error: InvalidValueError) -> None:
        if found != self._refused:
            self._refused = found
            _log.error("new certificate not used", extra={"error": str(error)})


def check_certificates(settings: TlsSettings) -> None:
    """Raise InvalidValueError if there are files of certificates that cannot be used."""
    if settings.tls_cert is not None:
        _Contents.read(settings).check()


def _read(field: str, path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        hint = error.strerror or str(error)
        raise InvalidValueError.of(field, expected="a readable file", got=path, hint=hint) from None


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
