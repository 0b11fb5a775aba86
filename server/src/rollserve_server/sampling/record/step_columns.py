"""Columns for all steps of a fragment call, of rows that are stepped together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from rollserve_server.sampling.record.columns import (
    MAX_BUFFER_BYTES,
    ColumnBuffer,
    ColumnWriter,
    Piece,
    StackColumn,
    bytes_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["Places", "StepColumns"]

_UNUSED_ROWS = 8
"""Rows that are allocated beside the M in use: if consecutive steps of a row were a power of 2 apart, they would evict
each other from the processor's caches.
"""


class StepColumns(ColumnWriter):
    """Columns of M rows and T steps, written step by step for all rows, and read as runs of steps of single rows.

    A step of a row has one place in all columns. The columns lie in buffers of up to 30 MiB, which is
    one for most calls. Of observations that are stacks of frames, each frame is recorded once.

    Attributes:
        info_keys: keys of the environment's infos, in order. A step of a row may have no value of them.
    """

    def __init__(
        self,
        num_rows: int,
        keys: Iterable[ColumnKey],
        buffer_bytes: int = MAX_BUFFER_BYTES,
        keep: Callable[[ColumnBuffer, int], object] = lambda buffer, num_steps: None,
    ) -> None:
        """Start without steps; see `ColumnWriter`."""
        super().__init__(num_rows, keys, buffer_bytes, keep)
        self._stride = num_rows + _UNUSED_ROWS
        self.info_keys: dict[InfoKey, None] = {}
        self._in_use[:] = True
        self._count_bytes()
        self._num_steps = 0
        self._buffers: list[_StepBuffer] = []

    def begin_call(self, num_steps: int) -> None:
        """Forget all steps, and begin with `num_steps` others."""
        is_fitting = len(self._buffers) == 1 and num_steps == self._num_steps
        buffer = self._buffers.pop() if is_fitting else None
        self._buffers.clear()
        self._num_steps = num_steps
        self.info_keys.clear()
        self._count_bytes()
        self._begins[:] = True
        if buffer is None:
            self._add_buffer(0)
        else:  # its memory is used again
            buffer.infos.clear()
            self._buffers.append(buffer)
            self._write_to(buffer, self._room)

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Note that fragments of these rows begin with the current step."""
        self._begins[rows] = True

    def write_info(self, key: InfoKey, values: np.ndarray, rows: NDArray[np.bool_]) -> None:
        """Write infos (M, *shape) of the current step; `rows` (M,) is the mask of the rows that have a value."""
        if key not in self.info_keys:
            self.info_keys[key] = None
            self._count_bytes()
        self._buffers[-1].write_info(key, self._position, values, rows)

    def places(self, rows: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Places:
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
        places *= self._stride
        places += np.repeat(rows, lengths)
        return [(self._buffers[0], places)] if len(self._buffers) == 1 else list(self._in_buffers(places))

    def pieces(self, row: int, start: int, stop: int) -> list[Piece]:
        """Return the steps of a row from `start` up to `stop` as pieces of buffers."""
        bounds = itertools.pairwise([*(buffer.first for buffer in self._buffers), self._num_steps])
        return [
            Piece(buffer, row, max(start, first) - first, min(stop, end) - first)
            for buffer, (first, end) in zip(self._buffers, bounds, strict=True)
            if max(start, first) < min(stop, end)
        ]

    def has_stacks(self, key: ColumnKey) -> bool:
        """Return whether a column has stacks of frames in any buffer; `values` has all other columns."""
        return any(isinstance(buffer.columns[key], StackColumn) for buffer in self._buffers)

    def values(self, key: ColumnKey, places: Places) -> list[tuple[np.ndarray, NDArray[np.int64]]]:
        """Return where the values at the places are: arrays (all places, *shape), and indices, one behind the other."""
        return [(buffer.steps[key].reshape(-1, *key[1].shape), local) for buffer, local in places]

    def infos(self, key: InfoKey, places: Places) -> tuple[np.ndarray, NDArray[np.bool_]]:
        """Return the values of an info at the places, and a mask of the places that have one; other values are 0."""
        parts = [buffer.info(key, local) for buffer, local in places]
        values, masks = zip(*parts, strict=True)
        return (values[0], masks[0]) if len(parts) == 1 else (np.concatenate(values), np.concatenate(masks))

    def _in_buffers(self, places: NDArray[np.int64]) -> Iterator[tuple[_StepBuffer, NDArray[np.int64]]]:
        """Yield runs of places that are in one buffer, as indices in it."""
        firsts = np.array([buffer.first for buffer in self._buffers]) * self._stride
        numbers = np.searchsorted(firsts, places, "right") - 1
        for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(numbers)) + 1):
            number = int(numbers[run[0]]) if len(run) else 0
            yield self._buffers[number], places[run] - firsts[number]

    @override
    def _make_room(self) -> None:
        step = self._buffers[-1].first + self._position
        if step < self._num_steps:
            self._keep(self._buffers[-1], self._position)
            self._add_buffer(step)

    @override
    def _add_column(self, key: ColumnKey, num_steps: int) -> np.ndarray:
        return self._buffers[-1].set_steps(key, np.empty((num_steps, self._stride, *key[1].shape), key[1].dtype))

    @override
    def _count_bytes(self) -> None:
        """Count a step's bytes, with infos and their masks."""
        num_info_bytes = sum(key.num_bytes + 1 for key in self.info_keys)
        self.step_bytes = bytes_of(self.keys, self._stack_keys) + num_info_bytes

    def _add_buffer(self, first: int) -> None:
        num_steps = min(self._num_fitting(), self._num_steps - first)
        self._buffers.append(_StepBuffer({}, first, (num_steps, self._stride), self._num_rows, {}, {}))
        self._write_to(self._buffers[-1], num_steps)


