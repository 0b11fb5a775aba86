"""Columns in `.npz` files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rollserve.errors import mismatch

if TYPE_CHECKING:
    import os

    from rollserve._codec.columns import Columns

__all__ = ["UNREADABLE_ERRORS", "load_column", "load_columns", "save_columns"]

UNREADABLE_ERRORS = (EOFError, LookupError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors that reading a file raises if it is not a file of columns."""

_ZIP_START = b"PK\x03\x04"


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
    """Read columns from a file; raises one of `UNREADABLE_ERRORS` if it holds something else."""
    columns: dict[str, Any] = {}
    with _open(file) as arrays:
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
        return arrays[name] if name in arrays.files else None


def _open(file: IO[bytes]) -> Any:
    """Return the arrays of a file, which are read when they are asked for."""
    start = file.read(len(_ZIP_START))
    file.seek(0)
    if start != _ZIP_START:  # numpy would take the file for a pickle
        raise ValueError(mismatch("the start of a .npz file", start))
    return np.load(file, allow_pickle=False)
