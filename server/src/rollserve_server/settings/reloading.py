"""New settings of a running server: what of them counts at once, and what a restart is needed for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import pydantic
from pydantic_core import to_jsonable_python

from rollserve_server.errors import InvalidValueError, shorten
from rollserve_server.settings.server import Settings

__all__ = ["Change", "Reload"]

_MAX_SHOWN = 200
"""Characters of a value."""


class Change(NamedTuple):
    """Values of a setting, as texts: the one in use until now, and the new one."""

    before: str
    after: str


class Reload(NamedTuple):
    """Settings that a running server goes on with.

    Attributes:
        settings: the new values of settings that are reloadable, and the values of the start of the others.
        changed: changes of reloadable settings, by their names.
        needs_restart: changes of other settings, which do not count yet.
    """

    settings: Settings
    changed: Mapping[str, Change]
    needs_restart: Mapping[str, Change]

    @classmethod
    def of(cls, used: Settings, new: Settings) -> Self:
        """Return what becomes of new settings, given the ones in use.

        Raises:
            InvalidValueError: a reloadable setting needs another one that a restart is needed for.
        """
        changed: dict[str, Change] = {}
        needs_restart: dict[str, Change] = {}
        values = {}
        for field in Settings.flat_fields():
            before, after = field.value_in(used), field.value_in(new)
            values[field.name] = after if field.is_reloadable else before
            if before != after:
                changes = changed if field.is_reloadable else needs_restart
                changes[field.name] = Change(_shown(before), _shown(after))
        try:
            return cls(Settings.from_flat(values), changed, needs_restart)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            hint = f"a restart is needed for {', '.join(needs_restart)}"
            text = f"{first['msg'].removeprefix('Value error, ')} ({hint})"
            raise InvalidValueError(text, field=str(first["loc"][-1])) from None


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    plain = to_jsonable_python(value, exclude_none=True)
    return shorten(plain if isinstance(plain, str) else json.dumps(plain), _MAX_SHOWN)
