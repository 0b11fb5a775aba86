"""Certificates of the gateway: read from files, checked, and read again for each connection."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import grpc

from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from rollserve_server.identity import Expiry, ExpiryLog
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
        from rollserve_server.gateway.pem import PemCertificates, pem_key

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
            expiry_log: logs when new contents expire.

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
