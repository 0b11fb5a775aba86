"""Memory that batches are read into, and may be read into again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np

__all__ = ["ArrayKey", "EpisodeBuffer"]

ArrayKey = tuple[str, str]
"""The field of a batch that an array is of, and its leaf; that is empty where the field is one array."""

_DOUBLED_BYTES = 8 << 20
"""Up to here, arrays grow by doubling; beyond, by a quarter."""
_SEGMENT_FIELDS = frozenset(
    (
        "last_observations",
        "episode_infos",
        "lengths",
        "terminated",
        "truncated",
        "policy_versions",
        "episode_indices",
        "first_steps",
        "env_seeds",
        "worker_indices",
        "initial_states",
    )
)
_END_FIELDS = ("terminated", "truncated", "last_observations")
"""Of a segment that goes on in the next message, what that one tells."""


class EpisodeBuffer:
    """Memory for the batch that a call returns, for one call after the other.

    A batch of new arrays costs the time to get new memory, which for large ones is as much as to fill it. Given to a
    call as `out`, a buffer is read into instead, and keeps what it has grown to:

    >>> buffer = rollserve.EpisodeBuffer()  # doctest: +SKIP
    >>> while learning:
    ...     batch = sampler.obtain_samples(10_000, out=buffer)

    The arrays of such a batch are views of the buffer's. They may be written to, and hold until the buffer is given to
    another call, which writes over them, even if it fails: copy what is to last, or take two buffers in turn. Where the
    messages of a call differ in their columns, as infos may that come and go, the batch has arrays of its own instead.
    A buffer serves one call at a time.
    """

    def __init__(self) -> None:
        self._columns: dict[ArrayKey, _Column] = {}
        self._in_use = False
        self._num_steps = 0
        self._num_expected = 0

    def __len__(self) -> int:
        """How many steps there are."""
        return self._num_steps

    @contextlib.contextmanager
    def lent(self, num_expected: int) -> Iterator[None]:
        """Lends the buffer, with nothing in it, to a call that expects so many steps; 0 if it does not know.

        Raises:
            ValueError: another call has it.
        """
        if self._in_use:
            raise ValueError("out: a buffer that another call is using came, one that is free was expected")
        self._in_use, self._num_steps, self._num_expected = True, 0, num_expected
        try:
            yield
        finally:
            self._in_use = False

    def add(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        """Copies a batch behind those that are there; returns whether it has the same columns, and so could be.

        A segment that the last one goes on with is joined to it.
        """
        if not self._num_steps:
            self._begin(arrays)
        elif not self._takes(arrays):
            return False
        num_joined = int(self._goes_on(arrays))
        if num_joined:
            self._last("lengths")[...] += arrays["lengths", ""][0]
        for key, column in self._columns.items():
            rows = arrays[key]
            if num_joined and key[0] in _END_FIELDS:
                column.last[...] = rows[0]
            column.add(rows[num_joined:] if key[0] in _SEGMENT_FIELDS else rows)
        self._num_steps += len(arrays["rewards", ""])
        return True

    def views(self) -> dict[ArrayKey, np.ndarray]:
        """What is there, in memory that stays the buffer's."""
        return {key: column.view() for key, column in self._columns.items()}

    def take(self) -> dict[ArrayKey, np.ndarray]:
        """What is there, for the caller to keep: the buffer is as new."""
        columns, self._columns, self._num_steps = self._columns, {}, 0
        return {key: column.take() for key, column in columns.items()}

    def _begin(self, arrays: Mapping[ArrayKey, np.ndarray]) -> None:
        """Makes room for a batch and more of its kind, where possible in the memory that is there."""
        columns, self._columns = self._columns, {}
        for key, array in arrays.items():
            column = columns.get(key)
            if column is None or not column.takes(array):
                column = _Column(array.dtype, array.shape[1:])
            column.clear(0 if key[0] in _SEGMENT_FIELDS else self._num_expected)
            self._columns[key] = column

    def _takes(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        return arrays.keys() == self._columns.keys() and all(
            self._columns[key].takes(array) for key, array in arrays.items()
        )

    def _goes_on(self, arrays: Mapping[ArrayKey, np.ndarray]) -> bool:
        """Whether the first segment is of the last one's episode and follows it, as of `EpisodeBatch.joined`."""
        if not (self._num_steps and len(arrays["lengths", ""])) or self._last("terminated") or self._last("truncated"):
            return False
        same: bool = all(self._last(name) == arrays[name, ""][0] for name in ("episode_indices", "policy_versions"))
        return same and bool(arrays["first_steps", ""][0] == self._last("first_steps") + self._last("lengths"))

    def _last(self, field: str) -> np.ndarray:
        return self._columns[field, ""].last


class _Column:
    """Rows of one dtype and shape, added some at a time."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._array = np.empty((0, *shape), dtype)
        self._num_rows = 0
        self._num_expected = 0
        self._is_seen = False

    @property
    def last(self) -> np.ndarray:
        """The last row, to be read or written."""
        row: np.ndarray = self._array[self._num_rows - 1, ...]
        return row

    def takes(self, rows: np.ndarray) -> bool:
        """Whether rows are of that dtype and shape."""
        return (rows.dtype, rows.shape[1:]) == (self._array.dtype, self._array.shape[1:])

    def clear(self, num_expected: int) -> None:
        """Begins anew; so many rows are to come, if it is not 0."""
        self._num_rows, self._num_expected = 0, num_expected

    def add(self, rows: np.ndarray) -> None:
        """Copies rows behind those that are there."""
        stop = self._num_rows + len(rows)
        if stop > len(self._array):
            self._grow(stop)
        self._array[self._num_rows : stop] = rows
        self._num_rows = stop

    def view(self) -> np.ndarray:
        """The rows."""
        self._is_seen = True
        return self._array[: self._num_rows]

    def take(self) -> np.ndarray:
        """The rows, in an array that has room for no more."""
        self._resize(self._num_rows)
        return self._array

    def _grow(self, num_rows: int) -> None:
        """Makes room for so many rows and some more: what is never touched takes no memory."""
        row_bytes = self._array.itemsize * int(np.prod(self._array.shape[1:], dtype=np.int64))
        margin = num_rows if num_rows * row_bytes < _DOUBLED_BYTES else num_rows // 4
        if self._num_rows:
            self._resize(num_rows + margin)
            return
        try:
            self._array = self._empty(max(num_rows + margin, self._num_expected))
        except (MemoryError, ValueError):  # more than there can be was asked for, and may never come
            self._array = self._empty(num_rows + margin)
        self._is_seen = False

    def _resize(self, num_rows: int) -> None:
        """Changes how many rows there is room for. Nothing is copied where the system can move pages."""
        shape = (num_rows, *self._array.shape[1:])
        if not self._is_seen:
            self._array.resize(shape, refcheck=False)  # nobody has views of it
            return
        array = self._empty(num_rows)
        array[: self._num_rows] = self._array[: self._num_rows]
        self._array, self._is_seen = array, False

    def _empty(self, num_rows: int) -> np.ndarray:
        return np.empty((num_rows, *self._array.shape[1:]), self._array.dtype)
