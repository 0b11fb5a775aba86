"""Observations before and after each step, as references to frames that are kept once.

An observation that is a stack of K frames, and shares K - 1 of them with the one before, is kept as its newest frame.
Any other observation counts as a stack of one frame: what is after a step and before the next is kept once, too. Frames
are left out only after a comparison: each byte that is left out equals the byte that stands for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["ObservationColumn", "num_stacked_frames", "same_rows"]

_MIN_STACK_BYTES = 1 << 10  # smaller observations are not worth the search for frames, as in the server
_COMPARED_BYTES = 8 << 20
_COPIED_BYTES = 8 << 20  # frames are copied in pieces, because each piece is copied twice


class ObservationColumn:
    """Observations before and after the steps in the slots of a ring, of one leaf."""

    def __init__(self, num_slots: int, row_shape: tuple[int, ...], dtype: np.dtype, num_frames: int) -> None:
        """Begin without steps.

        Args:
            num_slots: number of steps that the ring holds.
            row_shape: shape of an observation.
            dtype: dtype of an observation.
            num_frames: K if observations are stacks of K frames, (K, *F); otherwise 1.
        """
        self._row_shape, self._num_frames = row_shape, num_frames
        self._pool = _FramePool(row_shape[1:] if num_frames > 1 else row_shape, dtype)
        # Frames of the observations before each step, and behind them of the observations after it.
        self._numbers = np.zeros((num_slots, 2 * num_frames), np.int64)

    @property
    def kind(self) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape of an observation."""
        return self._pool.dtype, self._row_shape

    @property
    def nbytes(self) -> int:
        """Bytes of all frames and references."""
        return self._pool.nbytes + self._numbers.nbytes

    def before(self, slots: NDArray[np.int64]) -> np.ndarray:
        """Return copies of the observations before steps, (S, *O)."""
        return self._pool[self._numbers[slots, : self._num_frames]].reshape(len(slots), *self._row_shape)

    def after(self, slots: NDArray[np.int64]) -> np.ndarray:
        """Return copies of the observations after steps, (S, *O)."""
        return self._pool[self._numbers[slots, self._num_frames :]].reshape(len(slots), *self._row_shape)

    def drop(self, slots: NDArray[np.int64], oldest_step: int) -> None:
        """Free what only the steps in some slots show.

        Args:
            slots: slots of the steps that will be overwritten.
            oldest_step: number of the oldest step that is kept.
        """
        self._pool.drop(self._numbers[slots], oldest_step)

    def add(
        self,
        observations: np.ndarray,
        last_observations: np.ndarray,
        lengths: NDArray[np.int64],
        first_step: int,
        predecessors: NDArray[np.int64],
    ) -> None:
        """Add the steps of segments.

        Args:
            observations: (T, *O).
            last_observations: (N, *O).
            lengths: (N,).
            first_step: number of the first step; its slot is this number modulo the number of slots.
            predecessors: (N,), slot of the step that is followed by each segment, whose observation after it is the
                segment's first; -1 for none.
        """
        frame_shape = self._row_shape[1:] if self._num_frames > 1 else self._row_shape
        stacks, last_stacks = (
            array.reshape(len(array), self._num_frames, *frame_shape) for array in (observations, last_observations)
        )
        layout = _FrameLayout(stacks, last_stacks, lengths)
        linked = np.flatnonzero(predecessors >= 0)
        is_new = layout.is_new.copy()
        is_new[layout.firsts[linked]] = False

        new = np.flatnonzero(is_new)
        taken = self._pool.take(len(new))
        for chosen, array, indices in layout.frames(new):
            self._pool.write(taken[chosen], array, *indices)
        # A frame that is not new is the one before it, unless its segment has a predecessor.
        numbers = np.empty(len(is_new), np.int64)
        numbers[new] = taken
        numbers = numbers[np.maximum.accumulate(np.where(is_new, np.arange(len(is_new)), 0))]
        numbers[layout.firsts[linked]] = self._numbers[predecessors[linked], self._num_frames :]

        shown = numbers[np.concatenate([layout.before, layout.after], axis=1)]
        steps = first_step + np.arange(len(observations))
        self._numbers[steps % len(self._numbers)] = shown
        self._pool.show(shown, steps)


