"""Clients' certificates as identities: the file that gives their names scopes."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity.principal import Principal, check_name
from rollserve_server.identity.scopes import parse_grants
from rollserve_server.identity.watched_file import WatchedFile
from rollserve_server.settings import parse_yaml

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CertificateNames"]

_NAMES = ("x509_subject_alternative_name", "x509_common_name")
"""Properties of a connection by gRPC that are names in the client's certificate, the ones that count first."""
_CERTIFICATE = "x509_pem_cert"
"""Property of a connection by gRPC that is the client's certificate."""


class CertificateNames:
    """Names in certificates, with what their holders may do."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises InvalidValueError if it cannot be used."""
        self._file = WatchedFile("tls_principals", path, _parse)

    def principal_of(self, connection: Mapping[str, Iterable[bytes]]) -> Principal | None:
        """Return the principal of the first name in a client's certificate that the file has; None for none.

        A certificate with a control character in any of its names has none: gRPC ends names at their first NUL.

        Args:
            connection: properties of the connection by gRPC, which has verified the certificate.
        """
        principals = self._file.current()
        if not all(map(_has_plain_names, connection.get(_CERTIFICATE, ()))):
            return None
        names = [name.decode(errors="replace") for key in _NAMES for name in connection.get(key, ())]
        return next((principals[name] for name in names if name in principals), None)


@functools.lru_cache(maxsize=1024)
def _has_plain_names(certificate: bytes) -> bool:
    # Imported late: it takes 0.1 s.
    from cryptography import x509

    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        alternatives = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternatives = x509.SubjectAlternativeName([])
    except Exception:  # not only ValueError: cryptography has errors of its own for what it does not know
        return False
    names = [part.value for part in parsed.subject] + [name.value for name in alternatives]
    texts = "".join(name for name in names if isinstance(name, str))
    return not any(unicodedata.category(character) == "Cc" for character in texts)


def _parse(text: str) -> dict[str, Principal]:
    expected = "names, each with a list of scopes"
    try:
        found = parse_yaml(text) or {}
    except Exception as error:  # not only PyYAML's own errors: dates, numbers and depth raise Python's
        got = " ".join(str(error).split())
        raise InvalidValueError.of("tls_principals", expected="YAML", got=got) from None
    if not isinstance(found, dict):
        raise InvalidValueError.of("tls_principals", expected=expected, got=type(found).__name__)
    principals = {}
    for name, scopes in found.items():
        if not (isinstance(name, str) and isinstance(scopes, list) and all(isinstance(each, str) for each in scopes)):
            raise InvalidValueError.of("tls_principals", expected=expected, got=f"{name!r}: {scopes!r}")
        try:
            principals[name] = Principal(check_name(name), parse_grants(scopes))
        except InvalidValueError as error:
            raise InvalidValueError(f"{name!r}: {error.text}", field="tls_principals") from None
    return principals
