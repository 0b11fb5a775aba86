"""Scanner and writer for the wire format of protocol buffers, without copies of the values.

See https://protobuf.dev/programming-guides/encoding. Large arrays stay where they are: the scanner says where values
begin and end, and the writer collects parts that the caller joins or copies once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

__all__ = [
    "LENGTH_DELIMITED",
    "VARINT",
    "ArrayPart",
    "Field",
    "UnusualError",
    "fields",
    "key_of",
    "keys_of",
    "length_delimited",
    "size_of",
    "text_field",
    "varint",
    "varint_field",
]

VARINT, LENGTH_DELIMITED = 0, 2
_FIXED64, _FIXED32 = 1, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_MAX_STRICT_VARINT_BYTES = 5  # of a key or a length, which is below 2**32
_MERGED_BYTES = 256  # up to this length bytes are merged with the ones before: a part costs more than such a copy
_BYTES = (bytes, memoryview)


class UnusualError(Exception):
    """Bytes that are malformed, or legal but not what Rollserve writes: the generated classes have to parse them."""


Field = tuple[int, int, int, int]
"""Position of a field: its key (see `key_of`), the start of the key, the start of the value and the end of the value.

The value of a length-delimited field starts behind its length.
"""


class ArrayPart(Protocol):
    """Part of a message that is copied into place when the message is written."""

    @property
    def num_bytes(self) -> int:
        """Size of the part in bytes."""
        ...


_P = TypeVar("_P", bound=bytes | memoryview | ArrayPart)


def key_of(number: int, wire_type: int) -> int:
    """Return the key of a field: its number and its wire type in one integer."""
    return number << 3 | wire_type


def keys_of(message: Descriptor) -> dict[str, int]:
    """Return the keys of a message's fields by name, as if all of them were length-delimited."""
    return {field.name: key_of(field.number, LENGTH_DELIMITED) for field in message.fields}


def fields(data: bytes | memoryview, start: int, stop: int, *, strict: bool = True) -> Iterator[Field]:
    """Yield the fields of the message between two positions, in their order.

    Args:
        data: bytes that hold the message.
        start: position of its first byte.
        stop: position behind its last byte.
        strict: whether to accept only what Rollserve writes. Otherwise whatever is legal is accepted, the limits of
            groups count as fields without a value, and a value may end behind `stop`.

    Raises:
        UnusualError: a varint of more than 10 bytes. If strict, also a group, a value that ends behind `stop`, the
            field number 0, and a key or length that is longer than necessary or not below 2**32.
        IndexError: a field that ends behind the end of the data.
    """
    unknown_bytes = stop + 1 if strict else 0
    while start < stop:
        begin = start
        key, start = data[start], start + 1
        if key >= 0x80:
            key, start = _read_varint(data, begin, strict)
        wire_type = key & 7
        if wire_type == LENGTH_DELIMITED:
            size = data[start]
            start += 1
            if size >= 0x80:
                size, start = _read_varint(data, start - 1, strict)
            end = start + size
        elif wire_type == VARINT:
            end = _varint_end(data, start)
        else:
            end = start + _FIXED_BYTES.get(wire_type, unknown_bytes)
        if strict and (end > stop or key < 8):
            raise UnusualError
        yield key, begin, start, end
        start = end


@functools.lru_cache(maxsize=1 << 12)  # keys, data types and sizes are the same again and again
def varint(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def varint_field(number: int, value: int) -> bytes:
    """Return a field that holds a non-negative integer."""
    return varint(key_of(number, VARINT)) + varint(value)


def text_field(key: int, text: str) -> bytes:
    """Return a field that holds a text."""
    encoded = text.encode()
    return varint(key) + varint(len(encoded)) + encoded


def length_delimited(key: int, parts: Sequence[_P]) -> list[bytes | _P]:
    """Return a field with the given content, in parts: a message, bytes, a text or packed numbers.

    Bytes of up to 256 are merged with the bytes before them.
    """
    merged: list[bytes | _P] = [varint(key) + varint(size_of(parts))]
    for part in parts:
        last = merged[-1]
        if isinstance(part, bytes) and isinstance(last, bytes) and len(part) <= _MERGED_BYTES:
            merged[-1] = last + part
        else:
            merged.append(part)
    return merged


def size_of(parts: Sequence[bytes | memoryview | ArrayPart]) -> int:
    """Return the size of parts in bytes."""
    return sum([len(part) if isinstance(part, _BYTES) else part.num_bytes for part in parts])


def _read_varint(data: bytes | memoryview, start: int, strict: bool) -> tuple[int, int]:
    """Return the value of the varint at a position, and the position behind it."""
    value = 0
    for position in range(start, start + (_MAX_STRICT_VARINT_BYTES if strict else _MAX_VARINT_BYTES)):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            if strict and ((byte == 0 and position > start) or value >> 32):
                break
            return value, position + 1
    raise UnusualError


def _varint_end(data: bytes | memoryview, start: int) -> int:
    for position in range(start, start + _MAX_VARINT_BYTES):
        if data[position] < 0x80:
            return position + 1
    raise UnusualError
