"""Checks of what an agent's parameters are."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.errors import InvalidValueError, show

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["check_finite", "check_names", "check_parameters", "listed"]

_MOST_LISTED = 8
"""Names in the text of an error."""


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Raises InvalidValueError if a parameter is unknown."""
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise InvalidValueError(f"{unknown[0]!r} is unknown, {listed(known)} were expected", field="parameters")


def check_parameters(
    parameters: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
) -> None:
    """Raises InvalidValueError unless the parameters are those of these types and shapes, and finite."""
    missing = [name for name in shapes if name not in parameters]
    if missing:
        text = f"{missing[0]!r} is missing, {listed(shapes)} were expected"
        raise InvalidValueError(text, field="parameters")
    check_names(parameters, shapes)
    for name, (dtype, shape) in shapes.items():
        field, value = f"parameters[{name!r}]", parameters[name]
        if value.dtype != dtype:
            raise InvalidValueError.of(f"{field}.data_type", expected=dtype, got=value.dtype)
        if value.shape != shape:
            raise InvalidValueError.of(f"{field}.shape", expected=shape, got=value.shape)
    check_finite(parameters)


def check_finite(parameters: Mapping[str, np.ndarray]) -> None:
    """Raises InvalidValueError unless all numbers are finite."""
    for name, value in parameters.items():
        finite = np.isfinite(value)
        if not finite.all():
            position = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise InvalidValueError.of(
                f"parameters[{name!r}]{list(position)}", expected="a finite number", got=value[position]
            )


def listed(names: Collection[str]) -> str:
    """The names in brackets, or the first of them."""
    first = ", ".join(show(name) for name in itertools.islice(names, _MOST_LISTED))
    more = f", and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"[{first}{more}]"
