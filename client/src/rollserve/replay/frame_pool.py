"""Frames in memory that is used again once no step shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FramePool"]

_COPIED_BYTES = 8 << 20  # frames are copied in pieces, because each piece is copied twice


class FramePool:
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
