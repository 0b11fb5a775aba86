"""Records behind their lengths, as they travel to a journal; and files of them, with a digest at the end."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.state.records import read_records, sampler_records
from rollserve_wire.v1 import saved_sampler_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from rollserve_server.pool.state.records import Record
    from rollserve_server.pool.state.saved_sampler import SavedSampler

__all__ = ["framed", "frames", "read_saved_sampler", "saved_sampler_parts"]

_MAGIC = b"rollserve saved\n"
_LENGTH_BYTES = 8
_MAX_RECORDS = 1 << 14


def saved_sampler_parts(saved: SavedSampler) -> Iterator[bytes]:
    """Yield the file of a saved sampler in parts."""
    digest = hashlib.sha256(_MAGIC)
    yield _MAGIC
    for record in sampler_records(saved):
        data = b"".join(framed([record]))
        digest.update(data)
        yield data
    end = pb.SavedRecord(end=pb.SavedEnd(sha256=digest.digest()))
    yield b"".join(framed([[end.SerializeToString()]]))


def framed(records: Iterable[Record]) -> Record:
    """Return records as bytes, in parts: each behind its length."""
    parts: Record = []
    for record in records:
        parts += [sum(map(len, record)).to_bytes(_LENGTH_BYTES, "little"), *record]
    return parts


def frames(data: bytes | memoryview, start: int = 0) -> Iterator[memoryview]:
    """Yield the records that stand behind their lengths in bytes.

    Args:
        data: the bytes.
        start: position of the first length.

    Raises:
        InvalidValueError: the last one is cut off.
    """
    view = memoryview(data)
    while start < len(view):
        begin = start + _LENGTH_BYTES
        start = begin + int.from_bytes(view[start:begin], "little")
        if start > len(view):
            raise _changed_error()
        yield view[begin:start]


def read_saved_sampler(
    data: bytes, parse: Callable[[bytes], pb.SavedRecord], allowed_paths: Collection[Path]
) -> SavedSampler:
    """Return the saved sampler of a file.

    Args:
        data: content of the file.
        parse: returns a serialized record; its errors are raised.
        allowed_paths: paths that arguments of environments and agents may have.

    Raises:
        InvalidValueError: the file is incomplete or changed, of a newer format, or has a malformed part.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    return read_records(_read_records(data, parse), allowed_paths=allowed_paths)


def _read_records(data: bytes, parse: Callable[[bytes], pb.SavedRecord]) -> Sequence[pb.SavedRecord]:
    """Return all records but the end, after a check that the end has the digest of the bytes before it."""
    if not data.startswith(_MAGIC):
        raise InvalidValueError.of("", expected="the file of a saved sampler", got="other bytes")
    contents = list(itertools.islice(frames(data, len(_MAGIC)), _MAX_RECORDS + 1))
    if len(contents) > _MAX_RECORDS:
        raise InvalidValueError.of("", expected=f"at most {_MAX_RECORDS} records", got="more")
    if not contents:
        raise _changed_error()
    before_end = memoryview(data)[: -len(contents[-1]) - _LENGTH_BYTES]
    if _digest_in(contents[-1], parse) != hashlib.sha256(before_end).digest():
        raise _changed_error()
    return [parse(bytes(content)) for content in contents[:-1]]


def _digest_in(content: memoryview, parse: Callable[[bytes], pb.SavedRecord]) -> bytes | None:
    """Return the digest in the last record of a file; None if that is no end."""
    try:
        record = parse(bytes(content))
    except InvalidValueError:
        return None
    return record.end.sha256 if record.HasField("end") else None


def _changed_error() -> InvalidValueError:
    return InvalidValueError.of("", expected="the bytes that were saved", got="a file that was changed or cut off")
