"""Columns in `.npz` files."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_wire.columns import Columns

__all__ = ["UNREADABLE_ERRORS", "load_column", "load_columns", "save_columns"]

UNREADABLE_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError),
    *(ValueError, zipfile.BadZipFile, zlib.error),
)
"""Errors that reading a file raises if it is not a file of columns."""

_ZIP_START = b"PK\x03\x04"
_MAX_EXPANDED_BYTES = 1 << 30
"""Bytes of the columns of a file that is smaller: what its compressed columns claim beyond that is refused."""


def save_columns(path: str | os.PathLike[str], columns: Mapping[str, Columns | None]) -> None:
    """Write columns to exactly this path; leaves are named `column/leaf`, and None is left out."""
    arrays: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            arrays |= {f"{name}/{leaf}": array for leaf, array in column.items()}
        elif column is not None:
            arrays[name] = column
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # no column has the name of an option


def load_columns(file: IO[bytes]) -> dict[str, Any]:
    """Read columns from a file; raises one of `UNREADABLE_ERRORS` if it holds something else.

    No memory is taken for what the file only claims: beyond its own size and 1 GiB, claims are refused.
    """
    columns: dict[str, Any] = {}
    with _open(file) as arrays:
        _check_claims(file, arrays.zip.infolist(), arrays.zip)
        for name in arrays.files:
            column, slash, leaf = name.partition("/")
            if slash:
                columns.setdefault(column, {})[leaf] = arrays[name]
            else:
                columns[column] = arrays[name]
    return columns


def load_column(file: IO[bytes], name: str) -> np.ndarray | None:
    """Read one column without leaves from a file, None if there is none; raises as `load_columns`."""
    with _open(file) as arrays:
        if name not in arrays.files:
            return None
        members = [each for each in arrays.zip.infolist() if each.filename in (name, f"{name}.npy")]
        _check_claims(file, members, arrays.zip)
        column: np.ndarray = arrays[name]
        return column


def _open(file: IO[bytes]) -> Any:
    """Return the arrays of a file, which are read when they are asked for."""
    start = file.read(len(_ZIP_START))
    file.seek(0)
    if start != _ZIP_START:  # numpy would take the file for a pickle
        raise ValueError(mismatch("the start of a .npz file", start))
    return np.load(file, allow_pickle=False)


def _check_claims(file: IO[bytes], members: Iterable[zipfile.ZipInfo], archive: zipfile.ZipFile) -> None:
    """Raise ValueError for members that claim more bytes than they or the file may hold."""
    most = max(_MAX_EXPANDED_BYTES, os.fstat(file.fileno()).st_size)
    total = 0
    for member in members:
        total += member.file_size
        if total > most:
            raise ValueError(f"{member.filename}: {mismatch(f'at most {most} bytes of columns', total)}")
        with archive.open(member) as opened:
            shape, _, dtype = _read_header(opened)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            text = mismatch(f"an array in {member.file_size} bytes", f"shape {shape} of {dtype}")
            raise ValueError(f"{member.filename}: {text}")


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and dtype of an array in numpy's format."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)
