"""A list of the frames of segments' observations, without the frames that consecutive observations share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["FrameLayout", "num_stacked_frames", "same_rows"]

_MIN_STACK_BYTES = 1 << 10  # smaller observations are not worth the search for frames, as in the server
_COMPARED_BYTES = 8 << 20


class FrameLayout:
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
