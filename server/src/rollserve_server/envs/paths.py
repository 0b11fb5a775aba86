"""Paths in arguments of environments and agents: what a request may make the server read."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.errors import NotAllowedError, shorten
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvChange

__all__ = ["check_arguments", "check_paths", "paths_in"]

_ELSEWHERE = re.compile(r"/|~|file:|(.*/)?\.\.(/|$)", re.IGNORECASE | re.DOTALL)
"""Paths that begin at the root or a home, or lead upwards from any folder."""

_MAX_SHOWN = 200  # characters of a path in the text of an error
_MAX_CHARACTERS = 4096
"""Length of the longest path that any file has. To resolve longer ones takes the square of their length."""


def check_paths(update: EnvSpec | EnvChange, allowed: Collection[Path]) -> None:
    """Check that no argument of an environment is a path that the operator does not allow; see `check_arguments`."""
    check_arguments(_arguments_of(update), allowed)


def check_arguments(arguments: Mapping[str, object], allowed: Collection[Path]) -> None:
    """Check that no argument is a path that the operator does not allow, because a client may see what the file holds.

    Relative paths that name no file in the server's folder pass: they may name the environment's or agent's own files.

    Args:
        arguments: arguments by their field in the request.
        allowed: files and folders that arguments may name, with everything beneath the folders.

    Raises:
        NotAllowedError: an argument, or a part of one, is such a path.
    """
    for field, argument in arguments.items():
        for text in _paths(argument):
            if not any(_leads_into(text, path) for path in allowed):
                expected = "no path on the server that its operator does not allow (option --allow-path)"
                got = repr(shorten(text, _MAX_SHOWN))
                raise NotAllowedError.of(field, expected=expected, got=got, reason=Reason.PATH_NOT_ALLOWED)


def paths_in(spec: EnvSpec) -> list[Path]:
    """Return the paths among all arguments of an environment."""
    return [Path(text) for argument in _arguments_of(spec).values() for text in _paths(argument)]


def _arguments_of(update: EnvSpec | EnvChange) -> dict[str, object]:
    """Return all arguments by their field in the request."""
    arguments: dict[str, object] = {"kwargs_json": update.kwargs, "reset_options_json": update.reset_options}
    if update.task is not None:
        arguments["task.argument_json"] = update.task.argument
    wrappers = update.wrappers if isinstance(update, EnvSpec) else ()
    return arguments | {f"wrappers[{i}].kwargs_json": wrapper.kwargs for i, wrapper in enumerate(wrappers)}


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _paths(key)
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)
    elif isinstance(value, str) and (_ELSEWHERE.match(value) or _is_here(value)):
        yield value


def _is_here(text: str) -> bool:
    """Whether a text names a file in the server's folder, or a folder there by a path and not by a word."""
    return len(text) <= _MAX_CHARACTERS and (os.path.isfile(text) or ("/" in text and os.path.exists(text)))


def _leads_into(text: str, allowed: Path) -> bool:
    """Whether a path is the allowed one or lies beneath it, after links are resolved."""
    path = os.path.expanduser(text)
    if len(path) > _MAX_CHARACTERS:
        return False
    if not os.path.isabs(path) and _ELSEWHERE.match(path):
        return False  # only the environment knows from which folder the path leads upwards
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(allowed.expanduser()))
    except ValueError:  # the text has a character that no path has
        return False
