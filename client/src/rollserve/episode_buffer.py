"""Memory that batches are read into, for one call after the other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rollserve_wire.columns import END_COLUMNS, INFOS, PER_SEGMENT
from rollserve_wire.errors import mismatch

__all__ = ["ArrayKey", "EpisodeBuffer"]

ArrayKey = tuple[str, str]
"""Field of a batch that an array belongs to, and its leaf, which is empty if the field is a single array."""

_DOUBLED_BYTES = 8 << 20  # smaller arrays grow by doubling, larger ones by a quarter


class EpisodeBuffer:
    """Memory for the batch that a call returns, which grows as needed and serves one call after the other.

    For a large batch, getting memory for new arrays takes as long as filling them. A call with `out=buffer` reads into
    the buffer instead:

    >>> buffer = rollserve.EpisodeBuffer()  # doctest: +SKIP
    >>> while learning:
    ...     batch = sampler.obtain_samples(10_000, out=buffer)

    The arrays of such a batch are writable views of the buffer. The next call with the buffer overwrites them, even if
    it fails: copy what has to last, or alternate between two buffers. If the messages of a call differ in their
    columns, which infos can cause, the batch has arrays of its own instead. A buffer serves one call at a time; another
    one raises a ValueError.
    """

    def __init__(self) -> None:
        self._columns: dict[ArrayKey, _Column] = {}
        self._in_use = False
        self._num_steps = 0
        self._num_expected = 0

    def __len__(self) -> int:
        """Return the number of steps in the buffer."""
        return self._num_steps

    @contextlib.contextmanager
    def lent(self, num_expected: int) -> Iterator[None]:
        """Empty the buffer and lend it to a call for a block.

        Args:
            num_expected: number of steps that the call expects; 0 if that is unknown.

        Raises:
            ValueError: another call uses the buffer.
        """
        if self._in_use:
            raise ValueError(f"out: {mismatch('a buffer that no call uses', 'one that another call is using')}")
        self._in_use, self._num_steps, self._num_expected = True, 0, num_expected
        try:
            yield
        finally:
            self._in_use = False

    def add(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        """Append a batch, joining its first segment to the last one if it continues that one.

        A mask that only the batch or only the buffer has is true in the other's rows: batches leave out the mask of an
        info without gaps.

        Returns:
            False, without a change, if the batch has other columns than those in the buffer.
        """
        if not self._num_steps:
            self._begin(arrays)
        elif arrays.keys() != self._columns.keys():
            arrays = _with_masks(arrays, like=self._columns.keys())
        if not self._fits(arrays):
            return False
        self._add_masks(arrays)
        num_joined = int(self._continues(arrays))
        if num_joined:
            self._last("lengths")[...] += arrays["lengths", ""][0]
        for key, column in self._columns.items():
            rows = arrays[key]
            if num_joined and key[0] in END_COLUMNS:
                column.last[...] = rows[0]
            column.add(rows[num_joined:] if key[0] in PER_SEGMENT else rows)
        self._num_steps += len(arrays["rewards", ""])
        return True

    def views(self) -> dict[ArrayKey, np.ndarray]:
        """Return the content as views of the buffer."""
        return {key: column.view() for key, column in self._columns.items()}

    def take(self) -> dict[ArrayKey, np.ndarray]:
        """Return the content in arrays that the caller keeps, and leave the buffer empty."""
        columns, self._columns, self._num_steps = self._columns, {}, 0
        return {key: column.take() for key, column in columns.items()}

    def _begin(self, arrays: Mapping[ArrayKey, np.ndarray]) -> None:
        """Prepare columns for a batch, in the memory of earlier columns where it fits."""
        columns, self._columns = self._columns, {}
        for key, array in arrays.items():
            column = columns.get(key)
            if column is None or not column.fits(array):
                column = _Column(array.dtype, array.shape[1:])
            column.clear(0 if key[0] in PER_SEGMENT else self._num_expected)
            self._columns[key] = column

    def _fits(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        """Whether arrays have the buffer's columns, and no others but masks."""
        return self._columns.keys() <= arrays.keys() and all(
            self._columns[key].fits(array) if key in self._columns else _masked(key) in self._columns
            for key, array in arrays.items()
        )

    def _add_masks(self, arrays: Mapping[ArrayKey, np.ndarray]) -> None:
        """Add the masks that the buffer lacks, true in all rows up to now."""
        for key in arrays.keys() - self._columns.keys():
            mask = _Column(np.dtype(np.bool_), ())
            mask.clear(0 if key[0] in PER_SEGMENT else self._num_expected)
            mask.add(np.ones(len(self._columns[_masked(key)]), np.bool_))
            self._columns[key] = mask

    def _continues(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        """Whether the first segment continues the last one in the buffer, as `EpisodeBatch.joined` defines it."""
        if not (self._num_steps and len(arrays["lengths", ""])) or self._last("terminated") or self._last("truncated"):
            return False
        same: bool = all(self._last(name) == arrays[name, ""][0] for name in ("episode_indices", "policy_versions"))
        return same and bool(arrays["first_steps", ""][0] == self._last("first_steps") + self._last("lengths"))

    def _last(self, field: str) -> np.ndarray:
        return self._columns[field, ""].last


def _masked(key: ArrayKey) -> ArrayKey:
    """Return the key of the info that a mask belongs to; the key itself for arrays that cannot be a mask."""
    field, name = key
    return (field, name[1:]) if field in INFOS and name.startswith("_") else key


def _with_masks(arrays: Mapping[ArrayKey, np.ndarray], like: Iterable[ArrayKey]) -> dict[ArrayKey, np.ndarray]:
    """Return arrays with the masks that others have, true in each row."""
    masks = {
        key: np.ones(len(arrays[masked]), np.bool_)
        for key in like
        if key not in arrays and (masked := _masked(key)) in arrays
    }
    return {**arrays, **masks}


class _Column:
    """Rows of one dtype and shape in an array that grows."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._array = np.empty((0, *shape), dtype)
        self._num_rows = 0
        self._num_expected = 0
        self._has_views = False

    def __len__(self) -> int:
        return self._num_rows

    @property
    def last(self) -> np.ndarray:
        """View of the last row."""
        row: np.ndarray = self._array[self._num_rows - 1, ...]
        return row

    def fits(self, rows: np.ndarray) -> bool:
        """Whether rows have the column's dtype and shape."""
        return (rows.dtype, rows.shape[1:]) == (self._array.dtype, self._array.shape[1:])

    def clear(self, num_expected: int) -> None:
        """Drop all rows and expect a number of new ones; 0 if that is unknown."""
        self._num_rows, self._num_expected = 0, num_expected

    def add(self, rows: np.ndarray) -> None:
        """Append a copy of rows."""
        stop = self._num_rows + len(rows)
        if stop > len(self._array):
            self._grow(stop)
        self._array[self._num_rows : stop] = rows
        self._num_rows = stop

    def view(self) -> np.ndarray:
        """Return a view of the rows."""
        self._has_views = True
        return self._array[: self._num_rows]

    def take(self) -> np.ndarray:
        """Return the rows in an array of exactly their size."""
        self._resize(self._num_rows)
        return self._array

    def _grow(self, num_rows: int) -> None:
        """Raise the capacity to at least a number of rows.

        Capacity for the rows expected takes no memory until it is written to. numpy clears what an array grows by.
        """
        row_bytes = self._array.itemsize * math.prod(self._array.shape[1:])
        margin = num_rows if num_rows * row_bytes < _DOUBLED_BYTES else num_rows // 4
        if self._num_rows:
            self._resize(num_rows + margin)
            return
        try:
            self._array = self._empty(max(num_rows + margin, self._num_expected))
        except (MemoryError, ValueError):  # the expected rows do not fit into memory, and may never arrive
            self._array = self._empty(num_rows + margin)
        self._has_views = False

    def _resize(self, num_rows: int) -> None:
        """Change the capacity in rows, without a copy if the system can move pages."""
        shape = (num_rows, *self._array.shape[1:])
        if not self._has_views:
            self._array.resize(shape, refcheck=False)  # safe, because nothing refers to the memory
            return
        array = self._empty(num_rows)
        array[: self._num_rows] = self._array[: self._num_rows]
        self._array, self._has_views = array, False

    def _empty(self, num_rows: int) -> np.ndarray:
        return np.empty((num_rows, *self._array.shape[1:]), self._array.dtype)
