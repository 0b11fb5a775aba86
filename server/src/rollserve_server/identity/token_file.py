"""The file with bearer tokens: hashes of them, with the names and scopes of their principals."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity.principals import Principal, check_name, parse_grants
from rollserve_server.identity.proofs import Expiry, expired, invalid, read_text

__all__ = ["TOKEN_PREFIX", "Token", "TokenFile", "parse_tokens"]

TOKEN_PREFIX = "rst_"  # noqa: S105  # what tells tokens of Rollserve from others, for people and scanners of secrets
_TOKEN_BYTES = 32
_ID_CHARACTERS = 12


def _checked(name: str) -> str:
    try:
        return check_name(name)
    except InvalidValueError as error:
        raise ValueError(error.text) from None


def _granted(scopes: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_grants(scopes)
    except InvalidValueError as error:
        raise ValueError(error.text) from None
    return scopes


class Token(BaseModel):
    """A token, without its text.

    Attributes:
        name: name of its principal.
        scopes: grants, such as `sample@team-*`.
        sha256: SHA-256 of its text, in hex. The text has 256 random bits, which nobody can guess from any number of
            hashes, so that a slow hash as for passwords would only make each request slower.
        created: when it was made.
        expires: until when it is valid; None for ever.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_checked)]
    scopes: Annotated[tuple[str, ...], AfterValidator(_granted)]
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None

    @classmethod
    def new(cls, name: str, scopes: Sequence[str], days: float | None) -> tuple[Self, str]:
        """Return a new token, and its text.

        Args:
            name: name of its principal.
            scopes: grants.
            days: time until it expires; None for never.

        Raises:
            InvalidValueError: an invalid name, or an unknown scope.
        """
        check_name(name)
        parse_grants(scopes)
        text, now = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES), datetime.datetime.now(datetime.UTC)
        now = now.replace(microsecond=0)
        expires = None if days is None else now + datetime.timedelta(days=days)
        return cls(name=name, scopes=tuple(scopes), sha256=_hash(text), created=now, expires=expires), text

    @property
    def id(self) -> str:
        """Name of this token among all, which does not help to guess it."""
        return self.sha256[:_ID_CHARACTERS]

    @property
    def is_expired(self) -> bool:
        """Whether it has expired."""
        return self.expires is not None and self.expires <= datetime.datetime.now(datetime.UTC)

    @property
    def principal(self) -> Principal:
        """The principal that it proves."""
        return Principal(self.name, parse_grants(self.scopes))


class _Contents(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: tuple[Token, ...]


class TokenSet:
    """Tokens that the server accepts."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = [(token, token.principal) for token in tokens]

    def principal_of(self, text: str) -> Principal:
        """Return whom a token proves; raise UnauthenticatedError for an unknown or expired one."""
        digest, found = _hash(text), None
        for token, principal in self._tokens:  # all of them, so that the time does not tell which one is near
            if hmac.compare_digest(token.sha256, digest):
                found = token, principal
        if found is None:
            raise invalid()
        token, principal = found
        if token.is_expired:
            raise expired()
        return principal

    def expiries(self) -> Sequence[Expiry]:
        """Return when the tokens expire that have not yet."""
        return [
            Expiry("token_hashes", "token", f"{token.name} ({token.id})", token.expires)
            for token, _ in self._tokens
            if token.expires is not None and not token.is_expired
        ]


class TokenFile:
    """The file, as the command line changes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Sequence[Token]:
        """Return all tokens; raise InvalidValueError if the file cannot be read or used."""
        return _parse(read_text("file", self._path)) if self._path.exists() else ()

    def write(self, tokens: Iterable[Token]) -> None:
        """Replace the file, so that readers see either the old or the new one; raises OSError."""
        contents = _Contents(tokens=tuple(tokens)).model_dump(mode="json")
        # A new file of this module has mode 0600.
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(contents, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise


def parse_tokens(text: str) -> TokenSet:
    """Return the tokens in the text of a file; raise InvalidValueError if it is malformed."""
    return TokenSet(_parse(text))


def _parse(text: str) -> Sequence[Token]:
    try:
        return _Contents.model_validate_json(text).tokens
    except ValidationError as error:
        # Without the input, which may be a token that somebody put there.
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        expected = "a file that `rollserve-server token create` made"
        raise InvalidValueError.of("token_hashes", expected=expected, got=f"{place}: {first['msg']}") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
