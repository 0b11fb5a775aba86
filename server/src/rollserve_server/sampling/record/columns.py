"""Column buffers: written step by step for all rows, read in pieces; of stacks of frames, each frame once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.sampling.record.infos import InfoKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = [
    "MAX_BUFFER_BYTES",
    "MIN_BUFFER_STEPS",
    "ColumnBuffer",
    "ColumnKey",
    "ColumnWriter",
    "Piece",
    "StackColumn",
    "bytes_of",
    "copy_pieces",
]

MAX_BUFFER_BYTES = 30 << 20
"""Upper bound for a buffer: two fit into the arenas of 64 MiB, less a little, that glibc allocates for threads."""

MIN_BUFFER_STEPS = 4
"""Number of steps that a buffer has room for, however large they are."""

_MIN_BYTES = 1 << 10
"""Size of an observation below which frames are not looked for: the gain is not worth the time."""

_MIN_COMPARED = 16
"""Number of observations that are compared with the ones before them, before a column may count as no stacks."""

ColumnKey = tuple[str, InfoKey]
"""Key of a column: its group, and its name, dtype and shape.

The groups are names of columns in the table of `rollserve_wire.columns`, and `states`, the recurrent states before each
step.
"""


@dataclass(frozen=True, eq=False)
class StackColumn:
    """Stacks of K frames, where consecutive stacks of a row share their frames.

    The frames of a row lie one behind the other: a stack is K of them.

    Attributes:
        positions: (M, steps) int32, the position of each stack's first frame among its row's frames.
        frames: (M, frames, *F).
        num_frames: K.
    """

    positions: NDArray[np.int32]
    frames: np.ndarray
    num_frames: int

    @classmethod
    def empty(cls, key: InfoKey, num_rows: int, num_steps: int) -> StackColumn:
        """Return a column for `num_steps` stacks, if at most a few per row do not continue the ones before them."""
        num_frames, *shape = key.shape
        positions = np.empty((num_rows, num_steps), np.int32)
        return cls(positions, np.empty((num_rows, num_steps + 3 * num_frames, *shape), key.dtype), num_frames)

    @classmethod
    def copied(cls, runs: Sequence[tuple[StackColumn, int, int, int]]) -> StackColumn:
        """Return a column of one row, with copies of runs of steps: column, row, first step, and last step plus 1."""
        positions, frames, num_before = [], [], 0
        for column, row, start, stop in runs:
            places = column.positions[row, start:stop]
            first, last = int(places[0]), int(places[-1]) + column.num_frames
            positions.append(places + np.int32(num_before - first))
            frames.append(column.frames[row, first:last])
            num_before += last - first
        return cls(np.concatenate(positions)[np.newaxis], np.concatenate(frames)[np.newaxis], runs[0][0].num_frames)

    @property
    def nbytes(self) -> int:
        """Bytes of all positions and frames."""
        return self.positions.nbytes + self.frames.nbytes

    def first_steps(self, num_steps: int) -> StackColumn:
        """Return the first `num_steps` steps, which are written, as views."""
        num_frames = int(self.positions[:, num_steps - 1].max()) + self.num_frames
        return StackColumn(self.positions[:, :num_steps], self.frames[:, :num_frames], self.num_frames)

    def moved(self, write: Callable[[np.ndarray], np.ndarray]) -> StackColumn:
        """Return a column with the arrays that `write` returns for this one's."""
        return StackColumn(write(self.positions), write(self.frames), self.num_frames)

    def num_bytes_of(self, row: int, start: int, stop: int) -> int:
        """Return the bytes of the frames of a row's steps from `start` up to `stop`."""
        first, last = self.positions[row, start], self.positions[row, stop - 1]
        return (int(last - first) + self.num_frames) * self.frames[0, :1].nbytes

    def runs(self, row: int, start: int, stop: int) -> list[np.ndarray]:
        """Return the stacks of a row's steps from `start` up to `stop`, as read-only views (steps, K, *F).

        Within a view, each stack begins with the frames of the one before it, without the oldest.
        """
        positions = self.positions[row, start:stop]
        stacks = self._stacks(row)
        breaks = np.flatnonzero(positions[1:] - positions[:-1] != 1) + 1
        return [stacks[run[0] : run[0] + len(run)] for run in np.split(positions, breaks)]

    def step(self, number: int) -> np.ndarray:
        """Return copies of the stacks of all rows in a step, (M, K, *F)."""
        return np.stack([self._stacks(row)[first] for row, first in enumerate(self.positions[:, number].tolist())])

    def _stacks(self, row: int) -> np.ndarray:
        """Return all stacks of consecutive frames of a row, (frames - K + 1, K, *F)."""
        frames = self.frames[row]
        shape = (len(frames) - self.num_frames + 1, self.num_frames, *frames.shape[1:])
        strides = (frames.strides[0], *frames.strides)
        return np.lib.stride_tricks.as_strided(frames, shape, strides, writeable=False)


