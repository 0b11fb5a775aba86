"""Object headers of HDF5 that are alike, of many groups at once.

A file of episodes has a group of a few datasets for each. HDF5 opens one object after the other, which takes longer
than reading a short episode. The headers of all episodes have the same bytes but for some numbers: places in the file,
numbers of rows, and values of attributes. `HeaderForm` takes these numbers from the headers of many groups at once. A
group whose headers differ otherwise, or have a wrong checksum, does not have the form, and is left to HDF5.

Layout: HDF5 File Format Specification 3.0, sections IV.A.1 (object headers of versions 1, which have no checksums, and
2) and IV.A.2 (messages in them).
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve._formats.lookup3 import ends_are_lookup3

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve._formats.file_bytes import FileRegion

__all__ = ["DatasetNumbers", "GroupNumbers", "HeaderForm"]

_NIL, _DATASPACE, _LINK_INFO, _LINK, _EXTERNAL, _LAYOUT, _FILTERS = 0x00, 0x01, 0x02, 0x06, 0x07, 0x08, 0x0B
_ATTRIBUTE, _CONTINUATION, _SYMBOL_TABLE, _TIME, _ATTRIBUTE_INFO = 0x0C, 0x10, 0x11, 0x12, 0x15
_ROWS, _PLACE, _SIZE, _VALUE_OF = "rows", "place", "size", "value of "
"""Names of the numbers of an object."""
_UNDEFINED = (1 << 64) - 1
_CHECKSUM_BYTES = 4
_HEAD_1, _HEAD_2, _HEAD_2_ORDERED = map(struct.Struct, ("<HHB3x", "<BHB", "<BHB2x"))
"""Heads of messages: their kind, size and flags."""
_MAX_BLOCKS, _MAX_BYTES = 256, 1 << 14


class DatasetNumbers(NamedTuple):
    """Numbers of one dataset in N groups, (N,) int64 each: rows, and place and size of its bytes in the file."""

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]


class GroupNumbers(NamedTuple):
    """Numbers of N groups.

    Attributes:
        is_alike: (N,) bool, whether a group has the form; the numbers of others mean nothing.
        datasets: numbers of datasets, by their paths in the group.
        attributes: (N,) int64 each, values of the group's attributes of 8 bytes, by their names.
    """

    is_alike: NDArray[np.bool_]
    datasets: dict[str, DatasetNumbers]
    attributes: dict[str, NDArray[np.int64]]


class HeaderForm:
    """Form of the headers of a group and of the objects in it, all of whose datasets are contiguous.

    Args:
        region: region of the file, whose addresses and sizes have 8 bytes.
        place: place in the file of an example's header.
        names: names of the group's links that are followed; others are not looked at.

    Attributes:
        paths: paths of the datasets in the group.
        attributes: names of the group's attributes of 8 bytes.

    Raises:
        ValueError: a header of another kind, such as of a dataset in chunks.
        struct.error: a message that is cut off.
    """

    def __init__(self, region: FileRegion, place: int, names: Collection[bytes]) -> None:
        self._region, self._names = region, names
        self._num_blocks = self._num_bytes = 0
        self._root = self._header(place, "")
        del self._region
        numbers = self._root.all_numbers()
        self.paths = frozenset(path for path, name in numbers if name == _ROWS)
        self.attributes = frozenset(name.removeprefix(_VALUE_OF) for _, name in numbers if name.startswith(_VALUE_OF))

    def numbers(self, region: FileRegion, places: NDArray[np.int64]) -> GroupNumbers:
        """Return the numbers of groups whose headers are at some places of the file, (N,)."""
        is_alike = np.ones(len(places), np.bool_)
        found: dict[tuple[str, str], NDArray[np.int64]] = {}
        read: list[NDArray[np.uint8]] = []
        blocks = [(self._root, places)]
        while blocks:
            block, at = blocks.pop()
            rows = region.rows(at, len(block.example))
            is_alike &= block.is_like(rows)
            if block.num_checksum_bytes:
                read.append(rows)
            found |= {key: _number(rows, position) for key, position in block.numbers.items()}
            blocks += [(child, _number(rows, position)) for position, child in block.children]
        if read:
            is_alike &= ends_are_lookup3(read)
        return GroupNumbers(
            is_alike,
            {path: DatasetNumbers(*(found[path, name] for name in (_ROWS, _PLACE, _SIZE))) for path in self.paths},
            {name: found["", _VALUE_OF + name] for name in self.attributes},
        )

    def _header(self, place: int, path: str) -> _Block:
        """Return the block that a header begins with."""
        start = self._bytes(place, 16)
        if start[:2] == b"\x01\0":
            size, position, head = int.from_bytes(start[8:12], "little"), 16, _HEAD_1
            block = self._block(place, position + size, 0)
        elif start[:5] == b"OHDR\x02":
            flags = start[5]
            position = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
            width = 1 << (flags & 3)
            size = int.from_bytes(self._bytes(place + position, width), "little")
            position, head = position + width, _HEAD_2_ORDERED if flags & 0x04 else _HEAD_2
            block = self._block(place, position + size + _CHECKSUM_BYTES, _CHECKSUM_BYTES)
            block.is_fixed[6 : 22 if flags & 0x20 else 6] = False  # times
        else:
            raise ValueError("a header of another version")
        self._messages(block, position, head, path)
        numbers = {name for found, name in block.all_numbers() if found == path}
        if (_ROWS in numbers) != (_PLACE in numbers):
            raise ValueError("a dataset without rows or without a place")
        return block

    def _messages(self, block: _Block, position: int, head: struct.Struct, path: str) -> None:
        """Find what differs in the messages of a block from a position on."""
        content, end = block.content, len(block.example) - block.num_checksum_bytes
        while position + head.size <= end:
            kind, size, flags = head.unpack_from(content, position)
            position += head.size
            if position + size > end:
                raise ValueError("a message that is longer than its block")
            body = content[position : position + size]
            if kind in (_NIL, _TIME):
                block.is_fixed[position : position + size] = False
            elif kind == _CONTINUATION:
                self._continuation(block, position, head, path)
            elif kind == _LINK:
                self._link(block, position, body, path)
            elif kind == _DATASPACE and not flags & 2:
                self._dataspace(block, position, body, path)
            elif kind == _LAYOUT:
                if body[:2] not in (b"\x03\x01", b"\x04\x01"):
                    raise ValueError("a dataset that is not contiguous")
                block.add_number((path, _PLACE), position + 2)
                block.add_number((path, _SIZE), position + 10)
            elif kind == _ATTRIBUTE:
                self._attribute(block, position, body, path)
            elif kind in (_LINK_INFO, _ATTRIBUTE_INFO):
                order_bytes = (8 if kind == _LINK_INFO else 2) * (body[1] & 1)
                if struct.unpack_from("<Q", body, 2 + order_bytes)[0] != _UNDEFINED:
                    raise ValueError("links or attributes outside of the header")
            elif kind in (_SYMBOL_TABLE, _EXTERNAL, _FILTERS):
                raise ValueError("an object of another kind")
            position += size
        block.is_fixed[position:] = False  # a gap, and the checksum

    def _continuation(self, block: _Block, position: int, head: struct.Struct, path: str) -> None:
        place, size = struct.unpack_from("<QQ", block.content, position)
        child = self._block(place, size, block.num_checksum_bytes)
        if block.num_checksum_bytes and child.content[:4] != b"OCHK":
            raise ValueError("a header that does not go on")
        self._messages(child, 4 if block.num_checksum_bytes else 0, head, path)
        block.add_child(position, child)

    def _link(self, block: _Block, position: int, body: bytes, path: str) -> None:
        flags = body[1]
        at = 2 + bool(flags & 0x08)
        kind = body[2] if flags & 0x08 else 0
        at += 8 * bool(flags & 0x04) + bool(flags & 0x10)
        width = 1 << (flags & 3)
        size = int.from_bytes(body[at : at + width], "little")
        name, at = body[at + width : at + width + size], at + width + size
        if not path and name not in self._names:
            block.is_fixed[position + at : position + len(body)] = False
            return
        if kind:
            raise ValueError("a link that is not hard")
        child = self._header(
            struct.unpack_from("<Q", body, at)[0], f"{path}/{name.decode()}" if path else name.decode()
        )
        block.add_child(position + at, child)

    def _dataspace(self, block: _Block, position: int, body: bytes, path: str) -> None:
        version, rank, flags = body[:3]
        if version not in (1, 2) or not rank or flags > 1:
            raise ValueError("a dataset without rows")
        first = position + (8 if version == 1 else 4)
        block.add_number((path, _ROWS), first)
        if flags:  # the largest number of rows
            block.is_fixed[first + 8 * rank : first + 8 * rank + 8] = False

    def _attribute(self, block: _Block, position: int, body: bytes, path: str) -> None:
        version, _, *sizes = struct.unpack_from("<BBHHH", body)
        if version not in (1, 3):
            raise ValueError("an attribute of another version")
        name = 8 if version == 1 else 9
        value = name + sum(size + -size % 8 if version == 1 else size for size in sizes)
        if not path and len(body) - value == 8:
            block.add_number((path, _VALUE_OF + body[name : name + sizes[0] - 1].decode()), position + value)
        block.is_fixed[position + value : position + len(body)] = False

    def _block(self, place: int, size: int, num_checksum_bytes: int) -> _Block:
        self._num_blocks, self._num_bytes = self._num_blocks + 1, self._num_bytes + size
        if self._num_blocks > _MAX_BLOCKS or self._num_bytes > _MAX_BYTES:
            raise ValueError("headers that are too large")
        example = np.frombuffer(self._bytes(place, size), np.uint8)
        return _Block(example, np.ones(size, np.bool_), num_checksum_bytes)

    def _bytes(self, place: int, size: int) -> bytes:
        return self._region.rows(np.array([place], np.uint64).astype(np.int64), size).tobytes()


@dataclass(frozen=True)
class _Block:
    """Form of a part of a header that is contiguous in the file.

    Attributes:
        example: its bytes in the example, (S,).
        is_fixed: (S,) bool, which bytes have to be the example's.
        num_checksum_bytes: number of bytes at the end that are a checksum.
        numbers: positions of numbers of 8 bytes, by the path of the object and the number's name.
        children: positions of the places of other blocks, and their forms.
    """

    example: NDArray[np.uint8]
    is_fixed: NDArray[np.bool_]
    num_checksum_bytes: int
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    children: list[tuple[int, _Block]] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        """Bytes of the example."""
        return self.example.tobytes()

    def add_number(self, key: tuple[str, str], position: int) -> None:
        """Let a number of 8 bytes differ."""
        if position + 8 > len(self.example) - self.num_checksum_bytes:
            raise ValueError("a message that is too short")
        self.numbers[key] = position
        self.is_fixed[position : position + 8] = False

    def add_child(self, position: int, child: _Block) -> None:
        """Let the place of another block differ."""
        self.children.append((position, child))
        self.is_fixed[position : position + 8] = False

    def all_numbers(self) -> set[tuple[str, str]]:
        """Return the keys of all numbers in this block and its children."""
        return set(self.numbers).union(*(child.all_numbers() for _, child in self.children))

    def is_like(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of some blocks, (N, S), have the example's fixed bytes, (N,)."""
        is_alike: NDArray[np.bool_] = np.logical_not(((rows ^ self.example) * self.is_fixed).any(axis=1))
        return is_alike


def _number(rows: NDArray[np.uint8], position: int) -> NDArray[np.int64]:
    """Return the numbers of 8 bytes at a position of each row."""
    return np.ascontiguousarray(rows[:, position : position + 8]).view("<i8")[:, 0].astype(np.int64)