class _FrameLayout:
    """A list of F frames, in which each observation of a segment is K frames in a row.

    The observations of a segment, with its last one, follow each other. An observation that continues the one before,
    by K - 1 frames, adds its newest frame to the list; any other one adds all its frames.

    Attributes:
        firsts: (N, K), places of the first observation of each segment in the list.
        before: (T, K), places of the observation before each step.
        after: (T, K), places of the observation after each step.
        is_new: (F,), whether a frame differs from the one before it in the same observation. A frame that continues an
            observation is new, whatever its content.
    """

    def __init__(self, stacks: np.ndarray, last_stacks: np.ndarray, lengths: NDArray[np.int64]) -> None:
        """Find the frames of all observations.

        Args:
            stacks: (T, K, *F), observations before the steps.
            last_stacks: (N, K, *F), observations after the segments.
            lengths: (N,), number of steps of each segment.
        """
        self._stacks, self._last_stacks = stacks, last_stacks
        num_steps, num_frames = stacks.shape[:2]
        last_rows = np.cumsum(lengths) + np.arange(len(lengths))
        step_rows = np.arange(num_steps) + np.repeat(np.arange(len(lengths)), lengths)
        continues = np.ones(num_steps + len(lengths), np.bool_)
        continues[step_rows[1:]] = _continue(stacks[:-1], stacks[1:])
        continues[last_rows] = _continue(stacks[np.cumsum(lengths) - 1], last_stacks)
        continues[last_rows - lengths] = False

        counts = np.where(continues, 1, num_frames)
        stops = np.cumsum(counts)
        places = stops[:, np.newaxis] + np.arange(-num_frames, 0)
        self.firsts = places[last_rows - lengths]
        self.before, self.after = places[step_rows], places[step_rows + 1]

        # Where each frame of the list is: whether in `last_stacks`, in which row, and at which position of the stack.
        rows = np.repeat(np.arange(len(counts)), counts)
        self._positions = np.arange(len(rows)) - stops[rows] + num_frames
        sources = np.empty(len(counts), np.int64)
        sources[step_rows], sources[last_rows] = np.arange(num_steps), np.arange(len(lengths))
        self._sources = sources[rows]
        is_last = np.zeros(len(counts), np.bool_)
        is_last[last_rows] = True
        self._is_last = is_last[rows]

        self.is_new = np.ones(len(rows), np.bool_)
        candidates = np.flatnonzero(~continues[rows] & (self._positions > 0))
        for array, chosen in self._by_array(candidates):
            at, position = self._sources[candidates[chosen]], self._positions[candidates[chosen]]
            self.is_new[candidates[chosen]] = ~same_rows(array[at, position], array[at, position - 1])

    def frames(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.bool_], np.ndarray, tuple[np.ndarray, ...]]]:
        """Yield where frames are, by the array that holds them: which frames, the array, and indices into it."""
        for array, chosen in self._by_array(places):
            yield chosen, array, (self._sources[places[chosen]], self._positions[places[chosen]])

    def _by_array(self, places: NDArray[np.int64]) -> tuple[tuple[np.ndarray, NDArray[np.bool_]], ...]:
        """Return both arrays of observations, and which frames each of them holds."""
        return (self._stacks, ~self._is_last[places]), (self._last_stacks, self._is_last[places])


def num_stacked_frames(observations: np.ndarray, last_observations: np.ndarray, lengths: NDArray[np.int64]) -> int:
    """Return K if most observations of segments continue the ones before as stacks of K frames, otherwise 1.

    Args:
        observations: (T, *O).
        last_observations: (N, *O).
        lengths: (N,).
    """
    shape = observations.shape[1:]
    if len(shape) < 2 or shape[0] < 2 or observations.itemsize * math.prod(shape) < _MIN_STACK_BYTES:
        return 1
    ends = np.cumsum(lengths) - 1
    continues = np.append(_continue(observations[:-1], observations[1:]), True)
    continues[ends] = _continue(observations[ends], last_observations)
    return shape[0] if 2 * np.count_nonzero(continues) > len(continues) else 1


