"""What a client may say about an environment of EnvPool's: an argument that does not fit can end the whole process."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollserve import Reason
from rollserve_server.errors import InvalidValueError

__all__ = ["check_arguments", "check_values"]

_POOLS_OWN = frozenset(
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
"""Of the pool, not of the environment: the server sets them, or nobody."""

_SAID_BY_THE_ID = frozenset({"adroit_task", "env_name", "hand_task", "map_id", "task", "task_id", "task_name"})
_OF_THE_MACHINE = ("_args", "_bytes", "_dim", "_dir", "_file", "_path")
"""Ends of names of what are files, programs and their arguments, or sizes of memory that have to fit these."""

_KINDS = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
"""By the type of the default, the types of values that EnvPool takes for it, and what they are called."""

_LEAST, _MOST = -(2**31), 2**31 - 1
_MOST_STEPS = _MOST - 1
_TRIAL_SECONDS = 60
_TRIAL = Path(__file__).with_name("probe.py")
_MOST_SHOWN = 200


def check_arguments(kwargs: Mapping[str, object], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as EnvPool takes them.

    Args:
        kwargs: as JSON has them.
        defaults: all that the environment is configured by.

    Raises:
        InvalidValueError: one is unknown, is not the client's to set, or has a value of another type than its default.
    """
    for name in kwargs:
        _check_name(name, defaults)
    arguments = {name: _value(name, value, defaults[name]) for name, value in kwargs.items()}
    if not 1 <= arguments.get("max_episode_steps", 1) <= _MOST_STEPS:
        expected = f"a number from 1 to {_MOST_STEPS}"
        raise _refused("max_episode_steps", arguments["max_episode_steps"], expected)
    return arguments


def check_values(env_id: str, arguments: Mapping[str, Any]) -> None:
    """Sees to it that values do not end the process, as some do that are of the right type: has another one try them.

    What EnvPool refuses with an error passes. Takes a second or two for values that come for the first time.

    Raises:
        InvalidValueError: the other process ended otherwise than it should, or not at all.
    """
    if arguments and not _survives(repr((env_id, dict(arguments)))):
        text = f"{str(dict(arguments))[:_MOST_SHOWN]} came, with which EnvPool's code for {env_id} breaks down"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field="kwargs_json")


@functools.lru_cache(maxsize=256)
def _survives(tried: str) -> bool:
    # Without -P, Python would take the module beside it for EnvPool.
    command = [sys.executable, "-P", str(_TRIAL)]
    try:
        ended = subprocess.run(command, input=tried.encode(), capture_output=True, timeout=_TRIAL_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def _check_name(name: str, defaults: Mapping[str, Any]) -> None:
    why_not = _why_not(name)
    if why_not is None and name in defaults:
        return
    known = ", ".join(sorted(known for known in defaults if _why_not(known) is None))
    came = f"{name!r} came, which {why_not}:" if why_not else f"{name!r} came,"
    raise InvalidValueError(f"{came} names among {known} were expected", field="kwargs_json")


def _why_not(name: str) -> str | None:
    """Why a client cannot set what has this name, or None if it can."""
    if name in _POOLS_OWN or name.startswith("render"):
        return "is not the environment's but the pool's"
    if name in _SAID_BY_THE_ID or name.endswith(_OF_THE_MACHINE):
        return "the id alone says"
    return None


def _value(name: str, value: object, default: Any) -> Any:
    if isinstance(default, list | tuple):
        return _values(name, value, default)
    kind = type(default)
    if kind not in _KINDS:
        text = f"{name!r} came, which a request cannot set"
        raise InvalidValueError(text, field="kwargs_json")
    types, called = _KINDS[kind]
    if type(value) not in types:
        raise _refused(name, repr(value)[:_MOST_SHOWN], called)
    if kind is int and not _LEAST <= value <= _MOST:  # type: ignore[operator]  # it is an int
        raise _refused(name, value, f"a number from {_LEAST} to {_MOST}")
    return kind(value)


def _values(name: str, value: object, default: list[Any] | tuple[Any, ...]) -> Any:
    """The elements of a list; those of a tuple are as many as in the default."""
    fits = isinstance(value, list) and default and (isinstance(default, list) or len(value) == len(default))
    if not isinstance(value, list) or not fits:
        raise _refused(name, repr(value)[:_MOST_SHOWN], f"a list such as {list(default)}")
    return type(default)(_value(name, element, default[0]) for element in value)


def _refused(name: str, came: object, expected: str) -> InvalidValueError:
    return InvalidValueError(f"{name}: {came} came, {expected} was expected", field="kwargs_json")
