"""Signed tokens (JWT): verified by the keys in a JWKS file."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jwt
from cryptography import x509

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity.principals import Grant, Principal, check_name
from rollserve_server.identity.proofs import Expiry, WatchedFile, expired, invalid

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

    def __init__(self, settings: IdentitySettings) -> None:
        """Read the keys; raises InvalidValueError if they cannot be used."""
        assert settings.jwt_jwks is not None  # noqa: S101
        self._settings = settings
        self._keys = WatchedFile("jwt_jwks", settings.jwt_jwks, _parse_keys)

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
            grants = _grants(claims.get(settings.jwt_scope_claim))
            return Principal(check_name(claims["sub"]), grants)
        except jwt.ExpiredSignatureError:  # the signature is valid: PyJWT looks at it first
            raise expired() from None
        # Not only PyJWT's own errors: the token decides what its parts are, down to the types of claims.
        except Exception:
            raise invalid() from None

    def expiries(self) -> Sequence[Expiry]:
        """Return when the last key expires; nothing if one of them does not say that it does."""
        dates = [_expiry_of(key._jwk_data) for key in self._keys.current()]
        known = [date for date in dates if date is not None]
        return [Expiry("jwt_jwks", "key", "the last one", max(known))] if len(known) == len(dates) else ()

    def _key_of(self, header: Mapping[str, Any]) -> tuple[jwt.PyJWK, str]:
        """Return the key that a token names, and its algorithm; without a name, the only key."""
        keys, algorithm, name = self._keys.current(), header.get("alg"), header.get("kid")
        chosen = [key for key in keys if name is None or key.key_id == name]
        if len(chosen) != 1 or not isinstance(algorithm, str) or algorithm not in _algorithms(chosen[0]):
            raise invalid()
        return chosen[0], algorithm


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


def _parse_keys(text: str) -> list[jwt.PyJWK]:
    """Return the keys for signatures; raise InvalidValueError if there are none."""
    try:
        keys = [key for data in json.loads(text)["keys"] if (key := _parse_key(data)) is not None]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidValueError.of("jwt_jwks", expected="a JSON Web Key Set", got=type(error).__name__) from None
    if not keys:
        expected = "a public key of RSA, EC or OKP for signatures"
        raise InvalidValueError.of("jwt_jwks", expected=expected, got="none")
    return keys


def _parse_key(data: object) -> jwt.PyJWK | None:
    """Return a public key for signatures; None for any other, so that an issuer can add what is not known here."""
    if not isinstance(data, dict) or data.get("use", "sig") != "sig" or "d" in data:
        return None
    try:
        return jwt.PyJWK(data) if data.get("kty") in _KINDS else None
    except Exception as error:  # a member of any type: not only PyJWT's own errors
        _log.warning("key of jwt_jwks not used", extra={"kid": data.get("kid"), "error": str(error)})
        return None
