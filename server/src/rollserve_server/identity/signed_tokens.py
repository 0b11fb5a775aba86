"""Signed tokens (JWT): verified by the keys in a JWKS file, or by the ones that their issuer shows."""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jwt
from cryptography import x509

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity.issuer import IssuerKeys
from rollserve_server.identity.principals import Grant, Principal, check_name, parse_named_grants
from rollserve_server.identity.proofs import Expiry, WatchedFile, expired, invalid, read_yaml

if TYPE_CHECKING:
    from rollserve_server.settings import IdentitySettings

__all__ = ["SignedTokens"]

_log = logging.getLogger(__name__)

_ALGORITHMS = frozenset(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)) | {"EdDSA"}
"""Algorithms by public keys. A secret that server and issuer share would let whoever reads it here make tokens."""
_KINDS = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""Beginnings of the algorithms of each kind of key, for keys that name no algorithm of their own."""


class SignedTokens:
    """Tokens that an issuer has signed. PyJWT verifies them."""

    def __init__(self, settings: IdentitySettings, on_fetch: Callable[[str], object]) -> None:
        """Read the files that the settings name.

        Args:
            settings: what tokens need.
            on_fetch: called after each fetch of an issuer's keys with `fetched` or `failed`.

        Raises:
            InvalidValueError: a file cannot be used.
        """
        self._settings = settings
        self._keys: WatchedFile[Sequence[jwt.PyJWK]] | IssuerKeys
        if settings.jwt_jwks is not None:
            self._keys = WatchedFile("jwt_jwks", settings.jwt_jwks, functools.partial(_parse_keys, "jwt_jwks"))
        else:
            assert settings.jwt_issuer is not None  # noqa: S101
            self._keys = IssuerKeys(settings.jwt_issuer, functools.partial(_parse_keys, "jwks_uri"), on_fetch)
        self._scopes = (
            None if settings.jwt_scopes is None else WatchedFile("jwt_scopes", settings.jwt_scopes, _parse_map)
        )

    async def refresh(self, text: str = "") -> None:
        """Have keys that an issuer shows fetched again if they are old, or lack the key of a token."""
        if isinstance(self._keys, IssuerKeys):
            with contextlib.suppress(jwt.PyJWTError):  # it is refused later
                is_known = bool(text) and bool(self._named(jwt.get_unverified_header(text).get("kid")))
                await self._keys.refresh(is_known=is_known)

    def principal_of(self, text: str) -> Principal:
        """Return whom a token proves; raise UnauthenticatedError for one that is not valid."""
        settings = self._settings
        try:
            key, algorithm = self._key_of(jwt.get_unverified_header(text))
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[algorithm],
                audience=settings.jwt_audience,
                issuer=settings.jwt_issuer,
                leeway=settings.jwt_leeway_seconds,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            if self._scopes is not None:
                grants = self._scopes.current().grants(claims)
            else:
                grants = _grants(claims.get(settings.jwt_scope_claim))
            return Principal(check_name(claims["sub"]), grants)
        except jwt.ExpiredSignatureError:  # the signature is valid: PyJWT looks at it first
            raise expired() from None
        # Not only PyJWT's own errors: the token decides what its parts are, down to the types of claims.
        except Exception:
            raise invalid() from None

    def expiries(self) -> Sequence[Expiry]:
        """Return when the last key expires; nothing if one of them does not say that it does."""
        if isinstance(self._keys, IssuerKeys):
            return ()
        dates = [_expiry_of(key._jwk_data) for key in self._keys.current()]
        known = [date for date in dates if date is not None]
        return [Expiry("jwt_jwks", "key", "the last one", max(known))] if len(known) == len(dates) else ()

    def _key_of(self, header: Mapping[str, Any]) -> tuple[jwt.PyJWK, str]:
        """Return the key that a token names, and its algorithm; without a name, the only key."""
        algorithm, chosen = header.get("alg"), self._named(header.get("kid"))
        if len(chosen) != 1 or not isinstance(algorithm, str) or algorithm not in _algorithms(chosen[0]):
            raise invalid()
        return chosen[0], algorithm

    def _named(self, name: object) -> Sequence[jwt.PyJWK]:
        return [key for key in self._keys.current() if name is None or key.key_id == name]


class _ScopeMap(NamedTuple):
    """Scopes by the values of a claim.

    Attributes:
        path: names that lead to the claim, from the outermost.
        scopes: grants of each value.
    """

    path: Sequence[str]
    scopes: Mapping[str, frozenset[Grant]]

    def grants(self, claims: Mapping[str, Any]) -> frozenset[Grant]:
        """Return the grants that the values of the claim have together."""
        found: Any = claims
        for name in self.path:
            found = found.get(name) if isinstance(found, dict) else None
        values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        texts = (value for value in values if isinstance(value, str))
        return frozenset().union(*(self.scopes.get(text, ()) for text in texts))


def _parse_map(text: str) -> _ScopeMap:
    """Return the map in the text of `--jwt-scopes`; raise InvalidValueError if there is none."""
    expected = "claim, a name or a list of names, and scopes, with a list of scopes for each value"
    found = read_yaml("jwt_scopes", text)
    if not isinstance(found, dict) or found.keys() != {"claim", "scopes"}:
        raise InvalidValueError.of("jwt_scopes", expected=expected, got=repr(found))
    claim, scopes = found["claim"], found["scopes"]
    path = [claim] if isinstance(claim, str) else claim
    if not (isinstance(path, list) and path and all(isinstance(name, str) for name in path)):
        raise InvalidValueError.of("jwt_scopes.claim", expected=expected, got=repr(claim))
    return _ScopeMap(path, dict(parse_named_grants("jwt_scopes.scopes", scopes)))


def _algorithms(key: jwt.PyJWK) -> Collection[str]:
    """Return the algorithms that a key may be used with."""
    data = key._jwk_data
    named = data.get("alg")
    if named is not None:
        return {named} & _ALGORITHMS
    return {each for each in _ALGORITHMS if each.startswith(_KINDS[data["kty"]])}


def _expiry_of(data: Mapping[str, Any]) -> datetime.datetime | None:
    """Return when a key expires by its `exp` or its certificate; None if it says nothing that can be read."""
    # Verifying tokens needs neither, so that both may be anything.
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.datetime.fromtimestamp(data["exp"], datetime.UTC)
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return x509.load_der_x509_certificate(base64.b64decode(data["x5c"][0])).not_valid_after_utc
    return None


def _grants(claim: object) -> frozenset[Grant]:
    """Return the grants in a claim; scopes of other services are none of ours."""
    texts = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    grants: set[Grant] = set()
    for text in texts:
        with contextlib.suppress(InvalidValueError):
            grants.update(Grant.parse(text) if isinstance(text, str) else ())
    return frozenset(grants)


def _parse_keys(field: str, text: str) -> list[jwt.PyJWK]:
    """Return the keys for signatures; raise InvalidValueError if there are none."""
    try:
        keys = [key for data in json.loads(text)["keys"] if (key := _parse_key(field, data)) is not None]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidValueError.of(field, expected="a JSON Web Key Set", got=type(error).__name__) from None
    if not keys:
        expected = "a public key of RSA, EC or OKP for signatures"
        raise InvalidValueError.of(field, expected=expected, got="none")
    return keys


def _parse_key(field: str, data: object) -> jwt.PyJWK | None:
    """Return a public key for signatures; None for any other, so that an issuer can add what is not known here."""
    if not isinstance(data, dict) or data.get("use", "sig") != "sig" or "d" in data:
        return None
    try:
        return jwt.PyJWK(data) if data.get("kty") in _KINDS else None
    except Exception as error:  # a member of any type: not only PyJWT's own errors
        _log.warning(f"key of {field} not used", extra={"kid": data.get("kid"), "error": str(error)})
        return None
