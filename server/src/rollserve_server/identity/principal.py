"""Principals: persons, teams or programs that clients act for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollserve_server.errors import InvalidValueError
from rollserve_server.identity.scopes import Grant, Scope

__all__ = ["ANONYMOUS", "Principal", "check_name"]

_ANONYMOUS_NAME = "anonymous"
_NAME = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class Principal:
    """A person, team or program that a client acts for.

    Attributes:
        name: the same for all clients of one person, team or program.
        grants: what they may do.
    """

    name: str
    grants: frozenset[Grant]

    @property
    def is_known(self) -> bool:
        """Whether the client has proved who it is; false on a server that asks nobody."""
        return self is not ANONYMOUS

    def has(self, scope: Scope, sampler: str) -> bool:
        """Whether the principal has a scope on a sampler."""
        return any(grant.covers(scope, sampler) for grant in self.grants)

    def has_somewhere(self, scope: Scope) -> bool:
        """Whether the principal has a scope on any sampler."""
        return any(grant.scope is scope for grant in self.grants)


ANONYMOUS = Principal(_ANONYMOUS_NAME, frozenset(map(Grant, Scope)))
"""Every client of a server without authentication. Its settings bound what that client may do."""


def check_name(name: str) -> str:
    """Return the name of a principal; raise InvalidValueError unless it is 1 to 128 printable characters of ASCII."""
    if not _NAME.fullmatch(name) or name == _ANONYMOUS_NAME:
        expected = f"1 to 128 printable characters of ASCII without blanks, and not {_ANONYMOUS_NAME!r}"
        raise InvalidValueError.of("name", expected=expected, got=repr(name))
    return name
