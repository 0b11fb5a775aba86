"""The infos of environments, which may hold anything: read as numbers and arrays, and recorded as columns."""

from __future__ import annotations

import functools
import json
import math
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from rollserve_wire.columns import JSON_PREFIX, TEXT_PREFIX, exact_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NO_INFOS", "NO_RESET_INFOS", "InfoColumn", "InfoKey", "InfoReader", "InfoRecorder", "ResetInfos"]

_MAX_HELD_KEYS = 1024
"""Upper bound for keys that are kept for good: an environment may make up names without end."""

_UNREADABLE = "(unreadable)"
"""Name under which values are counted that raise an error when they are read."""

_NumpyBool = np.bool_  # a global, because it is looked up for every value

_INT64 = np.iinfo(np.int64)

_MIN_INT, _MAX_INT = int(_INT64.min), int(_INT64.max)

_SCALAR_TYPES = frozenset({bool, int, float, *(np.dtype(code).type for code in "?bhilqBHILQfd")})
"""Types that determine the key of a value without its dtype and shape, except integers beyond int64."""

_TYPE_CODES = {np.dtype(code): code for code in "bhiqBHIQfd"}
"""Type codes of the arrays that numbers are appended to, by dtype. Values of other dtypes go into arrays of bytes."""

_Array = np.ndarray  # a global, because it is looked up for every value


