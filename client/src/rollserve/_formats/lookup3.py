"""The checksum of HDF5's metadata: `hashlittle` of Bob Jenkins' lookup3, http://burtleburtle.net/bob/c/lookup3.c."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["ends_are_lookup3", "lookup3"]

_MASK = 0xFFFFFFFF
_CHECKSUM_BYTES = 4
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


def ends_are_lookup3(blocks: Sequence[NDArray[np.uint8]]) -> NDArray[np.bool_]:
    """Return for N rows whether each of some blocks ends with the checksum of its bytes before, (N,).

    All blocks of all rows are mixed at once, the longest first, so that those that are not at their end come first.

    Args:
        blocks: at least one, (N, S) each, of more than 4 bytes.
    """
    blocks = sorted(blocks, key=lambda rows: -rows.shape[1])
    num_rows, sizes = len(blocks[0]), [rows.shape[1] - _CHECKSUM_BYTES for rows in blocks]
    num_turns = [-(-size // 12) for size in sizes]
    content = np.zeros((len(blocks), num_rows, 12 * num_turns[0]), np.uint8)
    for padded, rows, size in zip(content, blocks, sizes, strict=True):
        padded[:, :size] = rows[:, :size]
    words = np.ascontiguousarray(content.reshape(-1, 12 * num_turns[0]).view("<u4").T).astype(np.uint32, copy=False)
    a = np.repeat(np.array(sizes, np.uint32) + np.uint32(0xDEADBEEF), num_rows)
    b, c = a.copy(), a.copy()
    memory = np.empty((2, len(a)), np.uint32)
    for turn in range(num_turns[0]):
        count = num_rows * sum(each > turn for each in num_turns)
        for number, added in zip((a, b, c), words[3 * turn : 3 * turn + 3], strict=True):
            number[:count] += added[:count]
        count = num_rows * sum(each > turn + 1 for each in num_turns)
        x, y, z = a[:count], b[:count], c[:count]
        for shift in _MIX if count else ():
            x -= z
            x ^= _all_rotated(z, shift, memory[:, :count])
            z += y
            x, y, z = y, z, x
    for shift in _FINAL:
        c ^= b
        c -= _all_rotated(b, shift, memory)
        a, b, c = b, c, a
    found = np.concatenate([rows[:, -_CHECKSUM_BYTES:] for rows in blocks]).view("<u4")[:, 0]
    are_right: NDArray[np.bool_] = (found == b).reshape(len(blocks), num_rows).all(axis=0)
    return are_right


def _all_rotated(words: NDArray[np.uint32], shift: int, memory: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Rotate words (M,) into the first row of some memory, (2, M)."""
    np.left_shift(words, np.uint32(shift), out=memory[0])
    np.right_shift(words, np.uint32(32 - shift), out=memory[1])
    rotated: NDArray[np.uint32] = np.bitwise_or(memory[0], memory[1], out=memory[0])
    return rotated


def _rotated(word: int, shift: int) -> int:
    return (word << shift | word >> 32 - shift) & _MASK
