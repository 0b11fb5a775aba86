"""Episodes of a Minari dataset in one HDF5 file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve._formats.minari_layout import ATTRIBUTES, NUMBERS, RECEIPT, group_of, hdf5_path
from rollserve._formats.sources import EXTRA, check_bytes, check_numbers
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.receipts import Receipt
from rollserve_wire.spaces import dtype_and_shape, leaf_spaces

if TYPE_CHECKING:
    from rollserve_wire.spaces import Space

__all__ = ["INFO_HINT", "Hdf5Episodes", "StoredEpisode", "converted", "num_steps_of"]

INFO_HINT = "`read(…, infos=False)` leaves all infos out"
_INFOS = b"infos"


class StoredEpisode(NamedTuple):
    """Columns by their paths, infos by their names, and attributes of an episode."""

    columns: Mapping[str, np.ndarray]
    infos: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]


class _Column(NamedTuple):
    """Dataset of each episode: path, dtype, HDF5's type of it, shape of a row, and how many more rows than steps."""

    path: bytes
    dtype: np.dtype
    memory: Any
    row_shape: tuple[int, ...]
    num_extra: int


class _InfoType(NamedTuple):
    """Type of an info in the file, the dtype of its array, and HDF5's type of this dtype."""

    own: Any
    dtype: np.dtype
    memory: Any


