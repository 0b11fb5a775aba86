"""Lossless compression of columns that shrink by it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import lz4.block
import zstandard

from rollserve_server.sampling.encode.fields import CompressedRows, Gathered, Rows
from rollserve_wire.v1.tensor_pb2 import COMPRESSION_LZ4, COMPRESSION_ZSTD, Compression

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMPRESSIONS", "Compressor"]

_MIN_BYTES = 1 << 10
"""Size below which a column is never compressed: the gain is not worth the time."""

_SAMPLE_BYTES = 16 << 10
"""Size of the sample of a large column that is compressed first: it takes little time if the column does not shrink."""

_MAX_KEPT_SHARE = 0.9
"""Share of its bytes that a compressed column may have at most; otherwise the column is sent plain."""

_NUM_SKIPPED = 32
"""Number of messages in which an encoding that did not help is skipped before the next attempt."""


def _lz4(data: memoryview) -> bytes:
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def _zstd(data: memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=-1).compress(data)


_COMPRESS: dict[Compression.ValueType, Callable[[memoryview], bytes]] = {
    COMPRESSION_LZ4: _lz4,
    COMPRESSION_ZSTD: _zstd,
}

COMPRESSIONS = frozenset(_COMPRESS)
"""Codecs that this server supports."""


class Compressor:
    """Compresses the columns of one sequence that shrink by it, and remembers which do not."""

    def __init__(self) -> None:
        # The number of messages in which a column is not tried again, and the columns that shrank at the last attempt.
        self._num_to_skip: dict[Hashable, int] = {}
        self._helped: set[Hashable] = set()

    def compress(
        self, key: Hashable, rows: Rows | Gathered, compression: Compression.ValueType
    ) -> Rows | Gathered | CompressedRows:
        """Return the rows, compressed if that takes at least a tenth off their size.

        Args:
            key: identity of the column within the sequence.
            rows: content of the column in this message.
            compression: codec.
        """
        key = key, compression
        if rows.num_bytes < _MIN_BYTES:
            return rows
        if left := self._num_to_skip.get(key, 0):
            self._num_to_skip[key] = left - 1
            return rows
        data, shrink = rows.contiguous().data, _COMPRESS[compression]
        if key not in self._helped and len(data) > 2 * _SAMPLE_BYTES:
            sample = data[len(data) // 2 :][:_SAMPLE_BYTES]
            if len(shrink(sample)) > _MAX_KEPT_SHARE * len(sample):
                self._num_to_skip[key] = _NUM_SKIPPED
                return rows
        compressed = shrink(data)
        if len(compressed) > _MAX_KEPT_SHARE * len(data):
            self._helped.discard(key)
            self._num_to_skip[key] = _NUM_SKIPPED
            return rows
        self._helped.add(key)
        return CompressedRows(rows, compression, compressed)
