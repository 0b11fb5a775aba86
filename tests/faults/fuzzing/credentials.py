"""Metadata of fuzzed requests: tokens that are valid, too weak, or changed; names of samplers; too much of all."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from faults.fuzzing.signed_tokens import Refusal, SignedTokens
from principals import Tokens

__all__ = ["Credential", "Credentials"]

_CHARACTERS = string.ascii_letters + string.digits + "-_.=/+ %"
_SCHEMES = ("Bearer", "bearer", "Basic", "", "Bearer Bearer", "Token", "Bearer,")
_JWTS = (
    "e30.e30.",
    "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsInNjb3BlIjoiKiJ9.",
    "eyJhbGciOiJIUzI1NiJ9.e30.AAAA",
    "..",
    "a" * 2000,
)
_SAMPLERS = ("default", "", "other", "default ", "*", "x" * 1000, "../default", "DEFAULT")


@dataclass(frozen=True)
class Credential:
    """The metadata of a request.

    Attributes:
        metadata: keys and values.
        refusal: status that each request with it gets; empty if it lets a request in. RESOURCE_EXHAUSTED is gRPC's
            own, for metadata that the server never sees.
        is_elsewhere: whether it has the scopes on another sampler, which suffice for RPCs of no sampler.
    """

    metadata: Sequence[tuple[str, str | bytes]]
    refusal: Refusal | Literal["RESOURCE_EXHAUSTED"]
    is_elsewhere: bool = False


class Credentials:
    """Tokens of a server, and metadata with them and without.

    Attributes:
        valid: a token with all scopes.
    """

    def __init__(self, tokens: Tokens, signed: SignedTokens) -> None:
        self._signed = signed
        self.valid = tokens.create("valid", "*", "pickle")
        self._weak = tokens.create("weak", "pool:resize@other")

    def of(self, seed: int, number: int) -> Credential:
        """Return the metadata of a request: about half of it lets the request in."""
        source = random.Random(f"credential {seed} {number}")
        good = ("authorization", f"Bearer {self.valid}")
        match source.randrange(13):
            case 0:
                return Credential(self._others(source), "UNAUTHENTICATED")
            case 1:
                return Credential([good, good, *self._others(source)], "UNAUTHENTICATED")
            case 2:
                return Credential([("authorization", f"Bearer {self._weak}")], "PERMISSION_DENIED")
            case 3:
                return Credential([("authorization", self._changed(source)), *self._others(source)], "UNAUTHENTICATED")
            case 4:
                return Credential([good, ("rollserve-sampler", source.choice(_SAMPLERS))], "")
            case 5 | 6:
                token, refusal, is_elsewhere = self._signed.draw(source)
                metadata = [("authorization", f"Bearer {token}"), *self._others(source)]
                return Credential(metadata, refusal, is_elsewhere)
            case 7:
                return Credential([good, *self._huge(source)], "RESOURCE_EXHAUSTED")
        return Credential([good, *self._others(source)], "")

    def _changed(self, source: random.Random) -> str:
        """Return a value that resembles one with the valid token, and is none."""
        if source.random() < 0.3:
            return f"{source.choice(_SCHEMES)} {source.choice(_JWTS)}"
        token = list(self.valid)
        for _ in range(source.choice([1, 1, 2, 5, 40])):
            at = source.randrange(len(token))
            match source.randrange(3):
                case 0 if len(token) > 1:
                    del token[at]
                case 1:
                    token.insert(at, source.choice(_CHARACTERS))
                case _:
                    token[at] = source.choice(_CHARACTERS)
        text = "".join(token)
        return f"Bearer {text if text.strip() != self.valid else text[:-1]}"

    def _huge(self, source: random.Random) -> list[tuple[str, str | bytes]]:
        """Return more metadata than a server takes: one long value, or many short ones."""
        if source.random() < 0.5:
            key = source.choice(["authorization-bin", "cookie", "rollserve-sampler"])
            size = source.choice([40_000, 1_000_000])
            return [(key, source.randbytes(size) if key.endswith("-bin") else "x" * size)]
        return [(f"x-{number}", "x" * 10) for number in range(source.choice([1000, 10_000]))]

    def _others(self, source: random.Random) -> list[tuple[str, str | bytes]]:
        """Return metadata that nobody reads."""
        keys = ["authorization-bin", "rollserve-sampler-bin", "x-authorization", "rollserve-token", "cookie"]
        keys += ["x-forwarded-for", "principal", "traceparent", "x-request-id"]
        found: list[tuple[str, str | bytes]] = []
        for key in source.sample(keys, source.choice([0, 0, 1, 3])):
            if key.endswith("-bin"):
                found.append((key, source.randbytes(source.choice([0, 1, 50, 1000]))))
            else:
                found.append((key, source.choice([f"Bearer {self.valid}", "valid", "", "x" * 1000])))
        return found
