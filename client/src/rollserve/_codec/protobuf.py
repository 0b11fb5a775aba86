"""The fields of a serialized protocol buffer, found without copying any of their values.

See https://protobuf.dev/programming-guides/encoding. Whatever is legal but not what servers write is left to the
generated classes: what is read here is read as they read it.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["LENGTH_DELIMITED", "VARINT", "Field", "UnusualError", "fields", "key_of", "varint"]

VARINT, LENGTH_DELIMITED = 0, 2
_FIXED64, _FIXED32 = 1, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MOST_VARINT_BYTES = 10
_MOST_SMALL_BYTES = 5
"""Of the varint of a key or a length."""
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


class UnusualError(Exception):
    """Bytes that are malformed, or legal and not what servers write: the generated classes are to judge."""


Field = tuple[int, int, int, int]
"""Where a field stands: its key, as `key_of` makes it; where that begins; where the value begins, which for a
length-delimited one is behind the length; where it ends.
"""


def key_of(number: int, wire_type: int) -> int:
    """The key of a field."""
    return number << 3 | wire_type


def varint(value: int) -> bytes:
    """A number as it is written; not negative."""
    if value <= 0x7F:
        return _ONE_BYTE[value]
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def fields(data: memoryview, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message that stands from `start` up to `stop`, in their order.

    Raises:
        UnusualError: it has groups, ends within a field, or has keys or lengths that are longer than they need be.
        IndexError: so it does at the end of the data.
    """
    while start < stop:
        begin = start
        key, start = data[start], start + 1
        if key >= 0x80:
            key, start = _small_varint(data, begin)
        wire_type = key & 7
        if wire_type == LENGTH_DELIMITED:
            size = data[start]
            start += 1
            if size >= 0x80:
                size, start = _small_varint(data, start - 1)
            end = start + size
        elif wire_type == VARINT:
            end = _varint_end(data, start)
        else:
            end = start + _FIXED_BYTES.get(wire_type, stop + 1)
        if end > stop or key < 8:
            raise UnusualError
        yield key, begin, start, end
        start = end


def _small_varint(data: memoryview, start: int) -> tuple[int, int]:
    """A number below 2**32, and where it ends."""
    value = 0
    for position in range(start, start + _MOST_SMALL_BYTES):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            if (byte == 0 and position > start) or value >> 32:
                break
            return value, position + 1
    raise UnusualError


def _varint_end(data: memoryview, start: int) -> int:
    for position in range(start, start + _MOST_VARINT_BYTES):
        if data[position] < 0x80:
            return position + 1
    raise UnusualError
