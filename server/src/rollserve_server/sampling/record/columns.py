"""Column buffers that rows write into step by step, and pieces of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollserve_server.sampling.record.infos import InfoKey
from rollserve_server.sampling.record.stacks import StackColumn, may_be_stack

__all__ = [
    "MAX_BUFFER_BYTES",
    "MIN_BUFFER_STEPS",
    "Column",
    "ColumnBuffer",
    "ColumnKey",
    "Piece",
    "bytes_of",
    "copy_pieces",
    "stack_keys",
]

MAX_BUFFER_BYTES = 30 << 20
"""Upper bound for a buffer: two fit into the arenas of 64 MiB, less a little, that glibc allocates for threads."""

MIN_BUFFER_STEPS = 4
"""Number of steps that a buffer has room for, however large they are."""

ColumnKey = tuple[str, InfoKey]
"""Key of a column: its group, and its name, dtype and shape.

The groups are `observations`, `actions`, `rewards`, `agent_infos`, `states` (recurrent states before each step),
`env_infos` and `episode_infos`, and where transforms change them, `environment_actions` and `raw_rewards`.
"""

Column = np.ndarray | StackColumn
"""Column for M rows and a number of steps: an array (M, steps, *shape), or stacks of frames."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class ColumnBuffer:
    """Columns for M rows and a number of steps."""

    columns: dict[ColumnKey, Column]

    def num_bytes(self, num_steps: int) -> int:
        """Return the bytes that the first `num_steps` steps take, which are written."""
        columns = self.columns.values()
        return sum(_first_steps(column, num_steps).nbytes for column in columns)

    def move(self, num_steps: int, write: Callable[[np.ndarray], np.ndarray]) -> None:
        """Keep the first `num_steps` steps only, in arrays that `write` returns for the present ones."""
        for key, column in self.columns.items():
            steps = _first_steps(column, num_steps)
            self.columns[key] = steps.moved(write) if isinstance(steps, StackColumn) else write(steps)


class Piece(NamedTuple):
    """Consecutive steps of one row in a column buffer."""

    buffer: ColumnBuffer
    row: int
    start: int
    stop: int

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    def arrays(self, key: ColumnKey) -> Sequence[np.ndarray]:
        """Return a column's values as views (steps, *shape), one behind the other; see `StackColumn.runs`."""
        column = self.buffer.columns[key]
        if isinstance(column, StackColumn):
            return column.runs(self.row, self.start, self.stop)
        return (column[self.row, self.start : self.stop],)

    def has_stacks(self, key: ColumnKey) -> bool:
        """Return whether a column has stacks of frames."""
        return isinstance(self.buffer.columns[key], StackColumn)

    def num_bytes_of(self, key: ColumnKey) -> int:
        """Return the bytes that a column's values take."""
        column = self.buffer.columns[key]
        if isinstance(column, StackColumn):
            return column.num_bytes_of(self.row, self.start, self.stop)
        return column[self.row, self.start : self.stop].nbytes

    def first(self, key: ColumnKey) -> np.ndarray:
        """Return a column's value (*shape) of the first step."""
        (values,) = self._replace(stop=self.start + 1).arrays(key)
        value: np.ndarray = values[0]
        return value


def stack_keys(keys: Iterable[ColumnKey]) -> frozenset[ColumnKey]:
    """Return the keys of columns that may be stacks of frames."""
    return frozenset((group, key) for group, key in keys if group == "observations" and may_be_stack(key))


def bytes_of(keys: Iterable[ColumnKey], stacks: Collection[ColumnKey]) -> int:
    """Return the bytes of a row's step in these columns, of which `stacks` are stacks that continue."""
    shapes = [(key.dtype, key.shape[1:] if (group, key) in stacks else key.shape) for group, key in keys]
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes)


def _first_steps(column: Column, num_steps: int) -> Column:
    return column.first_steps(num_steps) if isinstance(column, StackColumn) else column[:, :num_steps]


def copy_pieces(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Copy pieces of one buffer into a new buffer that holds nothing else, and yield the copies in the same order."""
    columns: dict[ColumnKey, Column] = {}
    for key, column in pieces[0].buffer.columns.items():
        if isinstance(column, StackColumn):
            columns[key] = StackColumn.copied([(column, row, start, stop) for _, row, start, stop in pieces])
        else:
            columns[key] = np.concatenate([column[row, start:stop] for _, row, start, stop in pieces])[np.newaxis]
    buffer, stop = ColumnBuffer(columns), 0
    for piece in pieces:
        start, stop = stop, stop + piece.num_steps
        yield Piece(buffer, 0, start, stop)
