"""Observations that are stacks of the last frames, recognized by their bytes, as frames that are written once each."""

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

__all__ = ["frames_of_segments", "frames_of_table", "may_be_stack"]

_MIN_BYTES = 1 << 10
"""Size of an observation below which frames are not looked for: the gain is not worth the time."""

_NUM_COMPARED = 64
"""Number of observations that are gathered and compared at a time."""


def may_be_stack(key: InfoKey) -> bool:
    """Return whether observations of this shape may be stacks of frames, and are large enough to look."""
    return len(key.shape) > 0 and key.shape[0] > 1 and key.dtype.itemsize * math.prod(key.shape) >= _MIN_BYTES


def frames_of_segments(segments: Sequence[Segment], key: InfoKey, position: int) -> Rows | None:
    """Return the frames of the segments' observations.

    Every byte that is left out has been compared with the byte that replaces it.

    Args:
        segments: segments whose observations are examined.
        key: key of the observations' leaf.
        position: position of the leaf in the observation space.

    Returns:
        For each segment all frames of its first observation, and the newest frame of each following observation, as in
        `FrameStack`; None if any observation does not begin with the frames of the one before it, without the oldest.
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
    """Return the frames of the observations of a table's fragments; see `frames_of_segments`."""
    column = _words(table.columns.column(("observations", key)))
    last = _words(np.asarray(table.last_observations[position], key.dtype))
    if not _table_overlaps(table, column, last):
        return None
    places, ends, num_frames = table.places, np.cumsum(table.lengths), key.shape[0]
    frames = np.empty((len(places) + len(table) * num_frames, column.shape[2]), column.dtype)
    # For each fragment: all frames of its first observation, then the newest of each following one and of the last.
    first = ends - table.lengths + np.arange(len(table)) * num_frames
    frames[first[:, np.newaxis] + np.arange(num_frames)] = column[places[ends - table.lengths]]
    is_first = np.zeros(len(places), np.bool_)
    is_first[ends - table.lengths] = True
    shift = np.repeat(np.arange(len(table)), table.lengths) * num_frames + num_frames - 1
    frames[(np.arange(len(places)) + shift)[~is_first]] = column[places[~is_first], -1]
    frames[ends + np.arange(1, len(table) + 1) * num_frames - 1] = last[:, -1]
    return Rows.of(frames.view(key.dtype).reshape(-1, *key.shape[1:]))


def _table_overlaps(
    table: FragmentTable, column: NDArray[np.unsignedinteger], last: NDArray[np.unsignedinteger]
) -> bool:
    """Return whether each observation in a table begins with the frames of the one before it."""
    places, ends = table.places, np.cumsum(table.lengths)
    if not np.array_equal(column[places[ends - 1], 1:], last[:, :-1]):
        return False
    is_last = np.zeros(len(places), np.bool_)
    is_last[ends - 1] = True
    before = np.flatnonzero(~is_last)
    for start in range(0, len(before), _NUM_COMPARED):
        compared = before[start : start + _NUM_COMPARED]
        if not np.array_equal(column[places[compared], 1:], column[places[compared + 1], :-1]):
            return False
    return True


def _overlap(columns: Sequence[np.ndarray]) -> Iterator[bool]:
    """Yield whether observations begin with the frames of those before them, the cheapest comparisons first."""
    before: NDArray[np.unsignedinteger] | None = None
    for column in columns:
        words = _words(column)
        if before is not None:
            yield np.array_equal(words[0, :-1], before[1:])
        yield np.array_equal(words[1:][:1, :-1], words[:-1][:1, 1:])
        yield np.array_equal(words[2:, :-1], words[1:-1, 1:])
        before = words[-1]


def _words(column: np.ndarray) -> NDArray[np.unsignedinteger]:
    """Return the frames of a column (T, K, *F) as (T, K, words) of the widest fitting integers, to compare bits."""
    frames = np.ascontiguousarray(column).reshape(*column.shape[:2], -1)
    num_bytes = frames.shape[2] * frames.itemsize
    return frames.view(f"u{math.gcd(num_bytes, 8)}")