class Hdf5Episodes:
    """Episodes in one HDF5 file.

    They are read by h5py's low-level interface, straight into arrays of the dtypes of the spaces.

    Args:
        path: the file.
        spaces: spaces of observations and actions.
        infos: whether to read infos.
    """

    def __init__(self, path: Path, spaces: tuple[Space, Space], *, infos: bool) -> None:
        self._h5 = load("h5py", EXTRA)
        self._file = self._h5.File(path, "r")
        self._with_infos = infos
        first = self._file.get(group_of(0), {})
        datasets: list[tuple[bytes, np.dtype, tuple[int, ...], int]] = []
        for name in NUMBERS:
            if name in first or name == "rewards":
                dtype = first[name].dtype if name in first else np.dtype(np.float64)
                check_numbers(name, np.empty(0, dtype))
                datasets.append((name.encode(), dtype, (), 0))
        for field, space in zip(("observations", "actions"), spaces, strict=True):
            for parts, leaf in leaf_spaces(space):
                datasets.append((hdf5_path(field, parts), *dtype_and_shape(leaf), int(field == "observations")))
        datasets += [(flags, np.dtype(np.bool_), (), 0) for flags in (b"terminations", b"truncations")]
        self._datasets = [
            _Column(path, dtype, self._h5.h5t.py_create(dtype), row_shape, num_extra)
            for path, dtype, row_shape, num_extra in datasets
        ]
        self._info_types: dict[bytes, _InfoType] = {}
        self._int64 = self._h5.h5t.py_create(np.dtype(np.int64))

    def __len__(self) -> int:
        return len(self._file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def receipts(self, units: range) -> Iterator[str]:
        """Yield the receipts of episodes. The first episode of a receipt has it, and it says how many follow.

        Raises:
            ValueError: a receipt that is none.
        """
        unit, num_bytes = units.start, 0
        while unit in units and (path := f"{group_of(unit).decode()}/{RECEIPT}") in self._file:
            dataset = self._file[path]
            if dataset.shape != (1,) or dataset.dtype.kind != "S":
                raise ValueError(f"{path}: {mismatch('one text of fixed length', f'{dataset.dtype}, {dataset.shape}')}")
            num_bytes += dataset.dtype.itemsize
            check_bytes("receipts", num_bytes)
            text = dataset[0].decode()
            yield text
            unit += max(Receipt.from_json(text).num_segments, 1)

    def read(self, units: Sequence[int]) -> Iterator[StoredEpisode]:
        """Yield episodes one by one, with the attributes of headers: HDF5 slows down with many open objects.

        Raises:
            ValueError: an episode that does not fit the spaces, or more bytes than a chunk may have.
        """
        num_bytes = 0
        for unit in units:
            group = self._group(unit)
            columns = self._columns(group)
            num_bytes += sum(column.nbytes for column in columns.values())
            check_bytes("episodes", num_bytes)
            infos = self._infos(group) if self._with_infos and _INFOS in group else {}
            yield StoredEpisode(columns, infos, dict(self._attributes(group)))

    def _group(self, unit: int) -> Any:
        return self._h5.h5g.open(self._file.id, group_of(unit))

    def _attributes(self, group: Any) -> Iterator[tuple[str, int]]:
        for name in ATTRIBUTES.values():
            if self._h5.h5a.exists(group, name.encode()):
                attribute = self._h5.h5a.open(group, name.encode())
                kind = attribute.get_type()
                # HDF5 writes as much as the file says, whatever the size of the buffer.
                if attribute.shape != () or not (kind.equal(self._int64) or kind.dtype.kind in "iu"):
                    got = f"{kind.dtype} of shape {attribute.shape}"
                    raise ValueError(f"{name}: {mismatch('an attribute that is one integer', got)}")
                value = np.empty((), np.int64)
                attribute.read(value, self._int64)
                yield name, int(value)

    def _columns(self, group: Any) -> dict[str, np.ndarray]:
        """Return the columns of an episode by their paths."""
        h5d = self._h5.h5d
        columns: dict[str, np.ndarray] = {}
        length = 0
        for path, dtype, memory_type, row_shape, extra in self._datasets:
            dataset = h5d.open(group, path)
            space = dataset.get_space()
            found = space.shape
            if not length:
                length = num_steps_of(found)
            shape = (length + extra, *row_shape)
            name = path.decode()
            if found != shape:
                raise ValueError(f"{name}: {mismatch(f'shape {shape}', f'shape {found}')}")
            check_bytes(name, dtype.itemsize * math.prod(shape))
            if dataset.get_type().equal(memory_type):
                columns[name] = self._values(dataset, space, dtype, memory_type)
            else:
                check_bytes(name, dataset.dtype.itemsize * math.prod(shape))
                columns[name] = converted(name, self._h5.Dataset(dataset)[()], dtype)
        return columns

    def _values(self, dataset: Any, space: Any, dtype: np.dtype, memory_type: Any) -> np.ndarray:
        """Return the values of a dataset, given its dataspace, their dtype and HDF5's type of this."""
        values = np.empty(space.shape, dtype)
        dataset.read(space, self._h5.h5s.ALL, values, memory_type)
        return values

    def _infos(self, group: Any) -> dict[str, np.ndarray]:
        h5, infos = self._h5, dict[str, np.ndarray]()
        folders = [(b"", h5.h5g.open(group, _INFOS))]
        while folders:
            prefix, folder = folders.pop()
            for name in folder:
                path = prefix + name
                try:
                    child = h5.h5o.open(folder, name)
                except KeyError:  # a broken link
                    child = None
                if isinstance(child, h5.h5g.GroupID):
                    folders.append((path + b"/", child))
                else:
                    infos[path.decode()] = self._info(path, child)
        return infos

    def _info(self, path: bytes, dataset: Any) -> np.ndarray:
        """Return the values of an info; raise ValueError for None, a broken link, and for kinds that are no numbers."""
        h5, field = self._h5, f"infos/{path.decode()}"
        own = dataset.get_type() if isinstance(dataset, h5.h5d.DatasetID) else None
        known = self._info_types.get(path)
        if known is None or own is None or not known.own.equal(own):
            dtype = None if own is None else dataset.dtype
            if dtype is None or dtype.kind not in "biufc":
                raise ValueError(f"{field}: {mismatch('numbers or truth values', dtype, INFO_HINT)}")
            known = self._info_types[path] = _InfoType(own, dtype, h5.h5t.py_create(dtype))
        space = dataset.get_space()
        check_bytes(field, known.dtype.itemsize * math.prod(space.shape))
        return self._values(dataset, space, known.dtype, known.memory)


def num_steps_of(shape: tuple[int, ...]) -> int:
    """Return the number of steps of an episode, given the shape of its rewards."""
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"rewards: {mismatch('a row for each of at least one step', f'shape {shape}')}")
    return shape[0]


def converted(name: str, column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a column with the dtype of its space; raise ValueError where that would change integers or drop parts."""
    check_numbers(name, column)
    with np.errstate(invalid="ignore"):
        converted = column.astype(dtype, copy=False) if dtype.kind == "c" or column.dtype.kind != "c" else None
    if converted is None or (dtype.kind in "biu" and not np.array_equal(converted, column)):
        raise ValueError(f"{name}: {mismatch(f'values of {dtype}', f'other values, of {column.dtype}')}")
    return converted