@dataclass(frozen=True, eq=False)
class InfoKey:
    """Key of a column of infos: a name (nested names joined by `/`), a dtype and a shape.

    Keys are compared by identity, which is cheap in every step: a reader makes one key for equal values.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @functools.cached_property
    def num_bytes(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize * math.prod(self.shape)


NO_INFOS: Mapping[InfoKey, Any] = MappingProxyType({})
"""Infos of everything that has none."""


class ResetInfos(NamedTuple):
    """Infos of a reset.

    Attributes:
        values: the values that can stand in columns.
        dropped: number of the other values, by name.
    """

    values: Mapping[InfoKey, Any]
    dropped: Mapping[str, int]


NO_RESET_INFOS = ResetInfos(NO_INFOS, MappingProxyType({}))
"""Infos of a reset that has none."""


class InfoReader:
    """Reads infos, and counts the values that it drops."""

    def __init__(self, text_info_bytes: int = 0) -> None:
        """Begin without keys.

        Args:
            text_info_bytes: bytes of the texts that values without numbers are read as; 0 to drop these values.
        """
        self._texts = _TextReader(text_info_bytes) if text_info_bytes else None
        self._scalar_keys: dict[tuple[str, type], InfoKey] = {}
        self._array_keys: dict[str, InfoKey] = {}
        self._keys: WeakValueDictionary[tuple[str, str, tuple[int, ...]], InfoKey] = WeakValueDictionary()

    def key(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> InfoKey:
        """Return the reader's only key of this name, dtype and shape."""
        identity = (name, dtype.str, shape)
        key = self._keys.get(identity)
        if key is None:
            key = self._keys[identity] = InfoKey(name, dtype, shape)
        return key

    def read(
        self,
        info: Mapping[Any, Any],
        dropped: Counter[str],
        given_up: Collection[str] = (),
        prefix: str = "",
        outer: Sequence[Mapping[Any, Any]] = (),
    ) -> Sequence[tuple[InfoKey, Any]]:
        """Return the values that can stand in columns: numbers unchanged, and arrays, which the environment may own.

        Python's numbers become bool, int64 and float64, or uint64 where int64 is too small. These values are dropped
        and counted:

        - values that are no numbers, truth values or arrays of them, unless they are read as texts; see `_TextReader`,
        - values whose names begin with `_`, as names of masks do,
        - values with the name of an earlier one, such as `a/b` and the `b` in a mapping `a`,
        - values that raise errors when they are read, and mappings that contain themselves.

        Args:
            info: names and values. Mappings among the values are read, too.
            dropped: number of dropped values by name, which grows.
            given_up: names whose values are dropped in any case.
            prefix: text in front of all names.
            outer: mappings that contain this one.
        """
        values: list[tuple[InfoKey, Any]] = []
        scalar_keys, unique = self._scalar_keys, True
        for part, value in info.items():
            try:
                name = f"{prefix}{part}" if prefix else part
                kind = type(value)
                key = scalar_keys.get((name, kind))
                if key is not None and (kind is not int or _MIN_INT <= value <= _MAX_INT):
                    values.append((key, value if kind is not _NumpyBool else bool(value)))
                elif isinstance(value, Mapping):
                    values += self.read(value, dropped, given_up, f"{name}/", _extend(outer, info, value))
                    unique = False
                else:
                    values += self._read_new(str(name), value, dropped, given_up)
                    unique &= isinstance(name, str) and self._texts is None
            # Reading a value runs the environment's code, which may raise anything.
            except BaseException:
                dropped[_UNREADABLE] += 1
        if unique or len({key.name for key, _ in values}) == len(values):
            return values
        return _first_of_each_name(values, dropped)

    def read_reset(self, info: Mapping[Any, Any]) -> ResetInfos:
        """Return the infos of a reset, with copies of arrays, which environments may change."""
        if not info:
            return NO_RESET_INFOS
        dropped: Counter[str] = Counter()
        values = self.read(info, dropped)
        copies = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in values}
        return ResetInfos(copies, dropped)

    def read_columns(
        self, infos: Mapping[str, Any], rows: NDArray[np.bool_], dropped: Sequence[Counter[str]]
    ) -> Iterator[tuple[InfoKey, np.ndarray, NDArray[np.bool_]]]:
        """Yield columns of a vector environment's infos, with the values that `read` would return for each row.

        Args:
            infos: names and columns of M rows, as gymnasium's vector environments return them: a mask, with the name of
                the column and `_` in front, says which rows have a value.
            rows: (M,), mask of the rows to read.
            dropped: for each row, the number of dropped values by name, which grows.

        Yields:
            Keys, values (M, *shape), which the environment may own, and masks (M,) of the rows that have a value.
        """
        owners: dict[str, str] = {}
        for name, column, present in self._columns(infos, rows, dropped):
            numeric = isinstance(column, np.ndarray) and column.ndim > 0 and _is_numeric(column.dtype)
            read = self._read_column if numeric else self._read_rows
            for key, values, mask in read(name, column, present, dropped):
                if owners.setdefault(key.name, name) == name:
                    yield key, values, mask
                else:
                    _count(dropped, key.name, mask)

    def _columns(
        self,
        infos: Mapping[str, Any],
        rows: NDArray[np.bool_],
        dropped: Sequence[Counter[str]],
        prefix: str = "",
        outer: Sequence[Mapping[Any, Any]] = (),
    ) -> Sequence[tuple[str, Any, NDArray[np.bool_]]]:
        """Return names (nested names joined by `/`), columns, and masks of the rows that have a value."""
        columns: list[tuple[str, Any, NDArray[np.bool_]]] = []
        for part, column in infos.items():
            try:
                if part.startswith("_"):
                    continue
                mask = infos.get(f"_{part}")
                present = rows if mask is None else rows & mask
                name = _checked(f"{prefix}{part}")
                if isinstance(column, Mapping):
                    columns += self._columns(column, present, dropped, f"{name}/", _extend(outer, infos, column))
                else:
                    columns.append((name, column, present))
            except BaseException:  # as in `read`
                _count(dropped, _UNREADABLE, rows)
        return columns

    def _read_column(
        self, name: str, column: np.ndarray, present: NDArray[np.bool_], dropped: Sequence[Counter[str]]
    ) -> Iterator[tuple[InfoKey, np.ndarray, NDArray[np.bool_]]]:
        native = column.astype(column.dtype.newbyteorder("="), copy=False)
        yield self._find_key(name, native[0], np.ndarray), native, present

    def _read_rows(
        self, name: str, column: Any, present: NDArray[np.bool_], dropped: Sequence[Counter[str]]
    ) -> Iterator[tuple[InfoKey, np.ndarray, NDArray[np.bool_]]]:
        by_key: dict[InfoKey, tuple[np.ndarray, NDArray[np.bool_]]] = {}
        for row in np.flatnonzero(present).tolist():
            for key, value in self.read({name: column[row]}, dropped[row]):
                if key not in by_key:
                    by_key[key] = np.zeros((len(present), *key.shape), key.dtype), np.zeros(len(present), np.bool_)
                values, mask = by_key[key]
                values[row] = value
                mask[row] = True
        yield from ((key, *columns) for key, columns in by_key.items())

    def _read_new(
        self, name: str, value: Any, dropped: Counter[str], given_up: Collection[str]
    ) -> Sequence[tuple[InfoKey, Any]]:
        is_kept = _checked(name) not in given_up and not name.startswith("_")
        array = _array(value) if is_kept else None
        if array is None and is_kept and self._texts is not None:
            text = self._texts.read(name, value)
            if text is not None:
                return ((self.key(text[0], text[1].dtype, text[1].shape), text[1]),)
        if array is None:
            dropped[name] += 1
            return ()
        key = self._array_keys.get(name)
        if key is None or key.dtype != array.dtype or key.shape != array.shape:
            key = self._find_key(name, array, type(value))
        return ((key, array),)

    def _find_key(self, name: str, array: np.ndarray, kind: type) -> InfoKey:
        key = self.key(name, array.dtype, array.shape)
        if kind not in _SCALAR_TYPES:
            if name in self._array_keys or len(self._array_keys) < _MAX_HELD_KEYS:
                self._array_keys[name] = key
        elif len(self._scalar_keys) < _MAX_HELD_KEYS and not (kind is int and key.dtype != np.int64):
            self._scalar_keys[name, kind] = key
        return key


