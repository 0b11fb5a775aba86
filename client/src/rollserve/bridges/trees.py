"""Arrays in batches, transitions and mappings, converted one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollserve_wire.checks import type_error

__all__ = ["convert_arrays", "nested", "step_positions"]


def convert_arrays(columns: Any, convert: Callable[[str, np.ndarray], Any], name: str = "") -> Any:
    """Return columns with each array converted.

    Args:
        columns: an array; a mapping of columns; or an object with fields, such as `EpisodeBatch`, `Transitions` or
            `Advantages`, which becomes a dict of those fields that hold arrays.
        convert: gets the path of an array, such as `agent_infos/log_prob`, and the array.
        name: path of the columns.

    Raises:
        TypeError: columns of another type.
    """
    if isinstance(columns, np.ndarray):
        return convert(name, columns)
    if isinstance(columns, Mapping):
        return {key: convert_arrays(value, convert, f"{name}/{key}" if name else key) for key, value in columns.items()}
    return convert_arrays(_fields(columns, name), convert, name)


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of dicts for values by path: `{"pose/left": 1}` becomes `{"pose": {"left": 1}}`.

    A path that is also the beginning of another path stays as it is.
    """
    tree: dict[str, Any] = {}
    folders = {path.rpartition("/")[0] for path in leaves}
    for path, value in leaves.items():
        parts = path.split("/")
        if path in folders or any("/".join(parts[:depth]) in leaves for depth in range(1, len(parts))):
            tree[path] = value
            continue
        folder = tree
        for part in parts[:-1]:
            folder = folder.setdefault(part, {})
        folder[parts[-1]] = value
    return tree


def step_positions(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the segment of each step, (T,) int64, and the number of steps of its episode before it, (T,) int64."""
    segments = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
    starts = np.cumsum(batch.lengths) - batch.lengths
    return segments, np.arange(len(batch.rewards)) + np.repeat(batch.first_steps - starts, batch.lengths)


def _fields(value: Any, name: str) -> dict[str, Any]:
    """Return the fields of an object that hold arrays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        found = value._asdict()
    else:
        raise type_error(name or "columns", "a batch, or a mapping of arrays", value)
    return {key: column for key, column in found.items() if isinstance(column, np.ndarray | Mapping)}
