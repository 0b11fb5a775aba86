"""Base of the readers of all formats: units in chunks, files that stay the same, and errors."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve._codec.column_files import UNREADABLE_ERRORS
from rollserve_wire.errors import InvalidArgumentError, mismatch

if TYPE_CHECKING:
    import numpy as np

    from rollserve_wire.spaces import Space

__all__ = ["EXTRA", "RandomAccess", "Source", "UnreadableError", "check_bytes", "check_numbers", "file_error"]

EXTRA = "data"
"""Extra of this package that installs the libraries of all formats."""

_MAX_CHUNK_BYTES = 1 << 30
"""Bytes of the columns of one chunk: what a file claims beyond that is refused before memory is taken for it."""


class RandomAccess(NamedTuple):
    """Bounds of a source whose units are a segment each, and as fast to read in random order as one after the other.

    Attributes:
        max_units: number of units that may be read at once.
        mean_steps: mean number of their steps.
    """

    max_units: int
    mean_steps: float


class Source(abc.ABC):
    """Segments in files of one format, in units.

    Attributes:
        chunks: consecutive ranges of units, from 0 on. A range is read at once where units are read in order.
        random_access: how units are read in random order; None if chunks are read in random order.
        missing: what the format or the files lack, with the consequence, by the field of `EpisodeBatch`.
        spaces: spaces of observations and actions, or None if the files do not hold them.
        receipts: receipts in the files, as JSON.
        path: the first file, which errors name.
    """

    chunks: Sequence[range]
    random_access: RandomAccess | None = None
    missing: Mapping[str, str]
    spaces: tuple[Space, Space] | None = None
    receipts: Sequence[str] = ()

    def __init__(self, paths: Sequence[Path]) -> None:
        self.path = paths[0]
        self._stamps = {path: _stamp(path) for path in paths}

    def read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        """Return the fields of batches of the segments in some units, in their order.

        Args:
            units: the units: of one chunk; any, in any order, of a source with random access.

        Raises:
            ValueError: content that cannot be read, or files that have changed since the source was opened.
            OSError: files that are gone.
        """
        with self._stable():
            return self._read(units)

    @abc.abstractmethod
    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]: ...

    def close(self) -> None:  # noqa: B027  # formats whose files are not kept open have nothing to do
        """Close the files."""

    @contextlib.contextmanager
    def _stable(self) -> Iterator[None]:
        """Check that no file has changed since it was opened, which also explains what a changed file raises."""
        try:
            yield
        finally:
            for path, stamp in self._stamps.items():
                if _stamp(path) != stamp:
                    raise UnreadableError(
                        f"{path}: {mismatch('a file that stays as it is while it is read', 'a change')}"
                    )


@contextlib.contextmanager
def file_error(path: Path, expected: str) -> Iterator[None]:
    """Raise a ValueError that begins with the path in place of errors that unreadable content raises."""
    try:
        yield
    except (UnreadableError, InvalidArgumentError):
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except (*UNREADABLE_ERRORS, OSError) as error:
        raise UnreadableError(
            f"{path}: {mismatch(expected, ' '.join(str(error).split()) or type(error).__name__)}"
        ) from None


def check_bytes(name: str, num_bytes: int) -> None:
    """Raise ValueError if a column would take more memory than a chunk may."""
    if num_bytes > _MAX_CHUNK_BYTES:
        raise ValueError(f"{name}: {mismatch(f'at most {_MAX_CHUNK_BYTES} bytes at a time', num_bytes)}")


def check_numbers(name: str, array: np.ndarray, hint: str = "") -> np.ndarray:
    """Return an array of numbers or truth values; raise ValueError for anything else, such as objects."""
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{name}: {mismatch('numbers or truth values', f'dtype {array.dtype}', hint)}")
    return array


class UnreadableError(ValueError):
    """Error of content that cannot be read, or of files that change; it begins with the path."""


def _stamp(path: Path) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
