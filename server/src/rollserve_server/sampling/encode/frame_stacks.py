"""Observations that are stacks of the last frames, told by their bytes, as frames that stand there once each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.fields import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.segments import Segment
    from rollserve_server.sampling.encode.tables import FragmentTable
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["frames_of", "frames_of_table", "may_be_stack"]

_LEAST_BYTES = 1 << 10
"""Of an observation: smaller ones are not worth the time."""

_NUM_COMPARED = 64
"""Of observations that have to be gathered, how many are at once."""


def may_be_stack(key: InfoKey) -> bool:
    """Whether observations of that shape may be stacks that are worth it."""
    return len(key.shape) > 0 and key.shape[0] > 1 and key.dtype.itemsize * math.prod(key.shape) >= _LEAST_BYTES


def frames_of(segments: Sequence[Segment], key: InfoKey, position: int) -> Rows | None:
    """The frames of the segments' observations, or None unless each has all of the frame before's but the first.

    Nothing is taken on trust: every byte that is left out has been compared to the one that it is equal to.

    Args:
        segments: whose observations.
        key: which leaf of the observation space.
        position: where it stands among the leaves.

    Returns:
        As in FrameStack: of each segment the first observation's frames, and the newest of each following one.
    """
    frames: list[np.ndarray] = []
    for segment in segments:
        last = np.asarray(segment.last_observations[position], key.dtype)[np.newaxis]
        columns = [
            buffer.columns["observations", key][row, start:stop] for buffer, row, start, stop in segment.pieces()
        ]
        columns.append(last)
        if not all(_overlap(columns)):
            return None
        frames += [columns[0][0], columns[0][1:, -1], *(column[:, -1] for column in columns[1:])]
    return Rows(frames, key.dtype, key.shape[1:])


def frames_of_table(table: FragmentTable, key: InfoKey, position: int) -> Rows | None:
    """As `frames_of`, of the fragments of a table."""
    column = _words(table.columns.column(("observations", key)))
    last = _words(np.asarray(table.last_observations[position], key.dtype))
    places, ends = table.places, np.cumsum(table.lengths)
    is_last = np.zeros(len(places), np.bool_)
    is_last[ends - 1] = True
    if not np.array_equal(column[places[ends - 1], 1:], last[:, :-1]):
        return None
    before = np.flatnonzero(~is_last)
    for start in range(0, len(before), _NUM_COMPARED):
        pair = before[start : start + _NUM_COMPARED]
        if not np.array_equal(column[places[pair], 1:], column[places[pair + 1], :-1]):
            return None
    num_frames = key.shape[0]
    frames = np.empty((len(places) + len(table) * num_frames, column.shape[2]), column.dtype)
    # Of each fragment: the first observation's frames, the newest of each following one, and of the last one.
    first = ends - table.lengths + np.arange(len(table)) * num_frames
    frames[first[:, np.newaxis] + np.arange(num_frames)] = column[places[ends - table.lengths]]
    is_first = np.zeros(len(places), np.bool_)
    is_first[ends - table.lengths] = True
    shift = np.repeat(np.arange(len(table)), table.lengths) * num_frames + num_frames - 1
    frames[(np.arange(len(places)) + shift)[~is_first]] = column[places[~is_first], -1]
    frames[ends + np.arange(1, len(table) + 1) * num_frames - 1] = last[:, -1]
    return Rows.of(frames.view(key.dtype).reshape(-1, *key.shape[1:]))


def _overlap(columns: Sequence[np.ndarray]) -> Iterator[bool]:
    """Whether each observation continues the one before it, in the order in which it is cheapest to find out."""
    before: NDArray[np.unsignedinteger] | None = None
    for column in columns:
        words = _words(column)
        if before is not None:
            yield np.array_equal(words[0, :-1], before[1:])
        yield np.array_equal(words[1:][:1, :-1], words[:-1][:1, 1:])
        yield np.array_equal(words[2:, :-1], words[1:-1, 1:])
        before = words[-1]


def _words(column: np.ndarray) -> NDArray[np.unsignedinteger]:
    """The frames of a column (T, K, *F) as (T, K, words), as wide as they can be: compared are bits, not numbers."""
    frames = np.ascontiguousarray(column).reshape(*column.shape[:2], -1)
    num_bytes = frames.shape[2] * frames.itemsize
    return frames.view(f"u{math.gcd(num_bytes, 8)}")
