"""Signed tokens of fuzzed requests: valid ones, and ones that a server must not accept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Draw", "Refusal", "SignedTokens"]

Refusal = Literal["", "UNAUTHENTICATED", "PERMISSION_DENIED"]
"""Status that refuses a request; empty for a request that is let in."""

_ELSEWHERE = "*@other"
_ISSUER, _AUDIENCE = "https://issuer.lab", "rollserve"
_DAY = 86_400
_ODD: tuple[Any, ...] = (None, True, -1, float("nan"), "", "x" * 2000, [], {}, [[["*"]]], "\0", "\n")


class Draw(NamedTuple):
    """A token.

    Attributes:
        token: its text.
        refusal: status that refuses a request with it.
        is_elsewhere: whether it has the scopes on another sampler, which suffice for RPCs of no sampler.
    """

    token: str
    refusal: Refusal
    is_elsewhere: bool = False


class SignedTokens:
    """An issuer whose tokens a server accepts.

    Attributes:
        options: options of the server.
    """

    def __init__(self, path: Path) -> None:
        """Write the public keys to a file."""
        self._keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("first", "second", "foreign")}
        public = [self._public(name) for name in ("first", "second")]
        path.write_text(json.dumps({"keys": public}))
        self.options = ("--jwt-jwks", str(path), "--jwt-issuer", _ISSUER, "--jwt-audience", _AUDIENCE)

    def draw(self, source: random.Random) -> Draw:
        """Return a token, and how a request with it is refused."""
        claims = {"iss": _ISSUER, "aud": _AUDIENCE, "sub": "fuzz", "exp": int(time.time()) + _DAY, "scope": "* pickle"}
        match source.randrange(8):
            case 0:
                return Draw(self._signed(claims), "")
            case 1:
                scope = source.choice(["openid", "pool:resize@other", _ELSEWHERE, " ", "*@", 10**400, *_ODD])
                return Draw(self._signed({**claims, "scope": scope}), "PERMISSION_DENIED", scope == _ELSEWHERE)
            case 2:
                name = source.choice(["iss", "aud", "sub", "exp"])
                return Draw(self._signed({**claims, name: source.choice(_ODD)}), "UNAUTHENTICATED")
            case 3:
                changed = source.choice(
                    [{"exp": 1}, {"nbf": int(time.time()) + _DAY}, {"iat": int(time.time()) + _DAY}]
                )
                return Draw(self._signed({**claims, **changed}), "UNAUTHENTICATED")
            case 4:
                kids = [None, "", "foreign", "second", "FIRST", "../first", "first\0", "x" * 2000, 1, ["first"]]
                kid = source.choice(kids)
                return Draw(self._signed(claims, kid=kid), "UNAUTHENTICATED")
            case 5:
                return Draw(self._signed(claims, key="foreign"), "UNAUTHENTICATED")
            case 6:
                return Draw(self._forged(claims, source), "UNAUTHENTICATED")
        return Draw(self._changed(self._signed(claims), source), "UNAUTHENTICATED")

    def _signed(self, claims: dict[str, Any], *, key: str = "first", kid: Any = "first") -> str:
        headers = {"alg": "ES256", "typ": "JWT"} | ({} if kid is None else {"kid": kid})
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (headers, claims))
        signature = jwt.get_algorithm_by_name("ES256").sign(text, self._keys[key])
        return (text + b"." + _encoded(signature)).decode()

    def _forged(self, claims: dict[str, Any], source: random.Random) -> str:
        """Return a token without a signature by a key of the server, in one of the well-known ways."""
        algorithm = source.choice(["none", "None", "NONE", "", None, 0, "HS256", "HS512", "ES256", "RS256", ["ES256"]])
        header: dict[str, Any] = {"alg": algorithm, "kid": "first"}
        if source.random() < 0.5:
            own = {**self._public("foreign"), "kid": "first"}
            header |= source.choice([{"jwk": own}, {"jku": "https://127.0.0.1:1/keys"}, {"x5u": "file:///etc/passwd"}])
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        secrets = [b"", self._public("first")["x"].encode(), json.dumps(self._public("first")).encode()]
        mac = hmac.new(source.choice(secrets), text, hashlib.sha256).digest()
        foreign = jwt.get_algorithm_by_name("ES256").sign(text, self._keys["foreign"])
        return (text + b"." + _encoded(source.choice([b"", mac, foreign, b"\0" * 64]))).decode()

    def _changed(self, token: str, source: random.Random) -> str:
        """Return a token with a part replaced, removed or repeated."""
        parts = token.split(".")
        at = source.randrange(3)
        deep = _encoded(b"[" * 2000).decode()
        match source.randrange(4):
            case 0:
                half = parts[at][: len(parts[at]) // 2]
                parts[at] = source.choice(["", "e30", "AAAA", deep, "=", "%", parts[at - 1], half])
            case 1:
                del parts[at]
            case 2:
                parts.insert(at, source.choice(["", "e30", parts[at]]))
            case _:
                data = bytearray(base64.urlsafe_b64decode(parts[at] + "=="))
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
                parts[at] = _encoded(bytes(data)).decode()
        return ".".join(parts)

    def _public(self, name: str) -> dict[str, Any]:
        found = jwt.algorithms.ECAlgorithm.to_jwk(self._keys[name].public_key(), as_dict=True)
        return {**found, "kid": name, "use": "sig"}


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
