"""Identity of a sampler on a Ray cluster: names of its actors and a key of its messages, derived from its secret."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any

from rollserve_server.pool.state.codec import decode, encode

__all__ = ["ForgedMessageError", "SamplerIdentity", "Seal", "UnreadableMessageError"]

_DIGEST = hashlib.sha256
_DIGEST_BYTES = _DIGEST().digest_size
_TAG_BYTES = 16


@dataclass(frozen=True)
class SamplerIdentity:
    """A sampler's identity on a cluster.

    Attributes:
        tag: part of the names of the sampler's actors, in hexadecimal digits.
        key: key of the messages between server and journal.
        sampler: name of a sampler that a client has created; empty for the server's first one.
    """

    tag: str
    key: bytes = field(repr=False)
    sampler: str = ""

    @classmethod
    def of(cls, secret: bytes, namespace: str, sampler: str = "") -> SamplerIdentity:
        """Derive the identity of a sampler in a Ray namespace from its secret, which may be empty."""
        name = f"{namespace}\0{sampler}" if sampler else namespace
        tag, key = (hmac.digest(secret, f"{use} of {name}".encode(), _DIGEST) for use in ("tag", "key"))
        return cls(tag[:_TAG_BYTES].hex(), key, sampler)


class ForgedMessageError(Exception):
    """A message of somebody who does not know the sampler's secret."""


class UnreadableMessageError(ValueError):
    """A message of somebody who knows the secret, in a form that another version of the server has."""


class Seal:
    """Turns values into messages that only who knows the key can make, and back."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, value: Any) -> bytes:
        """Return a value as a message."""
        data = encode(value)
        return hmac.digest(self._key, data, _DIGEST) + data

    def opened(self, message: bytes) -> Any:
        """Return the value of a message.

        Raises:
            ForgedMessageError: the message was made without the key.
            UnreadableMessageError: it was made with the key, and not by this version of the server.
        """
        data = memoryview(message)[_DIGEST_BYTES:]
        if not hmac.compare_digest(message[:_DIGEST_BYTES], hmac.digest(self._key, data, _DIGEST)):
            raise ForgedMessageError("a message that was made without the sampler's secret")
        try:
            return decode(data)
        except ValueError as error:
            raise UnreadableMessageError(str(error)) from error
