"""Authentication: finds the principal of a request from its metadata and its connection, without the request."""

from __future__ import annotations

import contextlib
import functools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError, UnauthenticatedError
from rollserve_server.identity.principals import ANONYMOUS, Principal, check_name, parse_named_grants
from rollserve_server.identity.proofs import WatchedFile, invalid, missing, read_yaml
from rollserve_server.identity.token_file import TOKEN_PREFIX, parse_tokens

if TYPE_CHECKING:
    from rollserve_server.identity.proofs import Expiry
    from rollserve_server.settings import IdentitySettings

__all__ = ["Authentication"]

_SCHEME = "bearer"
_NAMES = ("x509_subject_alternative_name", "x509_common_name")
"""Properties of a connection by gRPC that are names in the client's certificate, the ones that count first."""
_CERTIFICATE = "x509_pem_cert"
"""Property of a connection by gRPC that is the client's certificate."""


class Authentication:
    """Finds the principal of each request. Each way to prove who a client is counts only if the settings name it."""

    def __init__(self, settings: IdentitySettings, on_fetch: Callable[[str], object] = lambda _: None) -> None:
        """Read the files that the settings name.

        Args:
            settings: what clients may show.
            on_fetch: called after each fetch of an issuer's keys with `fetched` or `failed`.

        Raises:
            InvalidValueError: a file cannot be used.
        """
        self._tokens = self._signed = self._certificates = None
        if settings.token_hashes is not None:
            self._tokens = WatchedFile("token_hashes", settings.token_hashes, parse_tokens)
        if settings.jwt_issuer is not None:
            # Imported late: PyJWT imports cryptography, which takes 0.1 s.
            from rollserve_server.identity.signed_tokens import SignedTokens

            self._signed = SignedTokens(settings, on_fetch)
        if settings.tls_principals is not None:
            self._certificates = WatchedFile("tls_principals", settings.tls_principals, _parse_names)
        self.is_required = settings.is_required

    async def refresh(self, authorization: Sequence[str | bytes] = ()) -> None:
        """Have an issuer's keys fetched, where they are old or lack the key of a request's signed token.

        Args:
            authorization: as of `principal_of`; empty to fetch the keys before the first request.
        """
        if self._signed is not None:
            with contextlib.suppress(UnauthenticatedError):  # which `principal_of` raises
                text = _bearer_token(authorization) if authorization else ""
                if not text.startswith(TOKEN_PREFIX):
                    await self._signed.refresh(text)

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
        principal = None if self._certificates is None else _certified(self._certificates.current(), connection)
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


def _certified(principals: Mapping[str, Principal], connection: Mapping[str, Iterable[bytes]]) -> Principal | None:
    """Return the principal of the first known name in a client's certificate, which gRPC has verified; None for none.

    A certificate with a control character in any of its names has none: gRPC ends names at their first NUL.
    """
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


def _parse_names(text: str) -> dict[str, Principal]:
    """Return the principals of the names in the text of `--tls-principals`; raise InvalidValueError if it is none."""
    principals = {}
    for name, grants in parse_named_grants("tls_principals", read_yaml("tls_principals", text) or {}):
        try:
            principals[name] = Principal(check_name(name), grants)
        except InvalidValueError as error:
            raise InvalidValueError(f"{name!r}: {error.text}", field="tls_principals") from None
    return principals
