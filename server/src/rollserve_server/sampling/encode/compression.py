"""Columns made smaller without loss, where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import lz4.block
import zstandard

from rollserve.v1.tensor_pb2 import COMPRESSION_LZ4, COMPRESSION_ZSTD, Compression
from rollserve_server.sampling.encode.fields import CompressedRows, Gathered, Rows
from rollserve_server.sampling.encode.payoff import Payoffs

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["COMPRESSIONS", "Compressor"]

_LEAST_BYTES = 1 << 10
"""Below this a column is not worth the time."""
_SLICE_BYTES = 16 << 10
"""How much of a large column is tried at first: what does not shrink costs microseconds so."""
_MOST_KEPT = 0.9
"""What share of its bytes a column may keep to come compressed."""


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
"""Those that there are."""


class Compressor:
    """Compresses the columns of one stream that shrink by it, and remembers which do not."""

    def __init__(self) -> None:
        self._payoffs = Payoffs()

    def compress(
        self, key: Hashable, rows: Rows | Gathered, compression: Compression.ValueType
    ) -> Rows | Gathered | CompressedRows:
        """The rows, compressed if that takes a tenth off them.

        Args:
            key: names the column among those of the stream.
            rows: what it holds in this message.
            compression: how.
        """
        key = key, compression
        if rows.num_bytes < _LEAST_BYTES or not self._payoffs.is_due(key):
            return rows
        data, shrink = rows.contiguous().data, _COMPRESS[compression]
        if not self._payoffs.has_helped(key) and len(data) > 2 * _SLICE_BYTES:
            middle = data[len(data) // 2 :][:_SLICE_BYTES]
            if len(shrink(middle)) > _MOST_KEPT * len(middle):
                self._payoffs.tell(key, helped=False)
                return rows
        compressed = shrink(data)
        helped = len(compressed) <= _MOST_KEPT * len(data)
        self._payoffs.tell(key, helped=helped)
        return CompressedRows(rows, compression, compressed) if helped else rows
