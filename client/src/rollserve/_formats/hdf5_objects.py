"""Groups, datasets and attributes in HDF5's file format, as bytes for many objects of a kind at once.

h5py takes about 20 µs to create a dataset and 15 µs for an attribute, whatever is in it. Objects that differ in numbers
alone, such as lengths and addresses, are rows of one array here: a few operations of numpy make all of them. HDF5 then
links the outermost groups, and finds everything else through them.

Source of the layouts: "HDF5 File Format Specification Version 3.0", sections IV.A.1.a (object headers of version 1,
which have no checksums) and IV.A.2 (messages in them),
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollserve._formats import hdf5_messages as messages
from rollserve_wire.errors import mismatch

__all__ = ["ObjectEncoder", "link_groups"]

_LINKS_IN_HEADER = struct.pack("<BBQQ", 0, 0, messages.UNDEFINED, messages.UNDEFINED)
_GROUP_DEFAULTS = struct.pack("<BB", 0, 0)
_FILL_DEFAULTS = struct.pack("<BBBBI", 2, 2, 2, 1, 0)  # late allocation, the default value if one is written at all
_MAX_RANK = 32
_MAX_NAME_CHARACTERS = 1000


class ObjectEncoder:
    """Encodes objects that lie behind a position of a file, each kind at once.

    An object has to be added before the group that links it.

    Attributes:
        parts: memory of what was added, by its position in the file.
        position: position behind the parts.
    """

    def __init__(self, h5: Any, position: int) -> None:
        """Begin at a position, which is padded to a multiple of 8; `h5` is the module h5py."""
        self._h5 = h5
        self.parts: dict[int, memoryview] = {}
        self.position = position
        self._add(bytes(-position % 8))
        self._int64 = self._datatype(np.dtype(np.int64))

    def add_rows(self, rows: np.ndarray) -> int:
        """Add the rows of an array; return the address of the first one."""
        address = self.position
        self._add(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        self._add(bytes(-self.position % 8))
        return address

    def add_datasets(self, rows: np.ndarray, address: int, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Add datasets, each of consecutive rows of an array.

        Args:
            rows: the array.
            address: address of its first row, from `add_rows`.
            starts: (n,) first row of each dataset.
            counts: (n,) number of rows of each dataset.

        Returns:
            (n,) addresses of the datasets.

        Raises:
            ValueError: rows of more than 31 dimensions.
        """
        if rows.ndim > _MAX_RANK:
            raise ValueError(f"rows: {mismatch(f'at most {_MAX_RANK - 1} dimensions', rows.ndim - 1)}")
        row_bytes = rows.nbytes // max(len(rows), 1)
        addresses = address + starts * row_bytes if row_bytes else np.full(len(starts), -1)
        header = _Headers(len(starts))
        shape = struct.pack(f"<{rows.ndim - 1}Q", *rows.shape[1:])
        header.add(messages.DATASPACE, struct.pack("<BBBxI", 1, rows.ndim, 0, 0), counts, shape)
        header.add(messages.DATATYPE, self._datatype(rows.dtype))
        header.add(messages.FILL_VALUE, _FILL_DEFAULTS)
        header.add(messages.LAYOUT, struct.pack("<BB", 3, 1), addresses, counts * row_bytes)
        return self._added(header)

    def add_groups(self, members: Mapping[str, np.ndarray], attributes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Add groups.

        Args:
            members: addresses (n,) of the objects of each group, by their names.
            attributes: integers (n,) of each group, by their names.

        Returns:
            (n,) addresses of the groups. The part at the first address has the headers of all groups.

        Raises:
            ValueError: a name that HDF5 would take for a path, or cannot hold.
        """
        for name in members:
            if not name or "/" in name or "\0" in name or name == "." or len(name) > _MAX_NAME_CHARACTERS:
                expected = f"names of 1 to {_MAX_NAME_CHARACTERS} characters, not '.' and without '/' and zeros"
                raise ValueError(f"infos: {mismatch(expected, name[:100])}")
        header = _Headers(len(next(iter(members.values()))))
        header.add(messages.LINK_INFO, _LINKS_IN_HEADER)
        header.add(messages.GROUP_INFO, _GROUP_DEFAULTS)
        for name, addresses in members.items():
            encoded = name.encode()
            header.add(messages.LINK, struct.pack("<BBBH", 1, 0x11, 1, len(encoded)), encoded, addresses)
        for name, values in attributes.items():
            encoded = name.encode() + b"\0"
            sizes = struct.pack("<BxHHH", 1, len(encoded), len(self._int64), 8)
            scalar = struct.pack("<BBBxI", 1, 0, 0, 0)
            header.add(messages.ATTRIBUTE, sizes, _padded(encoded), _padded(self._int64), scalar, values)
        return self._added(header)

    def _datatype(self, dtype: np.dtype) -> bytes:
        """Return the message of a datatype, which HDF5 encodes behind two bytes of its own."""
        encoded: bytes = self._h5.h5t.py_create(dtype, logical=True).encode()
        return encoded[2:]

    def _added(self, headers: _Headers) -> np.ndarray:
        content = headers.content()
        addresses: np.ndarray = self.position + content.shape[1] * np.arange(len(content))
        self._add(content.reshape(-1).data)
        return addresses

    def _add(self, part: bytes | memoryview) -> None:
        if len(part):
            self.parts[self.position] = memoryview(part)
            self.position += len(part)


class _Headers:
    """Object headers that differ in numbers alone."""

    def __init__(self, num_objects: int) -> None:
        self._num_objects = num_objects
        self._num_messages = 0
        self._content = bytearray(16)
        self._numbers: list[tuple[int, np.ndarray]] = []

    def add(self, kind: int, *parts: bytes | np.ndarray) -> None:
        """Add a message: bytes that all objects share, and numbers (n,) that take 8 bytes of each object."""
        size = sum(8 if isinstance(part, np.ndarray) else len(part) for part in parts)
        self._content += struct.pack("<HH4x", kind, size + -size % 8)
        for part in parts:
            if isinstance(part, np.ndarray):
                self._numbers.append((len(self._content), part))
            self._content += bytes(8) if isinstance(part, np.ndarray) else part
        self._content += bytes(-size % 8)
        self._num_messages += 1

    def content(self) -> np.ndarray:
        """Return the bytes (n, size) of the headers."""
        struct.pack_into("<BxHII", self._content, 0, 1, self._num_messages, 1, len(self._content) - 16)
        rows = np.tile(np.frombuffer(self._content, np.uint8), (self._num_objects, 1))
        for offset, values in self._numbers:
            rows[:, offset : offset + 8] = values.astype("<i8").reshape(-1, 1).view(np.uint8)
        return rows


def link_groups(h5: Any, file: Any, names: Sequence[bytes], addresses: np.ndarray) -> None:
    """Link groups at addresses (n,) from the root of a file that h5py has opened; about 10 µs each."""
    for name, reference in zip(names, _references(h5, addresses), strict=True):
        h5.h5o.link(h5.h5r.dereference(reference, file.id), file.id, name)


def _references(h5: Any, addresses: np.ndarray) -> np.ndarray:
    """Return references to the objects at addresses: HDF5 reads them from a dataset in memory, whose bytes they are."""
    references: np.ndarray = np.empty(len(addresses), h5.ref_dtype)
    access = h5.h5p.create(h5.h5p.FILE_ACCESS)
    access.set_fapl_core(4096, False)
    file = h5.h5f.create(b"references", h5.h5f.ACC_TRUNC, fapl=access)
    dataset = h5.h5d.create(file, None, h5.h5t.STD_REF_OBJ, h5.h5s.create_simple(references.shape))
    dataset.write(h5.h5s.ALL, h5.h5s.ALL, addresses.astype("<u8"), h5.h5t.STD_REF_OBJ)
    dataset.read(h5.h5s.ALL, h5.h5s.ALL, references)
    return references


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
