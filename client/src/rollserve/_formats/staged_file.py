"""A file whose changes become its content all at once, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["StagedFile", "journal_of", "replace_file"]

_PAGE_BYTES = 1 << 12
_ENTRY = struct.Struct("<Q")


class StagedFile(io.RawIOBase):
    """File for h5py's driver `fileobj`, which stays as it was until `commit`.

    What is written behind the end goes to the file at once, because nobody reads there. Pages before the end stay in
    memory until the commit, which first puts them into a journal beside the file. A process that is killed leaves
    either no journal and the content as it was, or a whole journal, which the next opening applies.

    An error of the disk is raised by `commit` alone: HDF5 cannot close a file whose writes fail.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file, and end a commit that was interrupted.

        Args:
            path: the file. Its journal is in the same folder, hidden.

        Raises:
            OSError: the file cannot be opened or written.
        """
        self._journal = journal_of(path)
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115  # `close` closes it
        try:
            if self._journal.exists():
                self._apply(self._journal.read_bytes())
        except BaseException:
            self._file.close()
            raise
        self._committed = self._end = os.fstat(self._file.fileno()).st_size
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self._error: OSError | None = None

    def __len__(self) -> int:
        return self._end

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._end)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        found = self._read(self._position, len(view))
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        for number, start, part in _pages_of(view, self._position):
            if number in self._pages:
                part[:] = self._pages[number][start : start + len(part)]
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        num_kept = max(-(-self._committed // _PAGE_BYTES) * _PAGE_BYTES - self._position, 0)
        for number, start, part in _pages_of(view[:num_kept], self._position):
            if number not in self._pages:
                found = self._read(number * _PAGE_BYTES, _PAGE_BYTES)
                self._pages[number] = bytearray(found.ljust(_PAGE_BYTES, b"\0"))
            self._pages[number][start : start + len(part)] = part
        if self._error is None:
            try:
                self._write(view[num_kept:], self._position + num_kept)
            except OSError as error:
                self._error = error
        self._position += len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._position if size is None else size
        return self._end

    def commit(self) -> None:
        """Make what was written since the last commit the file's content, after HDF5 has closed it.

        Raises:
            OSError: it cannot be written, such as because the disk is full. Nothing has changed then.
        """
        pages = (_ENTRY.pack(number) + page for number, page in self._pages.items())
        content = b"".join([_ENTRY.pack(self._end), *pages])
        try:
            if self._error is not None:
                raise self._error
            os.ftruncate(self._file.fileno(), max(self._end, self._committed))
            os.fsync(self._file.fileno())
            replace_file(self._journal, content)
        except OSError:
            self.rollback()
            raise
        self._apply(content)
        self._pages.clear()
        self._committed = self._end

    def rollback(self) -> None:
        """Drop what was written since the last commit."""
        self._pages.clear()
        self._error = None
        self._end = self._committed
        os.ftruncate(self._file.fileno(), self._end)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _apply(self, journal: bytes) -> None:
        """Write the pages of a journal, and remove it."""
        (end,) = _ENTRY.unpack_from(journal)
        for start in range(_ENTRY.size, len(journal), _ENTRY.size + _PAGE_BYTES):
            (number,) = _ENTRY.unpack_from(journal, start)
            position = number * _PAGE_BYTES
            page = memoryview(journal)[start + _ENTRY.size :][: min(_PAGE_BYTES, max(end - position, 0))]
            self._write(page, position)
        os.ftruncate(self._file.fileno(), end)
        os.fsync(self._file.fileno())
        self._journal.unlink()

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)

    def _write(self, view: memoryview, position: int) -> None:
        if view:
            os.lseek(self._file.fileno(), position, os.SEEK_SET)
        while view:
            view = view[os.write(self._file.fileno(), view) :]


def journal_of(path: Path) -> Path:
    """Return the journal of a file."""
    return path.with_name(f".{path.name}.changes")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by one with other content, at once.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _pages_of(view: memoryview, position: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the parts of a range of the file by page: the page's number, the part's start in it, and the part."""
    while view:
        number, start = divmod(position, _PAGE_BYTES)
        part = view[: _PAGE_BYTES - start]
        yield number, start, part
        view, position = view[len(part) :], position + len(part)
