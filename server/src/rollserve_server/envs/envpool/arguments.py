"""Arguments of EnvPool's environments: which a request may set, and of which types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollserve_server.errors import InvalidValueError, shorten

__all__ = ["check_arguments"]

_POOL_ARGUMENTS = frozenset(
    {
        "base_path",
        "batch_size",
        "enable_render",
        "env_seed",
        "env_type",
        "from_pixels",
        "gym_reset_return_info",
        "max_num_players",
        "num_envs",
        "num_threads",
        "seed",
        "thread_affinity_offset",
    }
)
"""Arguments of the pool, not of the environment. The server sets them, or nobody."""

_ID_ARGUMENTS = frozenset({"adroit_task", "env_name", "hand_task", "map_id", "task", "task_id", "task_name"})
"""Arguments that the id determines."""

_MACHINE_SUFFIXES = ("_args", "_bytes", "_dim", "_dir", "_file", "_path")
"""Suffixes of arguments for files, programs, and sizes of memory that must match these."""

_KINDS = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
"""Accepted types of values by the type of the default, and their description."""

_MIN_INT, _MAX_INT = -(2**31), 2**31 - 1
_MAX_STEPS = _MAX_INT - 1
_MAX_SHOWN = 200  # characters of a value in the text of an error


def check_arguments(kwargs: Mapping[str, object], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request as EnvPool takes them.

    Args:
        kwargs: arguments as JSON has them.
        defaults: the environment's whole configuration.

    Raises:
        InvalidValueError: an argument is unknown, cannot be set by clients, or is not of the type of its default.
    """
    for name in kwargs:
        _check_name(name, defaults)
    arguments = {name: _value(name, value, defaults[name]) for name, value in kwargs.items()}
    if not 1 <= arguments.get("max_episode_steps", 1) <= _MAX_STEPS:
        raise _refused("max_episode_steps", arguments["max_episode_steps"], f"a number from 1 to {_MAX_STEPS}")
    return arguments


def _check_name(name: str, defaults: Mapping[str, Any]) -> None:
    why_not = _why_not(name)
    if why_not is None and name in defaults:
        return
    known = ", ".join(sorted(known for known in defaults if _why_not(known) is None))
    got = f"{name!r}, which {why_not}" if why_not else repr(name)
    raise InvalidValueError.of("kwargs_json", expected=f"names among {known}", got=got)


def _why_not(name: str) -> str | None:
    """Return why clients cannot set an argument, or None if they can."""
    if name in _POOL_ARGUMENTS or name.startswith("render"):
        return "belongs to the pool, not to the environment"
    if name in _ID_ARGUMENTS or name.endswith(_MACHINE_SUFFIXES):
        return "the id determines"
    return None


def _value(name: str, value: object, default: Any) -> Any:
    if isinstance(default, list | tuple):
        return _values(name, value, default)
    kind = type(default)
    if kind not in _KINDS:
        got = f"{name!r}, which a request cannot set"
        raise InvalidValueError.of("kwargs_json", expected="other arguments", got=got)
    types, description = _KINDS[kind]
    if type(value) not in types:
        raise _refused(name, shorten(repr(value), _MAX_SHOWN), description)
    if kind is int and not _MIN_INT <= value <= _MAX_INT:  # type: ignore[operator]  # it is an int
        raise _refused(name, value, f"a number from {_MIN_INT} to {_MAX_INT}")
    return kind(value)


def _values(name: str, value: object, default: list[Any] | tuple[Any, ...]) -> Any:
    """Return the elements of a list, or of a tuple with as many elements as its default."""
    fits = isinstance(value, list) and default and (isinstance(default, list) or len(value) == len(default))
    if not isinstance(value, list) or not fits:
        raise _refused(name, shorten(repr(value), _MAX_SHOWN), f"a list such as {list(default)}")
    return type(default)(_value(name, element, default[0]) for element in value)


def _refused(name: str, got: object, expected: str) -> InvalidValueError:
    return InvalidValueError.of("kwargs_json", expected=f"{expected} as {name}", got=got)
