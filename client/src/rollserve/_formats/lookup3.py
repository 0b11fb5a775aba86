"""The checksum of HDF5's metadata: `hashlittle` of Bob Jenkins' lookup3, http://burtleburtle.net/bob/c/lookup3.c."""

from __future__ import annotations

import struct

__all__ = ["lookup3"]

_MASK = 0xFFFFFFFF
_MIX = (4, 6, 8, 16, 19, 4)
_FINAL = (14, 11, 25, 16, 4, 14, 24)


def lookup3(data: bytes | bytearray) -> int:
    """Return the checksum of at least one byte; about 12 µs for 44 bytes."""
    size = len(data)
    words: tuple[int, ...] = struct.unpack(f"<{-(-size // 12) * 3}I", bytes(data).ljust(-(-size // 12) * 12, b"\0"))
    a = b = c = (0xDEADBEEF + size) & _MASK
    for start in range(0, len(words) - 3, 3):
        a, b, c = (x + word & _MASK for x, word in zip((a, b, c), words[start:], strict=False))
        for shift in _MIX:
            a = (a - c & _MASK) ^ _rotated(c, shift)
            a, b, c = b, c + b & _MASK, a
    a, b, c = (x + word & _MASK for x, word in zip((a, b, c), words[-3:], strict=True))
    for shift in _FINAL:
        c = ((c ^ b) - _rotated(b, shift)) & _MASK
        a, b, c = b, c, a
    return b


def _rotated(word: int, shift: int) -> int:
    return (word << shift | word >> 32 - shift) & _MASK
