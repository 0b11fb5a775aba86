"""Principals, whom clients act for, and the scopes that are granted to them: what they may do, on which samplers."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from rollserve_server.errors import InvalidValueError

__all__ = ["ANONYMOUS", "Grant", "Principal", "Scope", "check_name", "parse_grants", "parse_named_grants"]

_ALL = "*"
"""Any text in a sampler's name; and, as a scope, all scopes but `pickle`, and those of no sampler if one follows."""
_ANONYMOUS_NAME = "anonymous"
_NAME = re.compile(r"[!-~]{1,128}")


class Scope(enum.StrEnum):
    """A right of clients on a sampler."""

    STATUS = "status"
    """Read the state of the sampler, and describe the service."""
    SAMPLE = "sample"
    """Sample and evaluate with the present agent and environment."""
    DRIVE = "drive"
    """Act in the present environment, step by step."""
    AGENT_READ = "agent:read"
    """Read the parameters of agents."""
    AGENT_WRITE = "agent:write"
    """Update the agent."""
    ENV_WRITE = "env:write"
    """Update the environment, and evaluate in another one."""
    ENV_FREE = "env:free"
    """Use environments beside the profiles of the operator."""
    ENV_SERVE = "env:serve"
    """Have environments, as a host whose rows workers step."""
    POOL_RESIZE = "pool:resize"
    """Change the number of workers."""
    SAMPLER_ADMIN = "sampler:admin"
    """Create and delete samplers, and see what is hidden from others."""
    SERVER_ADMIN = "server:admin"
    """Have the server read its settings again, for all samplers."""
    DATA_READ = "data:read"
    """Read datasets in the operator's folder."""
    DATA_WRITE = "data:write"
    """Record datasets into the operator's folder."""
    PICKLE = "pickle"
    """Send agents as pickles, which run any code."""


_OF_SERVER = (Scope.ENV_SERVE, Scope.SERVER_ADMIN)
"""Scopes of no sampler."""


@dataclass(frozen=True)
class Grant:
    """A scope on samplers.

    Attributes:
        scope: what may be done.
        sampler: name of the sampler, in which `*` stands for any text.
    """

    scope: Scope
    sampler: str = _ALL

    @classmethod
    def parse(cls, text: str) -> Collection[Self]:
        """Return the grants of a text such as `sample`, `sample@team-*` or `*@team-a`.

        Raises:
            InvalidValueError: no scope of that name, or an empty name of a sampler.
        """
        name, at, sampler = text.partition("@")
        scopes = [each for each in Scope if each == name or (name == _ALL and each is not Scope.PICKLE)]
        if at:  # no sampler has it
            scopes = [each for each in scopes if each not in _OF_SERVER]
        if not scopes or (at and not sampler):
            expected = f"SCOPE or SCOPE@SAMPLER, with one of the scopes {', '.join(Scope)}, or {_ALL}"
            raise InvalidValueError.of("scope", expected=expected, got=repr(text))
        return [cls(scope, sampler or _ALL) for scope in scopes]

    def covers(self, scope: Scope, sampler: str) -> bool:
        """Whether the grant has a scope on a sampler."""
        pattern = ".*".join(map(re.escape, self.sampler.split(_ALL)))
        return scope is self.scope and re.fullmatch(pattern, sampler, re.DOTALL) is not None


def parse_grants(texts: Iterable[str]) -> frozenset[Grant]:
    """Return the grants of texts; raises as `Grant.parse`."""
    return frozenset(grant for text in texts for grant in Grant.parse(text))


def parse_named_grants(field: str, found: object) -> Iterator[tuple[str, frozenset[Grant]]]:
    """Yield the names and the grants of a mapping from names to lists of scopes, as YAML has it.

    Args:
        field: the mapping, for errors.
        found: the mapping.

    Raises:
        InvalidValueError: it is something else.
    """
    expected = "names, each with a list of scopes"
    if not isinstance(found, dict):
        raise InvalidValueError.of(field, expected=expected, got=type(found).__name__)
    for name, scopes in found.items():
        if not (isinstance(name, str) and isinstance(scopes, list) and all(isinstance(each, str) for each in scopes)):
            raise InvalidValueError.of(field, expected=expected, got=f"{name!r}: {scopes!r}")
        try:
            yield name, parse_grants(scopes)
        except InvalidValueError as error:
            raise InvalidValueError(f"{name!r}: {error.text}", field=field) from None


@dataclass(frozen=True)
class Principal:
    """A person, team or program that a client acts for.

    Attributes:
        name: the same for all clients of one person, team or program.
        grants: what they may do.
        is_known: whether the client has proved who it is; false on a server that asks nobody.
    """

    name: str
    grants: frozenset[Grant]
    is_known: bool = True

    def has(self, scope: Scope, sampler: str) -> bool:
        """Whether the principal has a scope on a sampler."""
        return scope in self._everywhere or any(grant.covers(scope, sampler) for grant in self.grants)

    def has_somewhere(self, scope: Scope) -> bool:
        """Whether the principal has a scope on any sampler."""
        return any(grant.scope is scope for grant in self.grants)

    @functools.cached_property
    def _everywhere(self) -> frozenset[Scope]:
        """Scopes on all samplers."""
        return frozenset(grant.scope for grant in self.grants if grant.sampler == _ALL)


ANONYMOUS = Principal(_ANONYMOUS_NAME, frozenset(map(Grant, Scope)), is_known=False)
"""Every client of a server without authentication. Its settings bound what that client may do."""


def check_name(name: str) -> str:
    """Return the name of a principal; raise InvalidValueError unless it is 1 to 128 printable characters of ASCII."""
    if not _NAME.fullmatch(name) or name == _ANONYMOUS_NAME:
        expected = f"1 to 128 printable characters of ASCII without blanks, and not {_ANONYMOUS_NAME!r}"
        raise InvalidValueError.of("name", expected=expected, got=repr(name))
    return name
