"""Paths in the arguments of environments and agents: what a request may make the server read."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve import EnvSpec, Reason
from rollserve_server.errors import NotAllowedError

if TYPE_CHECKING:
    from rollserve import EnvChange

__all__ = ["check_arguments", "check_paths", "paths_in"]

_ELSEWHERE = re.compile(r"/|~|file:|(.*/)?\.\.(/|$)", re.IGNORECASE | re.DOTALL)
"""What begins at the root or a home, or leads upwards, from whichever folder an environment begins."""


def check_paths(update: EnvSpec | EnvChange, allowed: Collection[Path]) -> None:
    """Sees to it that no argument of an environment is the path of a file that the operator did not agree to.

    See `check_arguments`.
    """
    check_arguments(_arguments_of(update), allowed)


def check_arguments(arguments: Mapping[str, object], allowed: Collection[Path]) -> None:
    """Sees to it that no argument is the path of a file that the operator did not agree to.

    What gets it may well show a client what such a file holds. Relative paths that name no file in the server's own
    folder are left to the environment or agent: they may be those of its own files.

    Args:
        arguments: by their field in a request.
        allowed: files that arguments may name, and folders beneath which they may.

    Raises:
        NotAllowedError: an argument, or a part of one, is such a path.
    """
    for field, argument in arguments.items():
        for text in _paths(argument):
            if not any(_leads_into(text, path) for path in allowed):
                text = f"{text[:200]!r} came, which is a path on the server that its operator does not allow"
                raise NotAllowedError(f"{text} (option --allow-path)", reason=Reason.PATH_NOT_ALLOWED, field=field)


def paths_in(spec: EnvSpec) -> list[Path]:
    """The paths among all arguments."""
    return [Path(text) for argument in _arguments_of(spec).values() for text in _paths(argument)]


def _arguments_of(update: EnvSpec | EnvChange) -> dict[str, object]:
    """All arguments, by their field in a request."""
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
    """Whether it names a file in the server's own folder, or a folder by a path and not by a word."""
    return os.path.isfile(text) or ("/" in text and os.path.exists(text))


def _leads_into(text: str, allowed: Path) -> bool:
    """Whether a path is the allowed one or lies beneath it, wherever links in it lead to."""
    path = os.path.expanduser(text)
    if not os.path.isabs(path) and _ELSEWHERE.match(path):
        return False  # from where, only the environment knows
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(allowed.expanduser()))
    except ValueError:  # a character that no path has
        return False
