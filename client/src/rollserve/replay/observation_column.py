"""Observations before and after each step, as references to frames that are kept once.

An observation that is a stack of K frames, and shares K - 1 of them with the one before, is kept as its newest frame.
Any other observation counts as a stack of one frame: what is after a step and before the next is kept once, too. Frames
are left out only after a comparison: each byte that is left out equals the byte that stands for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve.replay.frame_pool import FramePool

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ObservationColumn", "num_stacked_frames", "same_rows"]

_MIN_STACK_BYTES = 1 << 10  # smaller observations are not worth the search for frames, as in the server
_COMPARED_BYTES = 8 << 20


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
        self._pool = FramePool(row_shape[1:] if num_frames > 1 else row_shape, dtype)
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
        width, num_steps = self._num_frames, len(observations)
        stacks = observations.reshape(num_steps, width, *self._pool_shape)
        last_stacks = last_observations.reshape(len(lengths), width, *self._pool_shape)
        # One row for each observation, those of a segment with its last one behind each other.
        last_rows = np.cumsum(lengths) + np.arange(len(lengths))
        step_rows = np.arange(num_steps) + np.repeat(np.arange(len(lengths)), lengths)
        first_rows = last_rows - lengths
        continues = np.ones(num_steps + len(lengths), np.bool_)
        continues[step_rows[1:]] = _continue(stacks[:-1], stacks[1:])
        continues[last_rows] = _continue(stacks[np.cumsum(lengths) - 1], last_stacks)
        continues[first_rows] = False

        # The frames of all rows: the newest one of a row that continues the one before, otherwise all.
        counts = np.where(continues, 1, width)
        stops = np.cumsum(counts)
        rows = np.repeat(np.arange(len(counts)), counts)
        columns = np.arange(len(rows)) - stops[rows] + width
        sources = np.empty(len(counts), np.int64)  # of a row, in `stacks` or `last_stacks`
        sources[step_rows], sources[last_rows] = np.arange(num_steps), np.arange(len(lengths))
        is_last = np.zeros(len(counts), np.bool_)
        is_last[last_rows] = True

        is_new = np.ones(len(rows), np.bool_)
        for source, among in ((stacks, ~is_last), (last_stacks, is_last)):
            repeated = np.flatnonzero(~continues[rows] & (columns > 0) & among[rows])
            places = sources[rows[repeated]], columns[repeated]
            is_new[repeated] = ~same_rows(source[places], source[places[0], places[1] - 1])
        linked = np.flatnonzero(predecessors >= 0)
        linked_frames = stops[first_rows[linked], np.newaxis] - width + np.arange(width)
        is_new[linked_frames] = False

        taken = self._pool.take(int(np.count_nonzero(is_new)))
        new = np.flatnonzero(is_new)
        for source, among in ((stacks, ~is_last), (last_stacks, is_last)):
            chosen = among[rows[new]]
            self._pool.write(taken[chosen], source, sources[rows[new[chosen]]], columns[new[chosen]])
        # A frame that is not new is the one before it, unless its segment has a predecessor.
        numbers = np.empty(len(rows), np.int64)
        numbers[new] = taken
        numbers = numbers[np.maximum.accumulate(np.where(is_new, np.arange(len(rows)), 0))]
        numbers[linked_frames] = self._numbers[predecessors[linked], width:]

        before = stops[step_rows, np.newaxis] - width + np.arange(width)
        after = stops[step_rows + 1, np.newaxis] - width + np.arange(width)
        shown = numbers[np.concatenate([before, after], axis=1)]
        steps = first_step + np.arange(num_steps)
        self._numbers[steps % len(self._numbers)] = shown
        self._pool.show(shown, steps)

    @property
    def _pool_shape(self) -> tuple[int, ...]:
        return self._row_shape[1:] if self._num_frames > 1 else self._row_shape


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