@dataclass(eq=False, slots=True)
class _StepBuffer(ColumnBuffer):
    """A column buffer whose arrays have the steps first, so that all rows write a step side by side.

    Attributes:
        columns: stacks, and views (M, steps, *shape) of `steps`.
        first: number of its first step.
        shape: number of steps, and M with unused rows.
        num_rows: M.
        steps: (*shape of the buffer, *shape) each.
        infos: for each info its values (*shape of the buffer, *shape), and the mask of present values.
    """

    first: int
    shape: tuple[int, int]
    num_rows: int
    steps: dict[ColumnKey, np.ndarray]
    infos: dict[InfoKey, tuple[np.ndarray, NDArray[np.bool_]]]

    def set_steps(self, key: ColumnKey, steps: np.ndarray) -> np.ndarray:
        """Set the array of a column, and return its view."""
        self.steps[key] = steps
        column = self.columns[key] = steps[:, : self.num_rows].swapaxes(0, 1)
        return column

    def write_info(self, key: InfoKey, step: int, values: np.ndarray, rows: NDArray[np.bool_]) -> None:
        if key not in self.infos:
            self.infos[key] = np.empty((*self.shape, *key.shape), key.dtype), np.zeros(self.shape, np.bool_)
        column, mask = (part[step, : self.num_rows] for part in self.infos[key])
        column[rows] = values[rows]
        mask[rows] = True

    def info(self, key: InfoKey, places: NDArray[np.int64]) -> tuple[np.ndarray, NDArray[np.bool_]]:
        """Return the values of an info at places in the buffer, and the mask of present values."""
        if key not in self.infos:
            return np.zeros((len(places), *key.shape), key.dtype), np.zeros(len(places), np.bool_)
        column, mask = (part.reshape(-1, *part.shape[2:]) for part in self.infos[key])
        present = mask[places]
        if present.all():
            return column[places], present
        values = np.zeros((len(places), *key.shape), key.dtype)
        values[present] = column[places[present]]
        return values, present

    def num_bytes(self, num_steps: int) -> int:
        arrays = [*self.steps.values(), *(part for info in self.infos.values() for part in info)]
        stacks = [column for column in self.columns.values() if isinstance(column, StackColumn)]
        num_bytes = sum(column.first_steps(num_steps).nbytes for column in stacks)
        return num_bytes + sum(array[:num_steps].nbytes for array in arrays)

    def move(self, num_steps: int, write: Callable[[np.ndarray], np.ndarray]) -> None:
        for key, column in self.columns.items():
            if isinstance(column, StackColumn):
                self.columns[key] = column.first_steps(num_steps).moved(write)
            else:
                self.set_steps(key, write(self.steps[key][:num_steps]))
        for info, (values, mask) in self.infos.items():
            self.infos[info] = write(values[:num_steps]), write(mask[:num_steps])


Places = Sequence[tuple[_StepBuffer, "NDArray[np.int64]"]]
"""Places of steps: buffers, each with the indices of the steps in it, one behind the other."""