_Column = np.ndarray | StackColumn
"""Column for M rows and a number of steps: an array (M, steps, *shape), or stacks of frames."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class ColumnBuffer:
    """Columns for M rows and a number of steps."""

    columns: dict[ColumnKey, _Column]

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


def copy_pieces(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Copy pieces of one buffer into a new buffer that holds nothing else, and yield the copies in the same order."""
    columns: dict[ColumnKey, _Column] = {}
    for key, column in pieces[0].buffer.columns.items():
        if isinstance(column, StackColumn):
            columns[key] = StackColumn.copied([(column, row, start, stop) for _, row, start, stop in pieces])
        else:
            columns[key] = np.concatenate([column[row, start:stop] for _, row, start, stop in pieces])[np.newaxis]
    buffer, stop = ColumnBuffer(columns), 0
    for piece in pieces:
        start, stop = stop, stop + piece.num_steps
        yield Piece(buffer, 0, start, stop)


def _first_steps(column: _Column, num_steps: int) -> _Column:
    return column.first_steps(num_steps) if isinstance(column, StackColumn) else column[:, :num_steps]


def _stack_keys(keys: Iterable[ColumnKey]) -> frozenset[ColumnKey]:
    """Return the keys of columns that may be stacks of frames."""
    return frozenset((group, key) for group, key in keys if group == "observations" and _may_be_stack(key))


