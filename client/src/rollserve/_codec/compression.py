"""Compression of columns, without loss: which ways there are, and how to undo them.

The packages that do it are the extra `rollserve[compression]`; they are imported when they are first needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

from rollserve._checks import check_choice, check_type
from rollserve.v1 import tensor_pb2

__all__ = ["MOST_RAW_BYTES", "Compression", "compressions_to_proto", "decompress"]

Compression = Literal["lz4", "zstd"]
"""A way to compress: lz4 is the faster one, zstd makes less of it."""

_MODULES = {"lz4": "lz4.block", "zstd": "zstandard"}
_TO_PROTO = {"lz4": tensor_pb2.COMPRESSION_LZ4, "zstd": tensor_pb2.COMPRESSION_ZSTD}
MOST_RAW_BYTES = 256 << 20
"""What a message may take at most, in the end: the contract has no larger ones."""
_MOST_RATIO = {tensor_pb2.COMPRESSION_LZ4: 255, tensor_pb2.COMPRESSION_ZSTD: 1 << 15}
"""How many bytes one compressed byte can stand for, as the formats are."""


def compressions_to_proto(
    compression: Compression | Sequence[Compression] | None,
) -> list[tensor_pb2.Compression.ValueType]:
    """The wire's names for what a caller accepts, in the same order.

    Raises:
        TypeError: it is neither a name nor a sequence of names.
        InvalidArgumentError: a name is unknown.
        ModuleNotFoundError: a package that it needs is not installed; the message says how to install it.
    """
    names = [compression] if isinstance(compression, str) else compression or ()
    check_type("compression", names, Sequence, "a name or a sequence of names")
    for name in names:
        check_type("compression", name, str, "a name or a sequence of names")
        check_choice("compression", name, get_args(Compression))
        _module(name)
    return [_TO_PROTO[name] for name in names]


def decompress(data: bytes | memoryview, compression: tensor_pb2.Compression.ValueType, num_bytes: int) -> bytes:
    """The data as it was before it was compressed.

    No more than `num_bytes` are ever allocated, and nothing where the data cannot stand for as many.

    Args:
        data: one block of LZ4, or one frame of Zstandard.
        compression: which of them.
        num_bytes: how many bytes have to come out.

    Raises:
        ValueError: the compression is unknown, the data is malformed, or other than that many bytes come out.
        ModuleNotFoundError: the package is not installed.
    """
    if compression not in _MOST_RATIO:
        raise ValueError(f"compression {compression} came, a value of Compression was expected")
    num_compressed = memoryview(data).nbytes
    if num_bytes > min(MOST_RAW_BYTES, _MOST_RATIO[compression] * num_compressed):
        raise ValueError(f"{num_compressed} compressed bytes came, which cannot be {num_bytes}")
    undo = _undo_lz4 if compression == tensor_pb2.COMPRESSION_LZ4 else _undo_zstd
    raw = undo(data, num_bytes)
    if len(raw) != num_bytes:
        raise ValueError(f"{num_compressed} compressed bytes came that are {len(raw)}, {num_bytes} were expected")
    return raw


def _undo_lz4(data: bytes | memoryview, num_bytes: int) -> bytes:
    lz4 = _module("lz4")
    try:
        raw: bytes = lz4.decompress(data, uncompressed_size=num_bytes)
    except lz4.LZ4BlockError as error:
        raise ValueError(f"malformed LZ4: {error}") from None
    return raw


def _undo_zstd(data: bytes | memoryview, num_bytes: int) -> bytes:
    zstd = _module("zstd")
    try:
        # The decompressor allocates what the frame says, whatever it is told.
        stated = zstd.get_frame_parameters(data).content_size
        if stated not in (num_bytes, zstd.CONTENTSIZE_UNKNOWN):
            raise ValueError(f"a frame of Zstandard that says {stated} bytes came, {num_bytes} were expected")
        raw: bytes = zstd.ZstdDecompressor().decompress(data, max_output_size=num_bytes, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise ValueError(f"malformed Zstandard: {error}") from None
    return raw


def _module(name: str) -> Any:
    try:
        return importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        text = f"compression {name!r} needs the package {error.name}: pip install 'rollserve[compression]'"
        raise ModuleNotFoundError(text, name=error.name) from None
