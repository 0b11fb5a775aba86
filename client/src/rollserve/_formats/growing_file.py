"""A file that grows in steps: after each of them, all that a step has written is there, or nothing of it."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollserve._formats.lookup3 import lookup3
from rollserve_wire.errors import mismatch

__all__ = ["GrowingFile"]

# Not all systems have all of these.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
_sync = getattr(os, "fdatasync", os.fsync)
_PAGE_BYTES = 1 << 12
_MAGIC = b"rollserve pages\n"
_END_OFFSETS = {0: 40, 1: 44, 2: 28, 3: 28}
"""Offset of the end of the file's content in the superblock of HDF5, by the superblock's version."""
_CHECKSUM_OFFSET = 44
"""Offset of the checksum of what is before it, in superblocks of version 2 and 3."""


class GrowingFile(io.RawIOBase):
    """File for HDF5 (h5py's driver `fileobj`) that stays as it was until `commit`.

    HDF5 adds most of what it writes behind the end. That goes to the file at once, because nobody reads there. What it
    changes before the end, a few pages of its indices, stays in memory until the commit, which first puts these pages
    into a journal beside the file. A process that is killed leaves either no journal, and the content as it was; or a
    whole one, which is applied when the file is opened again.

    An error of the disk is raised by `commit` alone, which then leaves the file as it was: HDF5 cannot close a file
    whose writes fail.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Args:
            path: the file. A `journal` of it is in the same folder, hidden.

        Raises:
            OSError: the file cannot be opened or written.
        """
        self._journal = path.with_name(f".{path.name}.journal")
        self._descriptor = os.open(path, _FLAGS, 0o666)
        try:
            self._recover()
            self._committed = self._end = _content_end(self._descriptor)
            os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise
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

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        found = _read_at(self._descriptor, len(view), self._position)
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        for number, start, stop, offset in _parts(self._position, len(view)):
            if number in self._pages:
                view[offset : offset + stop - start] = self._pages[number][start:stop]
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        kept = len(view) if self._error else min(max(self._committed - self._position, 0), len(view))
        self._keep(view[:kept], self._position)
        rest, start = view[kept:], self._position + kept
        try:
            _write_all(self._descriptor, rest, start)
            # The page in which the last commit ends can be in memory, too.
            rest = rest[: max(self._committed + _PAGE_BYTES - start, 0)]
        except OSError as error:
            self._error = error
        self._keep(rest, start, only_present=self._error is None)
        self._position += len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._position if size is None else size
        return self._end

    def append(self, parts: Mapping[int, memoryview]) -> None:
        """Write objects of HDF5 behind the end, while HDF5 has closed the file, and make them a part of its content.

        Args:
            parts: the objects' bytes by their positions.

        Raises:
            OSError: they cannot be written.
            ValueError: the file has no superblock of a known version with addresses of 8 bytes.
        """
        self.write_parts(parts)
        self.seek(0)
        superblock = bytearray(self.read(64))
        offset = _end_offset(superblock)
        if offset is None:
            raise ValueError(f"file: {mismatch('HDF5 with addresses and lengths of 8 bytes', superblock[:16].hex())}")
        struct.pack_into("<Q", superblock, offset, self._end)
        if superblock[8] >= 2:
            checksum = lookup3(superblock[:_CHECKSUM_OFFSET])
            struct.pack_into("<I", superblock, _CHECKSUM_OFFSET, checksum)
        self.seek(0)
        self.write(superblock)

    def write_parts(self, parts: Mapping[int, memoryview]) -> None:
        """Write bytes at their positions; raise OSError if they cannot be written."""
        for position, part in parts.items():
            self.seek(position)
            self.write(part)
            if self._error is not None:
                raise self._error

    def commit(self) -> None:
        """Make what was written since the last commit the file's content, after HDF5 has closed it.

        Raises:
            OSError: it cannot be written, such as because the disk is full. Nothing has changed then.
        """
        try:
            if self._error is not None:
                raise self._error
            os.ftruncate(self._descriptor, max(self._end, self._committed))
            _sync(self._descriptor)
            if self._pages:
                self._write_journal()
        except OSError:
            self.rollback()
            raise
        self._apply(self._pages.items())
        os.ftruncate(self._descriptor, self._end)
        self._journal.unlink(missing_ok=True)
        self._pages.clear()
        self._committed = self._end

    def rollback(self) -> None:
        """Drop what was written since the last commit."""
        self._journal.unlink(missing_ok=True)
        self._pages.clear()
        self._error = None
        self._end = self._committed
        os.ftruncate(self._descriptor, self._end)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _keep(self, view: memoryview, position: int, *, only_present: bool = False) -> None:
        """Keep bytes in memory until the commit; of pages that are there already, if `only_present`."""
        if only_present and not self._pages:
            return
        for number, start, stop, offset in _parts(position, len(view)):
            page = self._pages.get(number)
            if page is None:
                if only_present:
                    continue
                found = _read_at(self._descriptor, _PAGE_BYTES, number * _PAGE_BYTES)
                page = self._pages[number] = bytearray(found.ljust(_PAGE_BYTES, b"\0"))
            page[start:stop] = view[offset : offset + stop - start]

    def _apply(self, pages: Any) -> None:
        """Write pages to the file, as far as they are before the end of the last commit: the rest is there."""
        for number, page in pages:
            start = number * _PAGE_BYTES
            _write_all(self._descriptor, memoryview(page)[: max(self._committed - start, 0)], start)
        _sync(self._descriptor)

    def _write_journal(self) -> None:
        parts = [_MAGIC, struct.pack("<QQ", self._committed, len(self._pages))]
        for number, page in self._pages.items():
            parts += [struct.pack("<Q", number), bytes(page)]
        content = b"".join(parts)
        temporary = self._journal.with_suffix(".new")
        try:
            with open(temporary, "wb") as file:
                file.write(content + struct.pack("<I", zlib.crc32(content)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._journal)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _recover(self) -> None:
        """Apply the journal of a process that was killed in a commit."""
        if not self._journal.exists():
            return
        content = self._journal.read_bytes()
        body, checksum = content[:-4], content[-4:]
        if body.startswith(_MAGIC) and struct.pack("<I", zlib.crc32(body)) == checksum:
            self._committed, count = struct.unpack_from("<QQ", body, len(_MAGIC))
            step, first = 8 + _PAGE_BYTES, len(_MAGIC) + 16
            starts = range(first, first + count * step, step)
            self._apply((struct.unpack_from("<Q", body, start)[0], body[start + 8 : start + step]) for start in starts)
        self._journal.unlink()


def _parts(position: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each page of a range: its number, the part's start and stop in it, and the part's offset in the range."""
    offset = 0
    while offset < size:
        number, start = divmod(position + offset, _PAGE_BYTES)
        stop = min(start + size - offset, _PAGE_BYTES)
        yield number, start, stop, offset
        offset += stop - start


def _write_all(descriptor: int, view: memoryview, position: int) -> None:
    if view:
        os.lseek(descriptor, position, os.SEEK_SET)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_at(descriptor: int, size: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def _content_end(descriptor: int) -> int:
    """Return where the content of a file ends: an interrupted step may have left bytes behind it."""
    size = os.fstat(descriptor).st_size
    start = _read_at(descriptor, 64, 0)
    offset = _end_offset(start)
    return size if offset is None else min(size, struct.unpack_from("<Q", start, offset)[0])


def _end_offset(start: bytes | bytearray) -> int | None:
    """Return where the superblock that a file begins with has the end of the content; None for others than HDF5's."""
    if len(start) < 64 or not start.startswith(b"\x89HDF\r\n\x1a\n") or start[8] not in _END_OFFSETS:
        return None
    sizes = start[13:15] if start[8] < 2 else start[9:11]
    return _END_OFFSETS[start[8]] if sizes == b"\x08\x08" else None