def _first_of_each_name(values: Sequence[tuple[InfoKey, Any]], dropped: Counter[str]) -> Sequence[tuple[InfoKey, Any]]:
    by_name: dict[str, tuple[InfoKey, Any]] = {}
    for key, value in values:
        if key.name in by_name:
            dropped[key.name] += 1
        else:
            by_name[key.name] = (key, value)
    return list(by_name.values())


def _count(dropped: Sequence[Counter[str]], name: str, rows: NDArray[np.bool_]) -> None:
    """Count a dropped value of each row in the mask."""
    for row in np.flatnonzero(rows).tolist():
        dropped[row][name] += 1


def _array(value: Any) -> np.ndarray | None:
    """Return the value as an array in native byte order; None if it is no array of numbers or truth values."""
    try:
        array = np.asarray(value)
    except BaseException:  # ragged, or an object that raises
        return None
    if not _is_numeric(array.dtype):
        return None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_numeric(dtype: np.dtype) -> bool:
    """Return whether the wire format has the dtype, among numbers and truth values."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def _checked(name: str) -> str:
    """Return the name; raise UnicodeEncodeError if it cannot be encoded as UTF-8."""
    if not name.isascii():
        name.encode()
    return name


def _extend(
    outer: Sequence[Mapping[Any, Any]], info: Mapping[Any, Any], inner: Mapping[Any, Any]
) -> Sequence[Mapping[Any, Any]]:
    """Return the mappings that contain `inner`; raise ValueError if it contains itself."""
    outer = (*outer, info)
    if any(inner is each for each in outer):
        raise ValueError("a mapping contains itself")
    return outer


class _TextReader:
    """Reads texts, and values that JSON can hold, as arrays of bytes."""

    def __init__(self, num_bytes: int) -> None:
        """Read texts of at most `num_bytes` bytes of UTF-8."""
        self._num_bytes = num_bytes

    def read(self, name: str, value: Any) -> tuple[str, np.ndarray] | None:
        """Return the name of a value's column, and its text (B,) uint8 with zeros behind it; None if it has none.

        Texts are written as they are. None, and lists, tuples and arrays of anything that JSON can hold, are written as
        JSON with sorted names and without spaces. A value has no text if its text would be longer or has a character
        of code 0 or a lone surrogate, or if JSON cannot hold the value, as NaN and objects of classes.
        """
        is_text = isinstance(value, str)
        if not is_text and not (value is None or isinstance(value, list | tuple | np.ndarray)):
            return None
        try:
            text = str(value) if is_text else _json(value)
            encoded = text.encode()
        except (TypeError, ValueError, RecursionError):
            return None
        if len(encoded) > self._num_bytes or b"\0" in encoded:
            return None
        prefix = TEXT_PREFIX if is_text else JSON_PREFIX
        return prefix + name, np.frombuffer(encoded.ljust(self._num_bytes, b"\0"), np.uint8)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=_plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _plain(value: Any) -> Any:
    """Return an array or number of numpy, or a mapping, as a value that JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


