"""Groups of an HDF5 file whose headers are like the headers of a group that HDF5 has read: read without HDF5."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve._formats.file_bytes import FileBytes, FileRegion
from rollserve._formats.hdf5_arrays import Arrays
from rollserve._formats.hdf5_headers import HeaderForm
from rollserve._formats.minari_layout import group_of
from rollserve._formats.sources import EXTRA, check_bytes
from rollserve.bridges.loading import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AlikeGroup", "AlikeGroups", "Group"]

_MAX_TRIES = 8
_MAX_SHARE, _MIN_PART_BYTES = 4, 1 << 16
"""How many times a group's share of the file is read with its header, and how many bytes at least."""
_ROWS = "rewards"


class Group(NamedTuple):
    """Arrays of a group by their paths in it, and its attributes that are integers."""

    arrays: Mapping[str, np.ndarray]
    attributes: Mapping[str, int]


class AlikeGroups:
    """The groups `episode_0`, `episode_1`, … of a file, as far as their headers have one of a few forms.

    A form is learned from an example, and used if it makes the same bytes of it as HDF5 does. Arrays of all groups of a
    form have rows of the same dtypes and shapes, and as many more or fewer than `rewards` as in the example.

    Args:
        path: the file.
        file: the file, opened by h5py.
        names: names of the links of groups that are looked at.
    """

    def __init__(self, path: Path, file: Any, names: Collection[bytes]) -> None:
        self._file, self._bytes, self._names = file, FileBytes(path), names
        self._forms: list[_Form] = []
        self._places: dict[bytes, int] = {}
        self._begins = np.zeros(0, np.int64)
        properties = file.id.get_create_plist()
        has_plain_places = properties.get_sizes() == (8, 8) and not properties.get_userblock()
        self._num_tries = _MAX_TRIES if has_plain_places else 0

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def find(self, numbers: Sequence[int], example: Callable[[int], Group | None]) -> dict[int, AlikeGroup]:
        """Return the groups of some numbers that have a known form, or one that is learned from one of them.

        Args:
            numbers: the numbers.
            example: reads a group by HDF5; returns None if the file has other bytes than the arrays.

        Raises:
            ValueError: an example that cannot be read, a file that is cut off, or more bytes than a chunk may have.
        """
        if not (self._forms or self._num_tries):
            return {}
        places = self._places_of(numbers)
        region = self._region(places)
        found: dict[int, AlikeGroup] = {}
        rest = np.flatnonzero(places >= 0)
        for form in self._forms:
            rest = self._take(_Alike(form, region, places[rest]), numbers, rest, found)
        while len(rest) and self._num_tries:
            self._num_tries -= 1
            learned = self._learn(region, places[rest], functools.partial(example, numbers[rest[0]]))
            if learned is None:
                rest = rest[1:]
            else:
                self._forms.append(learned.form)
                rest = self._take(learned, numbers, rest, found)
        return found

    @staticmethod
    def _take(
        alike: _Alike, numbers: Sequence[int], rest: NDArray[np.intp], found: dict[int, AlikeGroup]
    ) -> NDArray[np.intp]:
        """Add the groups of a form to the found ones, and return the positions of the others."""
        for position in np.flatnonzero(alike.is_alike).tolist():
            found[numbers[rest[position]]] = AlikeGroup(alike, position)
        return rest[~alike.is_alike]

    def _places_of(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the places of groups' headers, (N,); -1 for groups that are no hard link."""
        if not self._places:
            links = self._file.id.links
            hard, places = load("h5py", EXTRA).h5l.TYPE_HARD, self._places

            def add(name: bytes, info: Any) -> None:
                if info.type == hard and info.u < self._bytes.size:
                    places[name] = info.u

            links.iterate(add, info=True)
            self._begins = np.unique(np.fromiter(places.values(), np.int64, len(places)))
        return np.array([self._places.get(group_of(number), -1) for number in numbers], np.int64)

    def _region(self, places: NDArray[np.int64]) -> FileRegion:
        """Return the parts of the file from each group's header to the header of the next group in the file."""
        starts = np.unique(places[places >= 0])
        ends = np.append(self._begins, self._bytes.size)[np.searchsorted(self._begins, starts) + 1]
        longest = _MAX_SHARE * self._bytes.size // max(len(self._begins), 1) + _MIN_PART_BYTES
        return FileRegion(self._bytes, starts, np.minimum(ends, starts + longest))

    def _learn(
        self, region: FileRegion, places: NDArray[np.int64], read_first: Callable[[], Group | None]
    ) -> _Alike | None:
        """Return groups compared with the form of the first, which HDF5 can read.

        The result is None if the first has no form, or one that makes other bytes of it than HDF5 does.
        """
        headers = HeaderForm.of_example(region, int(places[0]), self._names)
        example = read_first() if headers is not None else None
        if headers is None or example is None or not all(array.size for array in example.arrays.values()):
            return None
        if not (example.arrays.keys() <= headers.paths and example.attributes.keys() <= headers.attributes):
            return None
        num_rows = len(example.arrays[_ROWS])
        rows = {
            path: _Rows(array.dtype, array.shape[1:], len(array) - num_rows) for path, array in example.arrays.items()
        }
        alike = _Alike(_Form(headers, rows, tuple(example.attributes)), region, places)
        return alike if alike.is_alike[0] and _are_same(alike.load(0), example) else None


class AlikeGroup(NamedTuple):
    """Group that is like others, not read yet."""

    groups: _Alike
    position: int

    @property
    def num_bytes(self) -> int:
        """Size of its arrays."""
        return self.groups.num_bytes[self.position]

    def load(self) -> Group:
        """Return its arrays and attributes; raise ValueError if the file is cut off."""
        return self.groups.load(self.position)


class _Rows(NamedTuple):
    """Rows of a dataset: their dtype and shape, and how many more there are than rewards."""

    dtype: np.dtype
    shape: tuple[int, ...]
    num_extra: int


class _Form(NamedTuple):
    """Form of groups: of their headers, of the rows of their datasets by path, and the attributes they have."""

    headers: HeaderForm
    rows: Mapping[str, _Rows]
    attributes: Collection[str]


class _Alike:
    """Groups whose headers are at some places, compared with a form.

    Attributes:
        form: the form.
        is_alike: (N,) bool, whether the group at a place has the form.
        num_bytes: size of the arrays of each group.
    """

    def __init__(self, form: _Form, region: FileRegion, places: NDArray[np.int64]) -> None:
        self.form = form
        numbers = form.headers.numbers(region, places)
        self._arrays = dict[str, Arrays]()
        self.is_alike = numbers.is_alike
        for path, rows in form.rows.items():
            found = numbers.datasets[path]
            arrays = self._arrays[path] = Arrays(found, region, rows.dtype, rows.shape)
            self.is_alike &= arrays.is_alike & (found.rows == numbers.datasets[_ROWS].rows + rows.num_extra)
        num_bytes = np.sum([arrays.num_bytes for arrays in self._arrays.values()], axis=0)
        check_bytes("episodes", int(num_bytes[self.is_alike].sum()))
        self.num_bytes: list[int] = num_bytes.tolist()
        for arrays in self._arrays.values():
            arrays.locate(self.is_alike)
        self._attributes = {name: numbers.attributes[name].tolist() for name in form.attributes}

    def load(self, position: int) -> Group:
        """Return a group that has the form."""
        arrays = {path: arrays.load(position) for path, arrays in self._arrays.items()}
        return Group(arrays, {name: values[position] for name, values in self._attributes.items()})


def _are_same(group: Group, other: Group) -> bool:
    """Whether two groups have the same bytes, given that their arrays have the same dtypes and shapes."""
    return group.attributes == other.attributes and all(
        array.tobytes() == other.arrays[path].tobytes() for path, array in group.arrays.items()
    )
