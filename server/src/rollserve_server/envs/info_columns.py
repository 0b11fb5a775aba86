"""Infos of vector environments, which may hold anything, as columns of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollserve_server.envs.outcomes import form_of

__all__ = ["FINAL_INFO", "FINAL_OBSERVATION", "info_columns"]

FINAL_OBSERVATION = "final_obs"
"""Name under which the last observations of episodes are, where rows reset in the step that ends an episode."""

FINAL_INFO = "final_info"
"""Name under which the infos of the last steps of episodes are, if the others belong to the next episodes."""

_UNREADABLE = "(unreadable)"
"""Name of infos whose own name cannot be read, or is another one's."""


def info_columns(infos: Mapping[Any, Any], num_rows: int, outer: Sequence[Mapping[Any, Any]] = ()) -> dict[str, Any]:
    """Return infos in which every row can be read: columns of M values, masks (M,) bool, and mappings of them.

    What is no column, such as one number for all rows, becomes a column of values that no message can hold: whoever
    records them drops and counts them, as it does for single environments. Names become texts. Final observations and
    final infos are left out.

    Args:
        infos: the infos, as the environment returned them. A mask, with the name of a column and `_` in front, says
            which rows have a value.
        num_rows: M.
        outer: mappings that contain this one.
    """
    columns: dict[str, Any] = {}
    for part, column in infos.items():
        name = _UNREADABLE
        try:
            text = str(part)
            if text.startswith("_") or (not outer and text in (FINAL_OBSERVATION, FINAL_INFO)):
                continue
            if text not in columns:
                name = text
            else:
                raise ValueError("two infos have this name")
            mask = infos.get(f"_{text}")
            present = None if mask is None else _mask(mask, num_rows)
            if isinstance(column, Mapping):
                around = (*outer, infos)
                if any(column is each for each in around):
                    raise ValueError("a mapping contains itself")
                columns[name] = info_columns(column, num_rows, around)
            else:
                columns[name] = _column(column, num_rows)
            if present is not None:
                columns[f"_{name}"] = present
        # Reading a value runs the environment's code, which may raise anything.
        except BaseException:
            columns[name] = [_NoColumn(column)] * num_rows
    return columns


class _NoColumn:
    """A value that stands in place of each row's, because rows have none of their own."""

    def __init__(self, value: Any) -> None:
        try:
            self._form = form_of(value)
        except BaseException:  # of the environment's own classes
            self._form = "an unreadable value"

    def __repr__(self) -> str:
        return f"{self._form} for all rows"


def _column(values: Any, num_rows: int) -> Any:
    """Return M values that have an index; raise an error for anything else."""
    if isinstance(values, np.ndarray):
        if values.shape[:1] == (num_rows,):
            return values
    elif not isinstance(values, str | bytes) and len(values) == num_rows:
        return values if isinstance(values, list | tuple) else [values[row] for row in range(num_rows)]
    raise ValueError("no column of all rows")


def _mask(values: Any, num_rows: int) -> np.ndarray:
    """Return which rows have a value, (M,) bool; raise ValueError for what says no such thing."""
    mask = np.asarray(values)
    if mask.dtype.kind not in "biu" or mask.shape not in ((num_rows,), ()):
        raise ValueError("no mask of all rows")
    return mask if mask.dtype == np.bool_ and mask.shape else np.broadcast_to(mask.astype(np.bool_), num_rows)
