"""Parquet: a row for each step, in this package's own columns or in RLlib's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._formats.rllib_columns import AGENTS, IGNORED, missing_of, table_of
from rollserve._formats.sources import EXTRA, Source, check_bytes, check_numbers, file_error
from rollserve._formats.step_tables import segments_of
from rollserve.bridges.tables import SEGMENT_HEADERS, to_arrow
from rollserve.bridges.trees import nested
from rollserve_wire.columns import (
    HEADERS,
    INFOS,
    PER_STEP,
    SEGMENT_COLUMNS,
    columns_of,
    leaves_of,
    mask_name,
    without_full_masks,
)
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

if TYPE_CHECKING:
    import os

__all__ = ["ParquetSource", "write_parquet"]

_ROW_GROUP_STEPS = 1 << 14
_RECEIPT = b"rollserve_receipt"
"""Key of a receipt in the file's metadata."""
_SEGMENTS, _STEPS = "segments", "steps"
_END_COLUMNS = (*SEGMENT_COLUMNS, *(name for name, spec in HEADERS.items() if spec.dtypes == "f"))
"""Fields that the last row of a segment holds, and no other."""


class ParquetSource(Source):
    """Segments of files of Parquet, whose units are segments.

    Files of `EpisodeBatch.to_parquet` hold everything that a batch does. Other files need RLlib's names of columns;
    there, a segment begins where `eps_id` changes, and after the end of an episode.

    Args:
        paths: the files.
        infos: whether to read infos of environments.
        dones: what the column `dones` of RLlib's old files stands for.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: a file of another kind.
    """

    def __init__(self, paths: Sequence[Path], *, infos: bool, dones: str | None) -> None:
        super().__init__(paths)
        self._dones, self._infos = dones, infos
        self._files, self._begins, self.chunks, receipts = [], [], [], []
        self._owners: list[tuple[int, int]] = []
        missing: dict[str, str] = {}
        for path in paths:
            with file_error(path, "a file of Parquet"):
                file = _ParquetFile(path)
                missing |= {} if file.is_own else missing_of(dict.fromkeys(file.names), dones)
                begins = file.begins(dones)
            receipts += file.receipts
            first = len(self._owners)
            self._files.append(file)
            self._begins.append(begins)
            self._owners += [(len(self._files) - 1, segment) for segment in range(len(begins) - 1)]
            self.chunks += [range(first + low, first + high) for low, high in file.groups_of(begins)]
        self.missing, self.receipts = missing, receipts

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        index = self._owners[units[0]][0]
        file, begins = self._files[index], self._begins[index]
        spans = [
            (int(begins[segment]), int(begins[segment + 1])) for _, segment in map(self._owners.__getitem__, units)
        ]
        with file_error(file.path, "columns of steps in Parquet"):
            rows = np.concatenate([np.arange(low, high) for low, high in spans])
            columns = file.rows(spans[0][0], spans[-1][1], rows - spans[0][0], infos=self._infos)
            if file.is_own:
                return [_own_fields(columns)]
            return [segments_of(table_of(nested(_without_nulls(columns)), self._dones))]


