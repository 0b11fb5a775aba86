"""Authentication: finds the principal of a request from its metadata and its connection, without the request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve_server.identity.certificates import CertificateNames
from rollserve_server.identity.principal import ANONYMOUS, Principal
from rollserve_server.identity.rejections import invalid, missing
from rollserve_server.identity.token_file import TOKEN_PREFIX, parse_tokens
from rollserve_server.identity.watched_file import WatchedFile

if TYPE_CHECKING:
    from rollserve_server.identity.expiry import Expiry
    from rollserve_server.settings import IdentitySettings

__all__ = ["Authentication"]

_SCHEME = "bearer"


class Authentication:
    """Finds the principal of each request. Each way to prove who a client is counts only if the settings name it."""

    def __init__(self, settings: IdentitySettings) -> None:
        """Read the files that the settings name.

        Raises:
            InvalidValueError: a file cannot be used.
        """
        self._tokens = self._signed = self._certificates = None
        if settings.token_hashes is not None:
            self._tokens = WatchedFile("token_hashes", settings.token_hashes, parse_tokens)
        if settings.jwt_jwks is not None:
            # Imported late: PyJWT imports cryptography, which takes 0.1 s.
            from rollserve_server.identity.signed_tokens import SignedTokens

            self._signed = SignedTokens(settings)
        if settings.tls_principals is not None:
            self._certificates = CertificateNames(settings.tls_principals)
        self.is_required = settings.is_required

    def principal_of(
        self, authorization: Sequence[str | bytes], connection: Mapping[str, Iterable[bytes]]
    ) -> Principal:
        """Return the principal of a request; `ANONYMOUS` if the settings ask nobody.

        Args:
            authorization: values of the metadata's key `authorization`.
            connection: properties of the connection by gRPC, with the names in the client's certificate.

        Raises:
            UnauthenticatedError: the client does not prove who it is.
        """
        if not self.is_required:
            return ANONYMOUS
        if authorization:
            return self._principal_of_token(_bearer_token(authorization))
        principal = None if self._certificates is None else self._certificates.principal_of(connection)
        if principal is None:
            raise missing(self._expected())
        return principal

    def expiries(self) -> Sequence[Expiry]:
        """Return when tokens of the file expire that are valid still, and when the last key of signed tokens does."""
        tokens = () if self._tokens is None else self._tokens.current().expiries()
        return [*tokens, *(() if self._signed is None else self._signed.expiries())]

    def _principal_of_token(self, text: str) -> Principal:
        if self._tokens is not None and (text.startswith(TOKEN_PREFIX) or self._signed is None):
            return self._tokens.current().principal_of(text)
        if self._signed is not None:
            return self._signed.principal_of(text)
        raise invalid()

    def _expected(self) -> str:
        ways = []
        if self._tokens is not None or self._signed is not None:
            ways.append("a bearer token")
        if self._certificates is not None:
            ways.append("a client's certificate that the server knows")
        return " or ".join(ways)


def _bearer_token(authorization: Sequence[str | bytes]) -> str:
    """Return the only token; raise UnauthenticatedError if there is something else."""
    if len(authorization) != 1 or not isinstance(authorization[0], str):
        raise invalid()
    scheme, _, text = authorization[0].partition(" ")
    if scheme.lower() != _SCHEME or not text:
        raise invalid()
    return text.strip()