def same_rows(first: np.ndarray, second: np.ndarray) -> NDArray[np.bool_]:
    """Return whether the rows of two arrays of one shape have the same bytes, (M,)."""
    row_bytes = first.itemsize * math.prod(first.shape[1:])
    ones, others = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), row_bytes)
        for array in (first, second)
    )
    same: NDArray[np.bool_] = (ones == others).all(axis=1)
    return same


def _continue(stacks: np.ndarray, following: np.ndarray) -> NDArray[np.bool_]:
    """Return whether each stack is followed by one that begins with its frames, without the oldest, (M,)."""
    older, newer = stacks[:, 1:], following[:, :-1]
    if not older.size or (
        stacks.ctypes.data + stacks.strides[1] == following.ctypes.data and stacks.strides == following.strides
    ):
        # One frame each; or two views in which consecutive stacks are the same memory.
        return np.ones(len(stacks), np.bool_)
    size = max(1, _COMPARED_BYTES // older[:1].nbytes)
    pieces = range(0, len(stacks), size)
    return np.concatenate([same_rows(older[start : start + size], newer[start : start + size]) for start in pieces])


class _FramePool:
    """Frames, each with a number, and with the newest step that shows it.

    The pool grows by an eighth more than it needs, and never shrinks.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._frames = np.empty((0, *shape), dtype)
        self._newest_steps = np.empty(0, np.int64)
        self._free = np.empty(0, np.int64)  # the first `_num_free` are the numbers of free frames
        self._num_free = 0

    def __getitem__(self, numbers: NDArray[np.int64]) -> np.ndarray:
        """Return copies of frames, (*numbers.shape, *F)."""
        return self._frames[numbers]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the frames."""
        dtype: np.dtype = self._frames.dtype
        return dtype

    @property
    def num_used(self) -> int:
        """Number of frames that a step shows."""
        return len(self._frames) - self._num_free

    @property
    def nbytes(self) -> int:
        """Bytes of all frames, and of what is known about them."""
        return self._frames.nbytes + self._newest_steps.nbytes + self._free.nbytes

    def take(self, num_frames: int) -> NDArray[np.int64]:
        """Return the numbers of frames that were free."""
        if num_frames > self._num_free:
            self._grow(self.num_used + num_frames)
        self._num_free -= num_frames
        return self._free[self._num_free : self._num_free + num_frames].copy()

    def write(self, numbers: NDArray[np.int64], source: np.ndarray, *places: NDArray[np.int64]) -> None:
        """Copy the frames at some places of an array."""
        frame_bytes = self._frames[:1].nbytes
        size = max(1, _COPIED_BYTES // max(1, frame_bytes))
        for start in range(0, len(numbers), size):
            piece = slice(start, start + size)
            self._frames[numbers[piece]] = source[tuple(place[piece] for place in places)]

    def show(self, numbers: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
        """Record that each step shows some frames.

        Args:
            numbers: (T, M), frames that each step shows.
            steps: (T,), ascending numbers of steps, all newer than those before.
        """
        self._newest_steps[numbers] = steps[:, np.newaxis]  # in this order: the newest step is written last

    def drop(self, numbers: NDArray[np.int64], oldest_step: int) -> None:
        """Free frames that no step from the oldest one on shows.

        Args:
            numbers: frames that steps before the oldest one show.
            oldest_step: number of the oldest step that is kept.
        """
        dropped = np.unique(numbers[self._newest_steps[numbers] < oldest_step])
        self._free[self._num_free : self._num_free + len(dropped)] = dropped
        self._num_free += len(dropped)

    def _grow(self, num_frames: int) -> None:
        """Raise the number of frames to at least `num_frames`."""
        old, new = len(self._frames), num_frames + num_frames // 8
        self._frames = _resized(self._frames, new)
        self._newest_steps, self._free = _resized(self._newest_steps, new), _resized(self._free, new)
        self._free[self._num_free : self._num_free + new - old] = np.arange(new - 1, old - 1, -1)
        self._num_free += new - old


def _resized(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the array with more rows, without a copy if the system can move pages. Nothing else refers to it."""
    if not array.flags.owndata:  # as after unpickling
        array = array.copy()
    array.resize((num_rows, *array.shape[1:]), refcheck=False)
    return array
