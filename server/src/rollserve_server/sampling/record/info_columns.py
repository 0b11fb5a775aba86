"""Columns for the infos of an episode's steps, which take no more memory than their values need."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.columns import exact_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.infos import InfoKey, InfoReader

__all__ = ["InfoColumn", "InfoRecorder"]

_TYPE_CODES = {np.dtype(code): code for code in "bhiqBHIQfd"}
"""Type codes of the arrays that numbers are appended to, by dtype. Values of other dtypes go into arrays of bytes."""

_Array = np.ndarray  # a global, because it is looked up for every value


class InfoColumn:
    """The values of one info in an episode, one behind the other.

    Attributes:
        key: name, dtype and shape of the values.
        steps: the step of the episode that each value belongs to; rising.
    """

    __slots__ = ("_values", "key", "steps")

    def __init__(self, key: InfoKey) -> None:
        self.key = key
        self.steps: array[int] | range = array("I")
        self._values: array[Any] = array(_TYPE_CODES.get(key.dtype, "B"))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the column takes."""
        return sys.getsizeof(self) + sys.getsizeof(self._values) + sys.getsizeof(self.steps)

    @property
    def values(self) -> np.ndarray:
        """View of the values, (values, *shape)."""
        return np.frombuffer(self._values, self.key.dtype).reshape(len(self.steps), *self.key.shape)

    def append(self, step: int, value: Any) -> None:
        """Append the value of a step, as an `InfoReader` returned it. Arrays are copied."""
        if type(value) is _Array:
            self._values.frombytes(value.tobytes())
        else:
            self._values.append(value)
        self.steps.append(step)  # type: ignore[union-attr]  # a range only once complete

    def within(self, start: int, stop: int) -> tuple[slice | NDArray[np.intp], np.ndarray]:
        """Return which steps from `start` up to `stop` have a value, counted from `start`, and these values."""
        low, high = bisect_left(self.steps, start), bisect_left(self.steps, stop)
        values = self.values[low:high]
        if high - low == stop - start:
            return slice(None), values
        return np.array(self.steps[low:high], np.intp) - start, values

    def complete(self, num_steps: int) -> None:
        """End the column; its episode has `num_steps` steps."""
        if len(self.steps) == num_steps:
            self.steps = range(num_steps)

    def merge(self, others: Sequence[InfoColumn]) -> None:
        """Merge the values of other columns, which belong to other steps and can be cast."""
        columns = [self, *others]
        steps = np.concatenate([np.array(column.steps, np.uint32) for column in columns])
        values = np.concatenate([column.values.astype(self.key.dtype) for column in columns])
        order = np.argsort(steps)
        self.steps = array("I", steps[order].tobytes())
        self._values = array(self._values.typecode, values[order].tobytes())


class InfoRecorder:
    """Records the infos of one episode's steps.

    A name is given up once its values differ in shape, or no single dtype holds its integers beside the others. Then
    all its values in the episode are dropped and counted.
    """

    def __init__(self, reader: InfoReader, dropped: Counter[str]) -> None:
        """Start without infos; `dropped` counts the dropped values of the episode by name."""
        self._reader = reader
        self._dropped = dropped
        self._columns: dict[InfoKey, InfoColumn] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._mixed_dtypes: set[str] = set()
        self._given_up: set[str] = set()

    def write(self, step: int, info: Mapping[Any, Any]) -> None:
        """Record the infos of a step. Steps have to be in order."""
        columns = self._columns
        for key, value in self._reader.read(info, self._dropped, self._given_up):
            column = columns.get(key) or self._begin(key)
            if column is not None:
                column.append(step, value)

    def finish(self, num_steps: int) -> Mapping[InfoKey, InfoColumn]:
        """Return the columns of the episode, which has `num_steps` steps."""
        for name in self._mixed_dtypes - self._given_up:
            self._unite_integers([column for column in self._columns.values() if column.key.name == name])
        for column in self._columns.values():
            column.complete(num_steps)
        return self._columns

    def _begin(self, key: InfoKey) -> InfoColumn | None:
        """Return a new column; None if the value has to be dropped, which is counted."""
        shape = self._shapes.get(key.name)
        if shape is not None and shape != key.shape:
            self._give_up([column for column in self._columns.values() if column.key.name == key.name])
            self._given_up.add(key.name)
        if key.name in self._given_up:
            self._dropped[key.name] += 1
            return None
        if shape is None:
            self._shapes[key.name] = key.shape
        else:
            self._mixed_dtypes.add(key.name)
        column = self._columns[key] = InfoColumn(key)
        return column

    def _give_up(self, columns: Sequence[InfoColumn]) -> None:
        for column in columns:
            self._dropped[column.key.name] += len(column.steps)
            del self._columns[column.key]

    def _unite_integers(self, columns: Sequence[InfoColumn]) -> None:
        """Make integers uint64 that numpy would promote to float64, because some are beyond int64.

        Values are dropped if no dtype holds each of them.
        """
        try:
            dtype = exact_dtype([column.values for column in columns])
        except ValueError:
            self._give_up(columns)
            return
        if dtype != np.uint64:
            return
        (united,) = (column for column in columns if column.key.dtype == np.uint64)
        others = [column for column in columns if column is not united]
        for column in others:
            del self._columns[column.key]
        united.merge(others)