def bytes_of(keys: Iterable[ColumnKey], stacks: Collection[ColumnKey] = ()) -> int:
    """Return the bytes of a row's step in these columns; `stacks` are the columns of stacks that continue."""
    return sum(key[1].num_bytes // (key[1].shape[0] if key in stacks else 1) for key in keys)


class ColumnWriter(ABC):
    """Writes steps of M rows, one after the other, into column buffers. Subclasses make the buffers.

    Attributes:
        keys: keys of the columns that every step has.
        step_bytes: bytes that a row's step takes, if stacks continue.
    """

    step_bytes: int

    def __init__(
        self, num_rows: int, keys: Iterable[ColumnKey], buffer_bytes: int, keep: Callable[[ColumnBuffer, int], object]
    ) -> None:
        """Begin without a buffer.

        Args:
            num_rows: M.
            keys: columns that every step has.
            buffer_bytes: upper bound for a buffer's size, if a few steps fit into it.
            keep: called with each buffer that will not be written any more, and the number of its steps.
        """
        self.keys = tuple(keys)
        self._num_rows, self._buffer_bytes, self._keep = num_rows, buffer_bytes, keep
        self._stack_keys = _stack_keys(self.keys)
        # For each row: whether its episode or fragment begins with the current step, which a step with stacks resets;
        # and whether its steps will be read.
        self._begins, self._in_use = np.zeros((2, num_rows), np.bool_)
        # The number of steps that the buffer has room for, if stacks continue, and of the current one.
        self._room = self._position = 0
        self._buffer: ColumnBuffer
        self._stacks: dict[ColumnKey, _StackRecorder]
        # What the columns of each group are written to: a step of all rows by one assignment.
        self._targets: dict[str, list[np.ndarray | _StackRecorder]]

    def write(self, group: str, values: Iterable[np.ndarray]) -> None:
        """Write the current step of every row, (M, *shape) for each column of the group."""
        for target, value in zip(self._targets.get(group, ()), values, strict=True):
            target[self._position] = value

    def written(self, group: str) -> list[np.ndarray]:
        """Return what was written as the current step of every row, (M, *shape) for each column of the group."""
        return [target[self._position] for target in self._targets.get(group, ())]

    def advance(self) -> None:
        """Go on to the next step. What ends with the current step has to be finished before."""
        self._position += 1
        if self._stacks:
            self._begins[:] = False
            for stacks in self._stacks.values():
                stacks.advance()
            for key in [key for key, stacks in self._stacks.items() if stacks.are_no_stacks]:
                self._give_up(key)
        if self._position >= self._room or (self._stacks and any(stacks.is_full for stacks in self._stacks.values())):
            self._make_room()

    @abstractmethod
    def _make_room(self) -> None:
        """Make room for the next step, or more, in this buffer or in another one."""

    @abstractmethod
    def _add_column(self, key: ColumnKey, num_steps: int) -> np.ndarray:
        """Give the buffer an array for a column, and return it as (M, steps, *shape)."""

    @abstractmethod
    def _count_bytes(self) -> None:
        """Set `step_bytes`."""

    def _num_fitting(self) -> int:
        """Return the number of steps of all rows that a buffer has room for."""
        return max(MIN_BUFFER_STEPS, self._buffer_bytes // max(self.step_bytes * self._num_rows, 1))

    def _write_to(self, buffer: ColumnBuffer, num_steps: int) -> None:
        """Overwrite a buffer with room for `num_steps` steps, from its first one on; give it the columns it lacks."""
        self._buffer, self._room, self._position = buffer, num_steps, 0
        for key in self.keys:
            if key not in buffer.columns and key in self._stack_keys:
                buffer.columns[key] = StackColumn.empty(key[1], self._num_rows, num_steps)
            elif key not in buffer.columns:
                self._add_column(key, num_steps)
        self._stacks = {
            key: _StackRecorder(column, self._begins, self._in_use)
            for key, column in buffer.columns.items()
            if isinstance(column, StackColumn)
        }
        self._set_targets()

    def _set_targets(self) -> None:
        self._targets = {}
        for key, column in self._buffer.columns.items():
            target = self._stacks[key] if isinstance(column, StackColumn) else column.swapaxes(0, 1)
            self._targets.setdefault(key[0], []).append(target)

    def _give_up(self, key: ColumnKey) -> None:
        """Record a column's observations whole from now on, also those in the buffer: they are no stacks."""
        self._stack_keys -= {key}
        self._count_bytes()
        self._room = max(min(self._room, self._num_fitting()), self._position)
        stacks = self._stacks.pop(key)
        column = self._add_column(key, self._room)
        for step in range(self._position):
            column[:, step] = stacks[step]
        self._set_targets()


class _StackRecorder:
    """Records observations of M rows in a StackColumn, step by step for all rows.

    A step is written by assignment, as to an array (steps, M, K, *F), and may be written again until `advance`. Frames
    are left out only after a comparison: each byte that is left out equals the byte that stands for it.

    Attributes:
        column: what is recorded.
    """

    def __init__(self, column: StackColumn, begins: NDArray[np.bool_], in_use: NDArray[np.bool_]) -> None:
        """Begin with the first step.

        Args:
            column: the column, whose contents are overwritten.
            begins: (M,), rows whose observation is the first of an episode or fragment, and not worth a comparison.
            in_use: (M,), rows whose observations will be read.
        """
        self.column = column
        self._begins, self._in_use = begins, in_use
        frames, self._num_older = column.frames, column.num_frames - 1
        self._num_rows, self._max_frames = len(frames), int(frames.shape[1])
        # Frames as bytes, to compare bits.
        self._bytes = frames.reshape(self._num_rows, self._max_frames, -1).view(np.uint8)
        self._rows = np.arange(self._num_rows)
        # For each row: the number of its frames before the current step, and with it.
        self._stops, self._next_stops = np.zeros((2, self._num_rows), np.int64)
        self._before = np.empty((self._num_rows, self._num_older, self._bytes.shape[2]), np.uint8)
        # Observations that might have continued the ones before them, and how many of them have not.
        self._num_compared = self._num_broken = 0

    @property
    def is_full(self) -> bool:
        """Whether another step may have more frames than the column has room for."""
        return int(self._stops.max()) + self.column.num_frames > self._max_frames

    @property
    def are_no_stacks(self) -> bool:
        """Whether most observations have not continued the ones before them."""
        return 2 * self._num_broken > self._num_compared >= _MIN_COMPARED

    def __getitem__(self, step: int) -> np.ndarray:
        """Return copies of the stacks of all rows in a step, (M, K, *F)."""
        return self.column.step(step)

    def __setitem__(self, step: int, values: np.ndarray) -> None:
        """Write the observations (M, K, *F) of all rows in the current step."""
        values = np.ascontiguousarray(values, self.column.frames.dtype)
        stacks = values.reshape(self._num_rows, self._num_older + 1, -1).view(np.uint8)
        whole = self._whole(stacks) if step else np.ones(self._num_rows, np.bool_)
        newest = self._stops + self._num_older * whole
        self._bytes[self._rows, newest] = stacks[:, -1]
        for row in np.flatnonzero(whole).tolist():
            self._bytes[row, newest[row] - self._num_older : newest[row]] = stacks[row, :-1]
        self.column.positions[:, step] = newest - self._num_older
        self._next_stops = newest + 1

    def advance(self) -> None:
        """Go on to the next step. Until then, the current one may be written again."""
        self._stops = self._next_stops

    def _whole(self, stacks: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the rows (M,) whose observations are recorded with all frames."""
        compared = self._in_use & ~self._begins
        newest = self._rows * self._max_frames + self._stops
        places = newest[:, np.newaxis] - np.arange(self._num_older, 0, -1)
        # With a mode, because numpy otherwise copies twice.
        self._bytes.reshape(-1, self._bytes.shape[2]).take(places, axis=0, out=self._before, mode="clip")
        continues: NDArray[np.bool_] = (self._before == stacks[:, :-1]).reshape(self._num_rows, -1).all(axis=1)
        self._num_compared += int(np.count_nonzero(compared))
        self._num_broken += int(np.count_nonzero(compared & ~continues))
        whole: NDArray[np.bool_] = self._in_use & (self._begins | ~continues)
        return whole


def _may_be_stack(key: InfoKey) -> bool:
    """Return whether observations of this shape may be stacks of frames, and are large enough to look.

    Vectors are no stacks of numbers: to look at each number as a frame takes longer than to record and send it.
    """
    return len(key.shape) > 1 and key.shape[0] > 1 and key.num_bytes >= _MIN_BYTES
