"""Moments of columns, merged in an order that is a function of the data alone.

The moments of n rows of K numbers are one row of 1 + 2 K float64: n, the K means, and the K sums of squared deviations
from the mean (M2). They are merged by the formulas of Chan, Golub and LeVeque (Updating formulae and a pairwise
algorithm for computing sample variances, 1979), extended to any number of parts:

  n = sum of n[i];  mean = sum of n[i] mean[i] / n;  M2 = sum of M2[i] + sum of n[i] (mean[i] - mean)^2

Each segment is computed by itself, in parts that its length determines; segments are then merged in groups of a size
that K determines, and the groups one after the other. So the bits depend on the segments and their order, and on
nothing else, such as how segments came in messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

__all__ = ["OrderedMoments", "merged_moments", "segment_moments"]

_PART_ELEMENTS = 1 << 19
"""Elements that are converted to float64 at a time, 4 MiB, if a row has fewer."""
_GROUP_ELEMENTS = 1 << 19
"""Elements of the moments that are merged at a time."""
_MAX_GROUP = 1024


class OrderedMoments:
    """Moments merged in the order in which they are added, in groups of a fixed size."""

    def __init__(self, size: int) -> None:
        """Start without moments.

        Args:
            size: K.
        """
        self._group = np.empty((min(max(_GROUP_ELEMENTS // (1 + 2 * size), 1), _MAX_GROUP), 1 + 2 * size))
        self._num_waiting = 0
        self._total = np.zeros(1 + 2 * size)

    def add(self, rows: np.ndarray) -> None:
        """Add moments, (N, 1 + 2 K), which follow those before."""
        while len(rows):
            taken = rows[: len(self._group) - self._num_waiting]
            self._group[self._num_waiting : self._num_waiting + len(taken)] = taken
            self._num_waiting += len(taken)
            rows = rows[len(taken) :]
            if self._num_waiting == len(self._group):
                self._total, self._num_waiting = self.total(), 0

    def total(self) -> np.ndarray:
        """Return the moments of all that was added, (1 + 2 K,); zeros if nothing was."""
        if not self._num_waiting:
            return self._total
        group = merged_moments(self._group[: self._num_waiting])
        return merged_moments(np.stack([self._total, group])) if self._total[0] else group


@np.errstate(all="ignore")  # of numbers that are not finite
def merged_moments(rows: np.ndarray) -> np.ndarray:
    """Return the moments of all parts together, (1 + 2 K,).

    Args:
        rows: (N, 1 + 2 K), the moments of at least one part, each of at least one row.
    """
    size = rows.shape[1] // 2
    counts, means, squares = rows[:, :1], rows[:, 1 : 1 + size], rows[:, 1 + size :]
    count = counts.sum()
    # Differences from the first mean, so that the mean of equal means is the same, to the last bit.
    mean = means[0] + (counts / count * (means - means[0])).sum(axis=0)
    deviations = means - mean
    return np.concatenate([[count], mean, squares.sum(axis=0) + (counts * deviations * deviations).sum(axis=0)])


def segment_moments(segments: Sequence[Sequence[np.ndarray]], size: int) -> np.ndarray:
    """Return the moments of each segment, (N, 1 + 2 K).

    Args:
        segments: for each segment, arrays (rows, *shape) that follow each other, with at least one row in all.
        size: K, the product of the shape.
    """
    max_rows = max(_PART_ELEMENTS // max(size, 1), 1)
    moments = np.empty((len(segments), 1 + 2 * size))
    begin = num_rows = 0
    lengths = [sum(map(len, arrays)) for arrays in segments]
    for number, length in enumerate(lengths):
        if num_rows and num_rows + length > max_rows:
            moments[begin:number] = _moments(segments[begin:number], lengths[begin:number], size)
            begin, num_rows = number, 0
        if length > max_rows:
            moments[number] = _of_parts(segments[number], max_rows, size)
            begin = number + 1
        else:
            num_rows += length
    if num_rows:
        moments[begin:] = _moments(segments[begin:], lengths[begin:], size)
    return moments


def _of_parts(arrays: Sequence[np.ndarray], max_rows: int, size: int) -> np.ndarray:
    """Return the moments of a long segment, part by part."""
    moments = OrderedMoments(size)
    for part in _parts(arrays, max_rows):
        moments.add(_moments([part], [sum(map(len, part))], size))
    return moments.total()


def _parts(arrays: Sequence[np.ndarray], max_rows: int) -> Iterator[list[np.ndarray]]:
    """Yield the rows in parts of `max_rows`, the last one of fewer."""
    part: list[np.ndarray] = []
    room = max_rows
    for array in arrays:
        start = 0
        while start < len(array):
            piece = array[start : start + room]
            part.append(piece)
            start, room = start + len(piece), room - len(piece)
            if not room:
                yield part
                part, room = [], max_rows
    if part:
        yield part


@np.errstate(all="ignore")  # of numbers that are not finite
def _moments(segments: Sequence[Sequence[np.ndarray]], lengths: Sequence[int], size: int) -> np.ndarray:
    """Return the moments of short segments, (N, 1 + 2 K); each sum runs over the rows of one segment in order."""
    arrays = [array.reshape(len(array), size) for arrays in segments for array in arrays]
    values = np.concatenate(arrays, dtype=np.float64, casting="same_kind")
    counts = np.array(lengths)
    starts = np.cumsum(counts) - counts
    # Without the first row of each segment, so that columns that do not change have exactly this mean, and M2 0.
    firsts = values[starts]
    values -= np.repeat(firsts, counts, axis=0)
    means = np.add.reduceat(values, starts, axis=0) / counts[:, np.newaxis]
    values -= np.repeat(means, counts, axis=0)
    np.multiply(values, values, out=values)
    squares = np.add.reduceat(values, starts, axis=0)
    return np.concatenate([counts[:, np.newaxis], firsts + means, squares], axis=1)
