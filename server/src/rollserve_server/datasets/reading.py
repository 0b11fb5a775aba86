"""The child process of a read: reads files of datasets, and makes messages of their batches."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollserve import EpisodeBatch, data
from rollserve_server.datasets.commands import DatasetRefusedError, serve
from rollserve_server.datasets.folder import HeldFiles
from rollserve_server.datasets.processes import max_read_bytes
from rollserve_wire.columns import COLUMNS, PER_STEP, ColumnSpec, leaves_of, map_columns, named_arrays
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.tensors import PACKED_DTYPES, named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import datasets_pb2, episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["encoded", "main"]


_MESSAGE_BYTES = 2 << 20
_OVERHEAD_BYTES = 16 << 10


@dataclasses.dataclass
class _Drawn:
    """Item of a source: a batch of files, or None in place of live episodes."""

    source: int
    batch: EpisodeBatch | None


class _Read:
    """A mix of sources, and where it stands."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._max_bytes: int = request["max_message_bytes"]
        self._readers: list[data.Reader | None] = []
        _check_held(request["files"])
        for number, (files, position) in enumerate(zip(request["files"], request["positions"], strict=True)):
            self._readers.append(None if files is None else _opened(number, files, position, request["batch_size"]))
        sources = [
            self._drawn(number, reader, "" if files is None else files["folder"])
            for number, (reader, files) in enumerate(zip(self._readers, request["files"], strict=True))
        ]
        self._num_drawn: int = request["num_drawn"]
        self._mix = data.mix(
            list(zip(sources, request["weights"], strict=True)),
            seed=request["mix_seed"],
            num_drawn=self._num_drawn,
            until=request["until"],
        )

    def contents(self) -> list[bytes]:
        """Return what the files of each source hold, as messages."""
        return [_content(reader).SerializeToString() for reader in self._readers]

    def next(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the source that is drawn, the position behind its batch, and the batch's messages."""
        drawn = next(self._mix, None)
        if drawn is None:
            return {"source": None}, []
        self._num_drawn += 1
        messages: list[bytes] = []
        continuing: list[int] = []
        if drawn.batch is not None:
            for message, continues in encoded(drawn.batch, self._max_bytes):
                continuing += [len(messages)] if continues else []
                messages.append(message)
        positions = [(0, 0, 0) if reader is None else tuple(reader.position) for reader in self._readers]
        answer = {
            "source": drawn.source,
            "is_live": drawn.batch is None,
            "positions": positions,
            "num_drawn": self._num_drawn,
            "continuing": continuing,
        }
        return answer, messages

    def _drawn(self, number: int, reader: Iterable[EpisodeBatch] | None, folder: str) -> Iterator[_Drawn]:
        if reader is None:
            while True:
                yield _Drawn(number, None)
        yield from (_Drawn(number, batch) for batch in _readable(number, reader, folder))


def main() -> None:
    """Carry out commands until standard input ends."""
    # Batches and buffers that a request makes too large are no harm to others.
    resource.setrlimit(resource.RLIMIT_DATA, (max_read_bytes(), max_read_bytes()))
    read: _Read | None = None

    def carry_out(command: Mapping[str, Any], _: Sequence[memoryview]) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        nonlocal read
        if read is None:
            read = _Read(command)
            return {}, read.contents()
        return read.next()

    serve(carry_out)


def _check_held(sources: Sequence[Mapping[str, Any] | None]) -> None:
    """Check that the folder holds the files of all sources."""
    held: HeldFiles | None = None
    for number, files in enumerate(sources):
        if files is not None:
            held = held or HeldFiles(files["folder"])
            for position, path in enumerate(files["path"]):
                held.check(f"sources[{number}].files.paths[{position}]", path, exists=True)


def _opened(number: int, files: Mapping[str, Any], position: Sequence[int], batch_size: int) -> data.Reader:
    with _naming(number, files["folder"]):
        options = {name: value for name, value in files.items() if name != "folder"}
        return data.read(**options, position=position, batch_size=batch_size)


def _readable(number: int, reader: Iterable[EpisodeBatch], folder: str) -> Iterator[EpisodeBatch]:
    with _naming(number, folder):
        yield from reader


@contextlib.contextmanager
def _naming(number: int, folder: str) -> Iterator[None]:
    """Name the source in errors, and leave out the server's folder."""
    try:
        yield
    except InvalidArgumentError as error:
        field, text = f"sources[{number}].files.{error.field}", error.message.removeprefix(f"{error.field}: ")
        raise DatasetRefusedError("INVALID_VALUE", _within(folder, text), field=field) from None
    except (OSError, ValueError, TypeError) as error:
        text = " ".join(_within(folder, str(error)).split())
        raise DatasetRefusedError("DATASET_UNREADABLE", text, field=f"sources[{number}].files") from None


def _within(folder: str, text: str) -> str:
    """Return a text whose paths begin in a folder, `.` for the folder itself.

    A path that only goes on with the same names, such as `/a/data` behind another folder, is none of the folder's.
    """
    paths = rf"(?<![\w./-]){re.escape(folder)}(/|(?![\w-]))"
    return re.sub(paths, lambda found: "" if found[1] else ".", text)


def _content(reader: data.Reader | None) -> datasets_pb2.DatasetContent:
    if reader is None:
        return datasets_pb2.DatasetContent()
    spaces = reader.observation_space, reader.action_space
    observations, actions = (None if space is None else space_to_proto(space) for space in spaces)
    return datasets_pb2.DatasetContent(
        missing=dict(reader.missing),
        receipts=reader.receipts,
        observation_space=observations,
        action_space=actions,
    )


def encoded(batch: EpisodeBatch, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the messages of a batch, and whether the first segment of each continues the last one of the one before.

    Raises:
        DatasetRefusedError: a single step takes more than `max_bytes`.
        ValueError: a column of a dtype that the wire does not have.
    """
    for part, continues in _parts(batch, min(max_bytes, _MESSAGE_BYTES)):
        yield from _fitting(part, continues, max_bytes)


def _fitting(batch: EpisodeBatch, continues: bool, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the message of a batch, or the messages of its halves where it is too large."""
    message = _message(batch)
    if len(message) <= max_bytes:
        yield message, continues
    elif batch.num_steps == 1:
        text = f"expected at least {len(message)} for a single step, got {max_bytes}"
        raise DatasetRefusedError("MESSAGE_TOO_SMALL", text, field="max_message_bytes")
    else:
        halves = _cut(batch, batch.num_steps // 2)
        for number, half in enumerate(halves):
            goes_on = continues if number == 0 else len(halves[0]) + len(half) > len(batch)
            yield from _fitting(half, goes_on, max_bytes)


def _parts(batch: EpisodeBatch, num_bytes: int) -> Iterator[tuple[EpisodeBatch, bool]]:
    """Yield parts of about a size, and whether each begins within a segment."""
    total = sum(array.nbytes for _, array in named_arrays(batch))
    num_parts = math.ceil(total / max(num_bytes - _OVERHEAD_BYTES, 1))
    length = max(batch.num_steps // max(num_parts, 1), 1)
    continues = False
    while batch.num_steps > 2 * length:
        first, rest = _cut(batch, length)
        yield first, continues
        continues = len(first) + len(rest) > len(batch)
        batch = rest
    yield batch, continues


def _cut(batch: EpisodeBatch, num_steps: int) -> tuple[EpisodeBatch, EpisodeBatch]:
    """Return the first steps of a batch and the others; a segment in which the cut lies is in both."""
    ends = np.cumsum(batch.lengths)
    last = int(np.searchsorted(ends, num_steps))
    is_within = int(ends[last]) != num_steps
    first = _slice(batch, slice(0, num_steps), slice(0, last + 1))
    rest = _slice(batch, slice(num_steps, None), slice(last if is_within else last + 1, None))
    if not is_within:
        return first, rest
    done = num_steps - int(ends[last] - batch.lengths[last])
    first.lengths[-1], rest.lengths[0] = done, batch.lengths[last] - done
    first.terminated[-1] = first.truncated[-1] = False
    rest.first_steps[0] += done
    return first, rest


def _slice(batch: EpisodeBatch, steps: slice, segments: slice) -> Any:
    """Return some steps and segments of a batch, without checks, with lengths, flags and first steps of its own."""
    part = object.__new__(EpisodeBatch)
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    for name in COLUMNS:
        rows = steps if name in PER_STEP else segments
        if fields[name] is not None:
            fields[name] = map_columns(lambda array, rows=rows: array[rows], fields[name])  # type: ignore[misc]
    for name in ("lengths", "terminated", "truncated", "first_steps"):
        fields[name] = fields[name].copy()
    vars(part).update(fields)
    return part


def _message(batch: EpisodeBatch) -> bytes:
    fields: dict[str, Any] = {}
    for name, spec in COLUMNS.items():
        column = getattr(batch, name)
        if column is None:
            continue
        if spec.kind == "header":
            fields[_field_for(spec, column)] = column.tolist()
        elif spec.kind == "numbers":
            fields[spec.fields[0]] = tensor_to_proto(column)
        else:
            fields[spec.fields[0]] = named_tensors_to_proto(leaves_of(column))
    return pb.ReadDatasetResponse(batch=episode_batch_pb2.EpisodeBatch(**fields)).SerializeToString()


def _field_for(spec: ColumnSpec, header: np.ndarray) -> str:
    """Return the first field that can hold all values of a header."""
    for field in spec.fields[:-1]:
        dtype: Any = PACKED_DTYPES[episode_batch_pb2.EpisodeBatch.DESCRIPTOR.fields_by_name[field].type]
        limits = np.iinfo(dtype)
        if not len(header) or limits.min <= header.min() <= header.max() <= limits.max:
            return field
    return spec.fields[-1]


if __name__ == "__main__":
    main()
