"""Certificates of the gateway: read from files, checked, and read again for each connection."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc

from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from cryptography import x509

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

    def check(self) -> x509.Certificate:
        """Return the server's certificate; raise InvalidValueError unless gRPC can serve with the contents."""
        # Imported late: cryptography takes 0.1 s, which a server without TLS need not wait for.
        from rollserve_server.gateway.pem import certificates_in, check_key

        certificate = certificates_in("tls_cert", self.cert)[0]
        check_key("tls_key", self.key, certificate)
        if self.client_ca is not None:
            certificates_in("tls_client_ca", self.client_ca)
        return certificate

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the contents for gRPC."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class CertificateFiles:
    """Files that each new connection gets its certificate from.

    The files are compared by their contents: where Kubernetes swaps the folder that links lead to, neither the paths
    nor the times of the links change. Contents that cannot be used are logged once, and the previous ones stay in use.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files for the first time; raises InvalidValueError if they cannot be used."""
        self._settings = settings
        self._used = _Contents.read(settings)
        self._refused: _Contents | str | None = None
        _log_use(self._used.check())

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that uses the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._used.configuration(),
            self._changed,  # type: ignore[arg-type]  # which lacks None, for no change
            self._used.client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what a new connection uses from now on; None for no change. gRPC calls it from one of its threads."""
        try:
            contents = _Contents.read(self._settings)
        except InvalidValueError as error:
            self._refuse(str(error), error)
            return None
        if contents in (self._used, self._refused):
            return None
        try:
            certificate = contents.check()
        except InvalidValueError as error:
            self._refuse(contents, error)
            return None
        self._used, self._refused = contents, None
        _log_use(certificate)
        return contents.configuration()

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


def _log_use(certificate: x509.Certificate) -> None:
    fields = {"subject": certificate.subject.rfc4514_string(), "serial": f"{certificate.serial_number:x}"}
    fields["expires"] = certificate.not_valid_after_utc.isoformat()
    if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        _log.warning("certificate has expired", extra=fields)
    else:
        _log.info("certificate in use", extra=fields)
