"""Identity of a sampler on a Ray cluster: names of its actors and a key of its messages, derived from its secret."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ForgedMessageError", "SamplerIdentity", "Seal", "journal_name"]

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


def journal_name(tag: str, *, is_created: bool = False, epoch: int = 0) -> str:
    """Return the name of an actor that keeps the journal of the sampler with a tag.

    Names of journals of samplers that clients have created differ, so that a server that starts with its first sampler
    does not take them for journals of other servers' samplers.

    Args:
        tag: tag of the sampler.
        is_created: whether a client has created the sampler.
        epoch: epoch of the server that started the actor in place of one of another version; 0 without such a one.
    """
    return f"{'created-' if is_created else ''}journal-{tag}{f'-{epoch}' if epoch else ''}"


class ForgedMessageError(Exception):
    """A message of somebody who does not know the sampler's secret."""


class Seal:
    """Makes messages that only who knows the key can make, and proves that they are."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, parts: Sequence[bytes | memoryview]) -> bytes:
        """Return content as a message; each part is copied once."""
        digest = hmac.new(self._key, digestmod=_DIGEST)
        for part in parts:
            digest.update(part)
        return b"".join((digest.digest(), *parts))

    def opened(self, message: bytes) -> memoryview:
        """Return the content of a message; raise ForgedMessageError if it was made without the key."""
        content = memoryview(message)[_DIGEST_BYTES:]
        if not hmac.compare_digest(message[:_DIGEST_BYTES], hmac.digest(self._key, content, _DIGEST)):
            raise ForgedMessageError("a message that was made without the sampler's secret")
        return content
