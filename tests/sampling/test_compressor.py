"""The compressor skips columns that do not shrink, and tries them again from time to time."""

from __future__ import annotations

import numpy as np

from rollserve_server.sampling.encode.compression import Compressor
from rollserve_server.sampling.encode.fields import CompressedRows, Rows
from rollserve_wire.v1.tensor_pb2 import COMPRESSION_LZ4

NOISE = Rows.of(np.random.default_rng(0).integers(0, 256, (64, 1024), np.uint8))
ZEROS = Rows.of(np.zeros((64, 1024), np.uint8))


def shrinks(compressor: Compressor, rows: Rows, key: str = "a") -> bool:
    return isinstance(compressor.compress(key, rows, COMPRESSION_LZ4), CompressedRows)


def test_column_that_shrinks_is_compressed_each_time() -> None:
    compressor = Compressor()
    assert all(shrinks(compressor, ZEROS) for _ in range(100))
    assert not shrinks(compressor, NOISE)


def test_column_that_does_not_shrink_is_tried_again_after_10_messages() -> None:
    compressor = Compressor()
    assert not shrinks(compressor, NOISE)
    first = next(message for message in range(100) if shrinks(compressor, ZEROS))
    assert first > 10
    assert shrinks(compressor, ZEROS)
    assert shrinks(Compressor(), ZEROS)


def test_columns_are_independent() -> None:
    compressor = Compressor()
    assert not shrinks(compressor, NOISE, "noise")
    assert shrinks(compressor, ZEROS, "zeros")


def test_small_column_is_not_compressed() -> None:
    assert not shrinks(Compressor(), Rows.of(np.zeros(1000, np.uint8)))


def test_noise_with_a_regular_middle_is_not_compressed() -> None:
    mixed = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    mixed[(1 << 19) : (1 << 19) + (1 << 15)] = 0
    assert not shrinks(Compressor(), Rows.of(mixed))
