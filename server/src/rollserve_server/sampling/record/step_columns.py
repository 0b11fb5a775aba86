"""Columns for all steps of a fragment call, of rows that are stepped together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["StepColumns"]

_UNUSED_ROWS = 8
"""Rows that are allocated beside the M in use: if consecutive steps of a row were a power of 2 apart, they would evict
each other from the processor's caches.
"""


class StepColumns:
    """Columns of M rows and T steps, written step by step for all rows, and read as runs of steps of single rows.

    A step of a row has a place, which is the same in all columns. Memory pages that are never written are not taken.

    Attributes:
        keys: keys of the columns that every step has.
        step_bytes: bytes that a row's step takes, without infos.
    """

    def __init__(self, num_rows: int, num_steps: int, keys: Iterable[ColumnKey]) -> None:
        self.keys = tuple(keys)
        self.step_bytes = sum(map(_row_bytes, (key for _, key in self.keys)))
        self._num_rows = num_rows
        self._shape = (num_steps, num_rows + _UNUSED_ROWS)
        self._columns = {key: np.empty((*self._shape, *key[1].shape), key[1].dtype) for key in self.keys}
        self._groups: dict[str, list[np.ndarray]] = {}
        for (group, _), column in self._columns.items():
            self._groups.setdefault(group, []).append(column[:, :num_rows])
        self._infos: dict[InfoKey, tuple[np.ndarray, NDArray[np.bool_]]] = {}

    @property
    def info_keys(self) -> tuple[InfoKey, ...]:
        """Keys of the environment's infos. A step of a row may have no value of them."""
        return tuple(self._infos)

    @property
    def info_step_bytes(self) -> int:
        """Bytes that the infos of a row's step take, with their masks."""
        return sum(1 + _row_bytes(key) for key in self._infos)

    def clear(self, num_steps: int) -> bool:
        """Forget all steps; return whether the columns have the size for `num_steps` others."""
        self._infos.clear()
        return self._shape[0] == num_steps

    def write(self, group: str, step: int, values: Iterable[np.ndarray]) -> None:
        """Write a step of all rows, (M, *shape) for each column of the group."""
        for column, value in zip(self._groups.get(group, ()), values, strict=True):
            column[step] = value

    def written(self, group: str, step: int) -> list[np.ndarray]:
        """Return what was written as a step of all rows, (M, *shape) for each column of the group."""
        return [column[step] for column in self._groups.get(group, ())]

    def write_info(self, key: InfoKey, step: int, values: np.ndarray, rows: NDArray[np.bool_]) -> None:
        """Write infos (M, *shape) of a step; `rows` (M,) is the mask of the rows that have a value."""
        if key not in self._infos:
            self._infos[key] = np.empty((*self._shape, *key.shape), key.dtype), np.zeros(self._shape, np.bool_)
        column, mask = (part[step, : self._num_rows] for part in self._infos[key])
        column[rows] = values[rows]
        mask[rows] = True

    def places(self, rows: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of runs of steps, one behind the other.

        Args:
            rows: row of each run.
            starts: first step of each run.
            stops: last step of each run, plus 1.
        """
        lengths = stops - starts
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0)
        places -= np.repeat(ends - stops, lengths)
        places *= self._shape[1]
        places += np.repeat(rows, lengths)
        return places

    def column(self, key: ColumnKey) -> np.ndarray:
        """Return a column with all its places, (places, *shape)."""
        return self._columns[key].reshape(-1, *key[1].shape)

    def infos(self, key: InfoKey, places: NDArray[np.int64]) -> tuple[np.ndarray, NDArray[np.bool_]]:
        """Return the values of an info at the places, and a mask of the places that have one; other values are 0."""
        column, mask = (part.reshape(-1, *part.shape[2:]) for part in self._infos[key])
        present = mask[places]
        if present.all():
            return column[places], present
        values = np.zeros((len(places), *key.shape), key.dtype)
        values[present] = column[places[present]]
        return values, present


def _row_bytes(key: InfoKey) -> int:
    return key.dtype.itemsize * math.prod(key.shape)
