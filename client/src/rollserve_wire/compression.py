"""Lossless compression of columns: codec names, and decompression within known bounds.

The packages that decompress are in the extra `rollserve[compression]`. They are imported when they are first needed.
"""

from __future__ import annotations

import importlib
from typing import Any

from rollserve_wire.errors import mismatch
from rollserve_wire.v1 import tensor_pb2

__all__ = ["CODECS", "MAX_RAW_BYTES", "decompress", "import_codec"]

CODECS = {"lz4": tensor_pb2.COMPRESSION_LZ4, "zstd": tensor_pb2.COMPRESSION_ZSTD}
"""Codecs that the wire has, by name."""

MAX_RAW_BYTES = 256 << 20
"""Largest decompressed size of a message, in bytes: the wire contract has no larger messages."""

_MODULES = {"lz4": "lz4.block", "zstd": "zstandard"}
_MAX_RATIO = {tensor_pb2.COMPRESSION_LZ4: 255, tensor_pb2.COMPRESSION_ZSTD: 1 << 15}
"""Largest number of bytes that one compressed byte can stand for, by the definition of the format."""


def decompress(data: bytes | memoryview, compression: tensor_pb2.Compression.ValueType, num_bytes: int) -> bytes:
    """Return data as it was before compression.

    Never allocates more than `num_bytes`, and nothing if the data cannot stand for as many.

    Args:
        data: one block of LZ4, or one frame of Zstandard.
        compression: codec that compressed the data.
        num_bytes: size of the decompressed data.

    Raises:
        ValueError: an unknown codec, malformed data, or data of another decompressed size.
        ModuleNotFoundError: the codec's package is not installed.
    """
    if compression not in _MAX_RATIO:
        raise ValueError(f"compression: {mismatch('a member of Compression', compression)}")
    num_compressed = memoryview(data).nbytes
    if num_bytes > min(MAX_RAW_BYTES, _MAX_RATIO[compression] * num_compressed):
        raise ValueError(f"data: {mismatch(f'enough bytes for {num_bytes}', f'{num_compressed} compressed bytes')}")
    decompressor = _decompress_lz4 if compression == tensor_pb2.COMPRESSION_LZ4 else _decompress_zstd
    raw = decompressor(data, num_bytes)
    if len(raw) != num_bytes:
        raise ValueError(f"data: {mismatch(f'{num_bytes} decompressed bytes', len(raw))}")
    return raw


def import_codec(name: str) -> Any:
    """Return the module of a codec.

    Raises:
        ModuleNotFoundError: its package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        text = f"compression {name!r} needs the package {error.name}: pip install 'rollserve[compression]'"
        raise ModuleNotFoundError(text, name=error.name) from None


def _decompress_lz4(data: bytes | memoryview, num_bytes: int) -> bytes:
    lz4 = import_codec("lz4")
    try:
        raw: bytes = lz4.decompress(data, uncompressed_size=num_bytes)
    except lz4.LZ4BlockError as error:
        raise ValueError(f"data: {mismatch('a block of LZ4', 'malformed data', str(error))}") from None
    return raw


def _decompress_zstd(data: bytes | memoryview, num_bytes: int) -> bytes:
    zstd = import_codec("zstd")
    try:
        # The decompressor allocates the size that the frame states, even beyond max_output_size.
        stated = zstd.get_frame_parameters(data).content_size
        if stated not in (num_bytes, zstd.CONTENTSIZE_UNKNOWN):
            raise ValueError(f"data: {mismatch(f'a frame of {num_bytes} bytes', f'a frame that states {stated}')}")
        raw: bytes = zstd.ZstdDecompressor().decompress(data, max_output_size=num_bytes, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise ValueError(f"data: {mismatch('a frame of Zstandard', 'malformed data', str(error))}") from None
    return raw
