"""Results of resets and steps of environments, checked but for observations; and the errors about them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import describe, listed, show
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ReturnedError",
    "copied",
    "failure_text",
    "flag_of",
    "flags_of",
    "form_of",
    "infos_of",
    "parts_of_reset",
    "parts_of_step",
    "plain_infos",
    "reward_of",
    "rewards_of",
]

_CONSTANTS = frozenset({bool, int, float, str, type(None), *(np.dtype(code).type for code in "?bhilqBHILQefdU")})
"""Types of usual infos that nobody can change; looked up by the exact type, which is faster than `isinstance`."""

_UNCHANGING = (bool, int, float, str, type(None), np.generic)
"""Classes of all values that nobody can change."""

_PLAIN = frozenset({bool, int, np.bool_, *(np.dtype(code).type for code in "bhilqBHILQefd")})
"""Types of numbers without a shape to look at."""

_NUMBERS = (Real, Decimal, np.bool_)
"""Classes of numbers that rewards and flags may have."""


class ReturnedError(ValueError):
    """A value that an environment returned does not fit: the environment raised nothing."""


def failure_text(env_id: str, what: str, error: BaseException) -> str:
    """Return the text for an environment that failed in a reset, step or other call, `what`."""
    if isinstance(error, ReturnedError):
        return f"{env_id} returned from {what}: {error}"
    return f"{env_id} raised in {what}: {describe(error)}"


def parts_of_step(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return observation, reward, terminated, truncated and info; raise ReturnedError for something else."""
    with contextlib.suppress(TypeError):
        parts = tuple(result)
        if len(parts) == 5:
            return parts
    expected = "observation, reward, terminated, truncated and info, in a tuple"
    form = f"a {type(result).__name__} of {len(result)}" if isinstance(result, tuple | list) else _shown(result)
    raise ReturnedError(mismatch(expected, form))


def parts_of_reset(result: Any) -> tuple[Any, Any]:
    """Return the observation and the infos of a reset; raise ReturnedError for something else."""
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise ReturnedError(mismatch("an observation and infos, in a tuple", form_of(result)))


def form_of(value: Any) -> str:
    """Return what an environment returned, without its numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict with {listed(value)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a value of type {show(type(value), lambda kind: kind.__name__)}"


def reward_of(value: Any) -> float:
    """Return a reward, which may be an array or tensor without axes; raise ReturnedError for what is no number."""
    number = value if type(value) in _PLAIN else _scalar(value)
    try:
        if type(number) in _PLAIN or isinstance(number, _NUMBERS):  # the look-up is faster
            return float(number)
    except OverflowError:  # an integer beyond all floats
        pass
    raise ReturnedError(f"reward: {mismatch('a number', _shown(value))}")


def flag_of(name: str, value: Any) -> bool:
    """Return a flag, `terminated` or `truncated`; raise ReturnedError for what is no truth value, 0 or 1."""
    flag = value if type(value) in _PLAIN else _scalar(value)
    if not isinstance(flag, _NUMBERS) or (flag != 0 and flag != 1):
        raise ReturnedError(f"{name}: {mismatch('a truth value', _shown(value))}")
    return bool(flag)


def rewards_of(values: Any, num_rows: int) -> NDArray[Any]:
    """Return the rewards of a vector environment, (M,) or one for all; raise ReturnedError for what are none."""
    rewards = np.asarray(values)
    if rewards.dtype.kind not in "biuf" or rewards.shape not in ((num_rows,), ()):
        raise ReturnedError(f"reward: {mismatch(f'numbers of shape ({num_rows},)', _shown(values))}")
    return rewards


def flags_of(name: str, values: Any, num_rows: int) -> NDArray[Any]:
    """Return flags of a vector environment, (M,) or one for all; raise ReturnedError for what are none."""
    flags = np.asarray(values)
    is_flags = flags.dtype.kind == "b" or (flags.dtype.kind in "iuf" and bool(((flags == 0) | (flags == 1)).all()))
    if not is_flags or flags.shape not in ((num_rows,), ()):
        raise ReturnedError(f"{name}: {mismatch(f'truth values of shape ({num_rows},)', _shown(values))}")
    return flags


def plain_infos(infos: Any) -> dict[Any, Any]:
    """Return an environment's infos as a dict, of the environment's own if they are one.

    Raises:
        ReturnedError: these are no infos.
        BaseException: what a mapping of another class raises.
    """
    if type(infos) is dict:
        return infos
    if infos is None:
        return {}
    if not isinstance(infos, Mapping) and not hasattr(infos, "keys"):
        raise ReturnedError(f"info: {mismatch('a mapping', _shown(infos))}")
    return dict(infos)


def infos_of(infos: Any) -> dict[Any, Any]:
    """Return infos as `plain_infos` does, with copies of what the environment may change while others run."""
    own = plain_infos(infos)
    return dict(own) if _CONSTANTS.issuperset(map(type, own.values())) else _copy(own, {})


def copied(value: Any) -> Any:
    """Return a copy of a value: of mappings, sequences and arrays in it, and of what numpy reads as an array."""
    return _copy(value, {})


def _copy(value: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return a copy as `copied` does, given the values around it and their copies, by id: some contain themselves."""
    if isinstance(value, _UNCHANGING):
        return value
    if id(value) in copies:
        return copies[id(value)][1]
    if isinstance(value, np.ndarray):
        return value.copy()
    with contextlib.suppress(BaseException):  # of the environment's own classes: whoever reads the value meets it, too
        if isinstance(value, Mapping):
            mapping: dict[Any, Any] = {}
            copies[id(value)] = value, mapping
            mapping.update((name, _copy(part, copies)) for name, part in value.items())
            return mapping
        if isinstance(value, list):
            parts: list[Any] = []
            copies[id(value)] = value, parts
            parts.extend(_copy(part, copies) for part in value)
            return parts
        if isinstance(value, tuple):
            return tuple(_copy(part, copies) for part in value)
        if hasattr(value, "__array__"):
            return np.array(value)
    return value


def _scalar(value: Any) -> Any:
    """Return the only element of an array or tensor without axes; other values as they are."""
    if getattr(value, "shape", None) != ():
        return value
    return value.item() if hasattr(value, "item") else np.asarray(value).item()


def _shown(value: Any) -> str:
    """Return a value with its type for errors, and the shape of an array."""
    shape = getattr(value, "shape", None)
    return f"{show(value)} ({type(value).__name__}{f' of shape {tuple(shape)}' if shape else ''})"