class InfoRecorder:
    """Records the infos of one episode's steps.

    A name is given up once its values differ in shape, or no single dtype holds its integers beside the others. Then
    all its values in the episode are dropped and counted.
    """

    def __init__(self, reader: InfoReader, dropped: Counter[str]) -> None:
        """Start without infos; `dropped` counts the dropped values of the episode by name."""
        self._reader = reader
        self._dropped = dropped
        self._columns: dict[InfoKey, InfoColumn] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._mixed_dtypes: set[str] = set()
        self._given_up: set[str] = set()

    def write(self, step: int, info: Mapping[Any, Any]) -> None:
        """Record the infos of a step. Steps have to be in order."""
        columns = self._columns
        for key, value in self._reader.read(info, self._dropped, self._given_up):
            column = columns.get(key) or self._begin(key)
            if column is not None:
                column.append(step, value)

    def finish(self, num_steps: int) -> Mapping[InfoKey, InfoColumn]:
        """Return the columns of the episode, which has `num_steps` steps."""
        for name in self._mixed_dtypes - self._given_up:
            self._unite_integers([column for column in self._columns.values() if column.key.name == name])
        for column in self._columns.values():
            column.complete(num_steps)
        return self._columns

    def _begin(self, key: InfoKey) -> InfoColumn | None:
        """Return a new column; None if the value has to be dropped, which is counted."""
        shape = self._shapes.get(key.name)
        if shape is not None and shape != key.shape:
            self._give_up([column for column in self._columns.values() if column.key.name == key.name])
            self._given_up.add(key.name)
        if key.name in self._given_up:
            self._dropped[key.name] += 1
            return None
        if shape is None:
            self._shapes[key.name] = key.shape
        else:
            self._mixed_dtypes.add(key.name)
        column = self._columns[key] = InfoColumn(key)
        return column

    def _give_up(self, columns: Sequence[InfoColumn]) -> None:
        for column in columns:
            self._dropped[column.key.name] += len(column.steps)
            del self._columns[column.key]

    def _unite_integers(self, columns: Sequence[InfoColumn]) -> None:
        """Make integers uint64 that numpy would promote to float64, because some are beyond int64.

        Values are dropped if no dtype holds each of them.
        """
        try:
            dtype = exact_dtype([column.values for column in columns])
        except ValueError:
            self._give_up(columns)
            return
        if dtype != np.uint64:
            return
        (united,) = (column for column in columns if column.key.dtype == np.uint64)
        others = [column for column in columns if column is not united]
        for column in others:
            del self._columns[column.key]
        united.merge(others)


class InfoColumn:
    """The values of one info in an episode, one behind the other.

    Attributes:
        key: name, dtype and shape of the values.
        steps: the step of the episode that each value belongs to; rising.
    """

    __slots__ = ("_values", "key", "steps")

    def __init__(self, key: InfoKey) -> None:
        self.key = key
        self.steps: array[int] | range = array("I")
        self._values: array[Any] = array(_TYPE_CODES.get(key.dtype, "B"))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the column takes."""
        return sys.getsizeof(self) + sys.getsizeof(self._values) + sys.getsizeof(self.steps)

    @property
    def values(self) -> np.ndarray:
        """View of the values, (values, *shape)."""
        return np.frombuffer(self._values, self.key.dtype).reshape(len(self.steps), *self.key.shape)

    def append(self, step: int, value: Any) -> None:
        """Append the value of a step, as an `InfoReader` returned it. Arrays are copied."""
        if type(value) is _Array:
            self._values.frombytes(value.tobytes())
        else:
            self._values.append(value)
        self.steps.append(step)  # type: ignore[union-attr]  # a range only once complete

    def within(self, start: int, stop: int) -> tuple[slice | NDArray[np.intp], np.ndarray]:
        """Return which steps from `start` up to `stop` have a value, counted from `start`, and these values."""
        low, high = bisect_left(self.steps, start), bisect_left(self.steps, stop)
        values = self.values[low:high]
        if high - low == stop - start:
            return slice(None), values
        return np.array(self.steps[low:high], np.intp) - start, values

    def complete(self, num_steps: int) -> None:
        """End the column; its episode has `num_steps` steps."""
        if len(self.steps) == num_steps:
            self.steps = range(num_steps)

    def merge(self, others: Sequence[InfoColumn]) -> None:
        """Merge the values of other columns, which belong to other steps and can be cast."""
        columns = [self, *others]
        steps = np.concatenate([np.array(column.steps, np.uint32) for column in columns])
        values = np.concatenate([column.values.astype(self.key.dtype) for column in columns])
        order = np.argsort(steps)
        self.steps = array("I", steps[order].tobytes())
        self._values = array(self._values.typecode, values[order].tobytes())