class _ParquetFile:
    """File of Parquet that keeps the row group that was read last."""

    def __init__(self, path: Path) -> None:
        parquet = load("pyarrow.parquet", EXTRA)
        self.path = path
        self._arrow = load("pyarrow", EXTRA)
        self._file = parquet.ParquetFile(path)
        self.names: list[str] = self._file.schema_arrow.names
        self.is_own = _SEGMENTS in self.names and _STEPS in self.names
        metadata = self._file.schema_arrow.metadata or {}
        self.receipts = [metadata[_RECEIPT].decode()] if _RECEIPT in metadata else []
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._group_ends = np.cumsum(sizes, dtype=np.int64)
        if not sizes or not self._group_ends[-1]:
            raise ValueError(f"rows: {mismatch('at least one step', 'none')}")
        self._cached: tuple[int, Any] | None = None

    def close(self) -> None:
        self._file.close()

    def begins(self, dones: str | None) -> np.ndarray:
        """Return the rows at which segments begin, and the number of rows."""
        names = [_SEGMENTS] if self.is_own else [n for n in self.names if n in _INDEX_COLUMNS]
        num_rows = int(self._group_ends[-1])
        check_bytes("rows", num_rows * 8 * len(names))
        found = _without_nulls(
            {name: _numpy(name, column) for name, column in _columns(self._file.read(columns=names))}
        )
        if self.is_own:
            changes = np.flatnonzero(np.diff(found[_SEGMENTS])) + 1
        else:
            zeros = np.zeros(num_rows, np.int8)
            table = table_of({"obs": zeros, "actions": zeros, "rewards": zeros, **found}, dones)
            changes = np.flatnonzero(table.begins[1:]) + 1
        return np.concatenate([[0], changes, [num_rows]])

    def groups_of(self, begins: np.ndarray) -> list[tuple[int, int]]:
        """Return ranges of the segments that begin in each row group."""
        bounds = np.unique(np.searchsorted(begins[:-1], np.append(0, self._group_ends)))
        return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    def rows(self, low: int, high: int, kept: np.ndarray, *, infos: bool) -> dict[str, tuple[np.ndarray, Any]]:
        """Return columns of some rows between two, and where they have values."""
        first, last = np.searchsorted(self._group_ends, [low, high - 1], side="right").tolist()
        check_bytes("row groups", sum(map(self._group_bytes, range(first, last + 1))))
        groups = [self._group(group) for group in range(first, last + 1)]
        start = int(self._group_ends[first - 1]) if first else 0
        table = (groups[0] if len(groups) == 1 else self._arrow.concat_tables(groups)).slice(low - start, high - low)
        columns = {}
        for name, column in _columns(table):
            is_info = name == "infos" or name.startswith(("env_infos/", "episode_infos/"))
            is_used = self.is_own or name not in IGNORED or name in AGENTS
            if is_used and (infos or not is_info):
                array, valids = _numpy(name, column)
                if len(kept) != len(array):
                    array, valids = array[kept], None if valids is None else valids[kept]
                columns[name] = array, valids
        return columns

    def _group(self, group: int) -> Any:
        if self._cached is None or self._cached[0] != group:
            self._cached = group, self._file.read_row_group(group)
        return self._cached[1]

    def _group_bytes(self, group: int) -> int:
        """Return the size of the decoded columns of a row group; encodings can be smaller by any factor."""
        found = self._file.metadata.row_group(group)
        columns = [found.column(number) for number in range(found.num_columns)]
        return sum(
            max(column.num_values * _WIDTHS.get(column.physical_type, 0), column.total_uncompressed_size)
            for column in columns
        )


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a decoded value by the physical type of its column."""
_FLAGS = ("terminateds", "truncateds", "terminated", "truncated", "dones", "done")
_INDEX_COLUMNS = ("eps_id", "t", *_FLAGS, *AGENTS)


def write_parquet(batch: Any, path: str | os.PathLike[str], *, receipt: str | None) -> None:
    """Write a batch as a file of Parquet; see `EpisodeBatch.to_parquet`."""
    arrow, parquet = load("pyarrow", EXTRA), load("pyarrow.parquet", EXTRA)
    _check_storable(batch)
    table = to_arrow(batch)
    ends = np.cumsum(batch.lengths) - 1
    valids = np.zeros(len(batch.rewards), np.bool_)
    for field in _END_COLUMNS:
        columns = getattr(batch, field)
        for name, array in leaves_of(columns).items() if columns is not None else ():
            values = np.zeros((len(valids), *array.shape[1:]), array.dtype)
            values[ends], valids[ends] = array, True
            path_name = f"{field}/{name}" if name else field
            table = table.append_column(path_name, _end_array(arrow, values, valids))
    if receipt is not None:
        table = table.replace_schema_metadata({_RECEIPT: receipt.encode()})
    parquet.write_table(table, path, row_group_size=_ROW_GROUP_STEPS)


def _check_storable(batch: Any) -> None:
    """Raise ValueError for a batch that no reader takes, or a column of numbers that Parquet does not have."""
    if not len(batch):
        raise ValueError(f"batch: {mismatch('at least one segment', 'none, which no reader takes')}")
    for field in (*PER_STEP, *_END_COLUMNS):
        columns = getattr(batch, field)
        for name, array in leaves_of(columns).items() if columns is not None else ():
            if array.dtype.kind not in "biuf":
                path = f"{field}/{name}" if name else field
                raise ValueError(f"{path}: {mismatch('numbers or truth values that Parquet has', array.dtype)}")


def _end_array(arrow: Any, values: np.ndarray, valids: np.ndarray) -> Any:
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return arrow.array(values, mask=~valids)
    for axis in range(values.ndim - 1, 0, -1):
        mask = arrow.array(~valids) if axis == 1 else None
        flat = arrow.FixedSizeListArray.from_arrays(flat, values.shape[axis], mask=mask)
    return flat


def _own_fields(columns: Mapping[str, tuple[np.ndarray, Any]]) -> dict[str, Any]:
    """Return the fields of a batch from the columns of steps of `to_parquet`."""
    segments = columns[_SEGMENTS][0]
    starts = np.flatnonzero(np.append(True, np.diff(segments)))
    ends = np.append(starts[1:], len(segments)) - 1
    fields: dict[str, Any] = {"lengths": ends + 1 - starts, "first_steps": columns[_STEPS][0][starts]}
    for name in ("terminated", "truncated"):
        fields[name] = columns[name][0][ends]
    for name in SEGMENT_HEADERS:
        fields[name] = columns[name][0][starts] if name in columns else None
    for field in (*PER_STEP, *_END_COLUMNS):
        rows = ends if field in _END_COLUMNS else slice(None)
        leaves: dict[str, np.ndarray] = {}
        for path, (array, valids) in columns.items():
            name, _, leaf = path.partition("/")
            if name == field:
                leaves[leaf] = array[rows]
                if valids is not None and not valids[rows].all():
                    leaves[mask_name(leaf)] = valids[rows]
        if field in INFOS:
            fields[field] = without_full_masks(leaves)
        elif leaves:
            fields[field] = columns_of(leaves)
    return fields


def _without_nulls(columns: Mapping[str, tuple[np.ndarray, Any]]) -> dict[str, np.ndarray]:
    """Return the values of columns; raise ValueError for a column with nulls, which no number stands for."""
    for name, (_, valids) in columns.items():
        if valids is not None:
            raise ValueError(f"{name}: {mismatch('a value in each row', f'{np.sum(~valids)} nulls')}")
    return {name: values for name, (values, _) in columns.items()}


def _columns(table: Any) -> list[tuple[str, Any]]:
    return [(name, table.column(name)) for name in table.column_names]


def _numpy(name: str, column: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a column of Arrow as an array (T, …), 0 where there is no value, and where there is one.

    Raises:
        ValueError: texts or objects; lists of different lengths; or lists with nulls in them.
    """
    arrow = load("pyarrow", EXTRA)
    array = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    if isinstance(array, arrow.ChunkedArray):
        array = arrow.concat_arrays(array.chunks)
    valids = None if not array.null_count else ~np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    if name in AGENTS and arrow.types.is_string(array.type):
        array = array.dictionary_encode().indices
    shape: list[int] = []
    num_rows = length = len(array)
    while arrow.types.is_fixed_size_list(array.type) or arrow.types.is_list(array.type):
        size, array = _list_size(name, arrow, array)
        shape.append(size)
        length *= size
    if not (
        arrow.types.is_integer(array.type) or arrow.types.is_floating(array.type) or arrow.types.is_boolean(array.type)
    ):
        raise ValueError(f"{name}: {mismatch('numbers or truth values', f'type {array.type}')}")
    if array.null_count:
        if shape:  # lists that are null have nulls for elements
            holes = np.asarray(array.is_null()).reshape(num_rows, -1).any(axis=1)
            if (holes if valids is None else holes & valids).any():
                raise ValueError(f"{name}: {mismatch('lists without nulls', 'nulls')}")
        array = array.fill_null(False if arrow.types.is_boolean(array.type) else 0)
    values = array.to_numpy(zero_copy_only=False)
    return check_numbers(name, values).reshape(-1, *shape), valids


def _list_size(name: str, arrow: Any, array: Any) -> tuple[int, Any]:
    """Return the length of all lists of an array, and their elements one after the other."""
    if arrow.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        # `flatten` leaves out the elements of lists that are null.
        return size, array.values.slice(array.offset * size, len(array) * size)
    offsets = np.asarray(array.offsets)
    sizes = np.unique(np.diff(offsets))
    if len(sizes) != 1 or array.null_count:
        raise ValueError(f"{name}: {mismatch('lists of one length', f'lengths {sizes[:8].tolist()}')}")
    return int(sizes[0]), array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
