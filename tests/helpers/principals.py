"""Principals of the tests: files with tokens, and servers that ask for them."""

from __future__ import annotations

from pathlib import Path

from rollserve_server.identity import Token, TokenFile


class Tokens:
    """A file with tokens, as `rollserve-server token` makes it.

    Attributes:
        path: the file.
        options: options of a server that uses the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = ("--token-hashes", str(path))
        TokenFile(path).write([])

    def create(self, name: str, *scopes: str, days: float | None = None) -> str:
        """Add a token, and return its text."""
        token, text = Token.new(name, scopes, days)
        file = TokenFile(self.path)
        file.write([*file.read(), token])
        return text

    def revoke(self, name: str) -> None:
        """Remove all tokens of a name."""
        file = TokenFile(self.path)
        file.write([token for token in file.read() if token.name != name])
