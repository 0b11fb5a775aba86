"""Observations before and after each step, as references to frames that are kept once.

An observation that is a stack of K frames, and shares K - 1 of them with the one before, is kept as its newest frame.
Any other observation counts as a stack of one frame: what is after a step and before the next is kept once, too. Frames
are left out only after a comparison: each byte that is left out equals the byte that stands for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve.replay.frame_layout import FrameLayout
from rollserve.replay.frame_pool import FramePool

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ObservationColumn"]


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
        frame_shape = self._row_shape[1:] if self._num_frames > 1 else self._row_shape
        stacks, last_stacks = (
            array.reshape(len(array), self._num_frames, *frame_shape) for array in (observations, last_observations)
        )
        layout = FrameLayout(stacks, last_stacks, lengths)
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
