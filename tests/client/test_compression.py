"""Compressed tensors and frame stacks, as a client reads them: exact, and never larger than stated."""

from __future__ import annotations

import sys
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support import raises

import rollserve
from rollserve._calls.responses import unstack_frames
from rollserve_wire.compression import decompress
from rollserve_wire.tensors import named_tensors_from_proto, tensor_from_proto, tensor_to_proto
from rollserve_wire.v1 import tensor_pb2

LZ4, ZSTD = tensor_pb2.COMPRESSION_LZ4, tensor_pb2.COMPRESSION_ZSTD
HUGE = 1 << 40


def compressed(data: bytes, compression: int) -> bytes:
    if compression == LZ4:
        return lz4.block.compress(data, store_size=False)
    return zstandard.ZstdCompressor(level=-1).compress(data)


@given(
    data=st.binary(min_size=1, max_size=300).map(lambda part: part * 20),
    compression=st.sampled_from([LZ4, ZSTD]),
)
def test_decompress_restores_the_data(data: bytes, compression: int) -> None:
    assert decompress(compressed(data, compression), compression, len(data)) == data


@given(
    data=st.binary(min_size=1, max_size=200),
    compression=st.sampled_from([LZ4, ZSTD]),
    num_bytes=st.one_of(st.integers(0, 400), st.sampled_from([HUGE, 256 << 20, (256 << 20) + 1])),
    is_compressed=st.booleans(),
)
def test_decompress_rejects_another_size(data: bytes, compression: int, num_bytes: int, is_compressed: bool) -> None:
    received = compressed(data, compression) if is_compressed else data
    try:
        raw = decompress(received, compression, num_bytes)
    except ValueError:
        assert not is_compressed or num_bytes != len(data)
    else:
        assert len(raw) == num_bytes


def test_decompress_rejects_a_frame_with_another_stated_size() -> None:
    bomb = compressed(bytes(64 << 20), ZSTD)
    with raises(ValueError, quotes=("67108864", "4096")):
        decompress(bomb, ZSTD, 4096)
    silent = zstandard.ZstdCompressor(level=-1, write_content_size=False).compress(bytes(1 << 20))
    with raises(ValueError, quotes="Zstandard"):
        decompress(silent, ZSTD, 4096)
    assert decompress(silent, ZSTD, 1 << 20) == bytes(1 << 20)
    with raises(ValueError, quotes=str(HUGE)):
        decompress(bomb, ZSTD, HUGE)


@pytest.mark.parametrize("compression", [LZ4, ZSTD])
def test_compression_is_accepted_for_columns_only(compression: int) -> None:
    array = np.arange(5000, dtype="<i4").reshape(50, 100) // 100
    tensor = tensor_to_proto(array)
    tensor.data = compressed(tensor.data, compression)
    tensor.compression = compression
    np.testing.assert_array_equal(tensor_from_proto(tensor, is_column=True), array)
    with raises(ValueError, quotes="compression"):
        tensor_from_proto(tensor)
    named = tensor_pb2.NamedTensor(name="x", tensor=tensor)
    with raises(ValueError, quotes=("'x'", "compression")):
        named_tensors_from_proto([named])
    tensor.compression = 77
    with raises(ValueError, quotes=("compression", "77")):
        tensor_from_proto(tensor, is_column=True)


def test_huge_shape_is_rejected_before_memory_is_allocated() -> None:
    tensor = tensor_pb2.Tensor(
        data_type=tensor_pb2.DATA_TYPE_UINT8, shape=[HUGE], data=compressed(bytes(1000), LZ4), compression=LZ4
    )
    with raises(ValueError, quotes=str(HUGE)):
        tensor_from_proto(tensor, is_column=True)


@given(
    lengths=st.lists(st.integers(1, 9), max_size=6),
    frame_count=st.integers(2, 5),
    shape=st.sampled_from([(), (3,), (2, 3)]),
    seed=st.integers(0, 100),
)
def test_unstack_frames_restores_the_observations(
    lengths: list[int], frame_count: int, shape: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frames, observations, last_observations = [], [], []
    for length in lengths:
        frames_of_segment = rng.integers(0, 256, (length + frame_count, *shape), np.uint8)
        stacks = [frames_of_segment[step : step + frame_count] for step in range(length + 1)]
        frames += list(frames_of_segment)
        observations += stacks[:-1]
        last_observations.append(stacks[-1])
    unstacked = unstack_frames(np.array(frames, np.uint8).reshape(-1, *shape), frame_count, np.array(lengths, np.int64))
    for array, expected in zip(unstacked, (observations, last_observations), strict=True):
        np.testing.assert_array_equal(array, np.array(expected, np.uint8).reshape(-1, frame_count, *shape))
        assert not array.flags.writeable


@pytest.mark.parametrize(
    ("num_frames", "frame_count", "lengths", "quotes"),
    [
        (7, 1, [5], ("frame_count", "1")),
        (9, 4, [4], ("frames", "(9,)", "8")),
        (8, 4, [0, 0], ("length", "0")),
        (8, 4, [-1, 1], ("length", "-1")),
        (60_000, 10_000, [20_000, 20_000], ("400020000", "268435456")),
    ],
)
def test_unstack_frames_rejects_frames_that_do_not_fit(
    num_frames: int, frame_count: int, lengths: list[int], quotes: str
) -> None:
    with raises(ValueError, quotes=quotes):
        unstack_frames(np.zeros(num_frames, np.uint8), frame_count, np.array(lengths, np.int64))


def test_unstack_frames_does_not_copy_one_segment() -> None:
    frames = np.arange(20, dtype=np.uint8).reshape(10, 2)
    observations, _ = unstack_frames(frames, 4, np.array([6]))
    assert np.shares_memory(observations, frames)


@pytest.mark.parametrize(
    ("compression", "error"),
    [("gzip", rollserve.InvalidArgumentError), (["zstd", 4], TypeError), (True, TypeError)],
)
def test_unknown_compression_is_rejected(compression: Any, error: type[Exception]) -> None:
    with raises(error, field="compression"):
        rollserve.connect("127.0.0.1:1", compression=compression)
    with rollserve.connect("127.0.0.1:1") as sampler, raises(error, field="compression"):
        sampler.obtain_samples(1, compression=compression)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with raises(ModuleNotFoundError, quotes=("'lz4'", "rollserve[compression]")):
        rollserve.connect("127.0.0.1:1", compression="lz4")
    rollserve.connect("127.0.0.1:1", compression="zstd").close()
