"""Arguments of environments and agents as JSON, within limits that any language can read and write."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rollserve_wire.errors import mismatch

__all__ = ["kwargs_from_json", "kwargs_to_json", "value_from_json", "value_to_json"]

_MAX_DEPTH = 64  # arguments are copied and written recursively
_TOO_DEEP = mismatch(f"at most {_MAX_DEPTH} nested arrays and objects", "more")


def kwargs_from_json(text: str) -> dict[str, object]:
    """Return keyword arguments from JSON; an empty text stands for none.

    Raises:
        ValueError: a text that is not a JSON object, more than 64 levels of nesting, a number beyond float64, or a
            string that is not valid Unicode.
    """
    try:
        kwargs = json.loads(text or "{}", parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:
        kwargs = None
    if not isinstance(kwargs, dict):
        raise ValueError(mismatch("a JSON object", repr(text[:80])))
    _check_values(kwargs)
    return kwargs


def value_from_json(text: str) -> object:
    """Return any value from JSON; raises as `kwargs_from_json`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:
        raise ValueError(mismatch("JSON", repr(text[:80]))) from None
    _check_values([value])
    return value


def kwargs_to_json(field: str, kwargs: Mapping[str, object]) -> str:
    """Return keyword arguments as JSON; an empty text for none.

    Raises:
        ValueError: a value that JSON cannot hold; the message begins with the field.
    """
    return value_to_json(field, dict(kwargs)) if kwargs else ""


def value_to_json(field: str, value: object) -> str:
    """Return any value as JSON; numbers of numpy become numbers, and tuples arrays.

    Raises:
        ValueError: a value that JSON cannot hold, or a mapping with keys that are no texts, which would become texts;
            the message begins with the field.
    """
    try:
        _check_keys(value)
        return json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        text = mismatch("what JSON can hold", reprlib.repr(value), str(error))
        raise ValueError(f"{field}: {text}") from None


def _check_keys(value: object, depth: int = 0) -> None:
    """Raise TypeError for a mapping with other keys than texts."""
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys of objects are texts, not {reprlib.repr(key)}")
            _check_keys(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_keys(each, depth + 1)


def _plain(value: object) -> Any:
    """Return a number of numpy as one of Python; raise TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse_constant(name: str) -> object:
    raise ValueError(mismatch("a finite number", name))


def _check_values(container: Mapping[str, object] | list[object]) -> None:
    """Raise ValueError for values that Python's parser accepts but other languages cannot read or write."""
    containers: list[object] = [container]
    for _ in range(_MAX_DEPTH):
        values = [value for container in containers for value in _values(container)]
        for value in values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(mismatch("finite numbers", "a number beyond float64"))
            if isinstance(value, str) and value != value.encode(errors="replace").decode():
                raise ValueError(mismatch("Unicode", f"{value[:80]!a}, which has half a surrogate pair"))
        containers = [value for value in values if isinstance(value, Mapping | list)]
        if not containers:
            return
    raise ValueError(_TOO_DEEP)


def _values(container: object) -> Iterable[object]:
    """Return the keys and values of an object, or the elements of an array."""
    if isinstance(container, Mapping):
        return (*container, *container.values())
    return container if isinstance(container, list) else ()
