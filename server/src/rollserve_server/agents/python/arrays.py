"""Checks of the arrays and names that policies return."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import InfoSpec
from rollserve_server.agents.roles import STATE
from rollserve_server.errors import AgentFailedError, describe, listed, show
from rollserve_wire.errors import mismatch
from rollserve_wire.tensors import dtype_to_proto

if TYPE_CHECKING:
    from rollserve_server.envs import Leaf

__all__ = [
    "action_column",
    "array_of",
    "column_of",
    "entry",
    "info_spec",
    "misfit",
    "name_of",
    "values_of",
    "wire_dtype",
]


def misfit(what: str, *, expected: object, got: object, hint: str = "") -> AgentFailedError:
    """Return the error for a result of a policy that is not as expected."""
    return AgentFailedError(f"{what}: {mismatch(expected, got, hint)}")


def entry(what: str, name: str) -> str:
    """Return the path of an array in errors: `what['name']`, or `what` if it has no name."""
    return f"{what}[{name!r}]" if name else what


def values_of(what: str, values: object, names: Collection[str]) -> list[object]:
    """Return the values of a mapping in the order of the names.

    Raises:
        AgentFailedError: `values` is no mapping, or has other names.
    """
    if not isinstance(values, Mapping):
        raise misfit(what, expected=f"a mapping with {listed(names)}", got=type(values).__name__)
    if set(values) != set(names):
        raise misfit(what, expected=listed(names), got=listed([str(name) for name in values]))
    return [values[name] for name in names]


def action_column(leaf: Leaf, value: object, num_rows: int) -> np.ndarray:
    """Return a leaf's column of M actions.

    Raises:
        AgentFailedError: shape or dtype do not fit the leaf.
    """
    what = entry("actions", leaf.name)
    column = column_of(what, value, num_rows, leaf.shape)
    # Integers of any dtype pass: the agent checks that they are in the space.
    integral = column.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    if not integral and not np.can_cast(column.dtype, leaf.dtype, "same_kind"):
        raise misfit(what, expected=leaf.dtype, got=f"dtype {column.dtype}")
    return column


def column_of(what: str, value: object, num_rows: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a column of M rows, each of a given shape or, without one, of any.

    Raises:
        AgentFailedError: the value is no such column.
    """
    column = array_of(what, value)
    expected = (num_rows, *(column.shape[1:] if shape is None else shape))
    if column.shape != expected:
        raise misfit(what, expected=f"shape {expected}", got=f"shape {column.shape}")
    return column


def array_of(what: str, value: object) -> np.ndarray:
    """Return the value as an array.

    Raises:
        AgentFailedError: the value is no array of numbers or booleans.
    """
    try:
        array = np.asarray(value)
    except BaseException as error:
        raise misfit(what, expected="an array", got=describe(error)) from error
    if array.dtype.kind not in "biuf":
        raise misfit(what, expected="numbers", got=f"dtype {array.dtype}")
    return array


def wire_dtype(what: str, array: np.ndarray) -> np.dtype:
    """Return the array's dtype in native byte order.

    Raises:
        AgentFailedError: messages cannot hold the dtype.
    """
    try:
        dtype_to_proto(array.dtype)
    except ValueError as error:
        raise AgentFailedError(f"{what}: {error}") from None
    return array.dtype.newbyteorder("=")


def info_spec(name: object, column: np.ndarray) -> InfoSpec:
    """Return the spec of an info with this column.

    Raises:
        AgentFailedError: messages cannot hold its name or dtype.
    """
    return InfoSpec(name_of("infos", name), wire_dtype(entry("infos", str(name)), column), column.shape[1:])


def name_of(what: str, name: object) -> str:
    """Return the name of an info or state.

    Raises:
        AgentFailedError: messages cannot hold the name, or it is reserved.
    """
    if not isinstance(name, str) or not name or name != name.encode(errors="replace").decode():
        raise misfit(what, expected="names that are Unicode text", got=f"the name {show(name, ascii)}")
    if name.startswith(("_", STATE)):
        expected = f"names that begin with neither '_' (masks) nor {STATE!r} (states of each step)"
        raise misfit(what, expected=expected, got=f"the name {show(name)}")
    return name
