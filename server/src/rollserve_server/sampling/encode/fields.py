"""Columns of messages, and their fields, in parts that refer to numpy arrays.

Each column is copied once: from where its steps were recorded to where the message is written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from rollserve_server.agents import STATE
from rollserve_wire.columns import mask_name
from rollserve_wire.protobuf import keys_of, length_delimited, text_field, varint_field
from rollserve_wire.tensors import dtype_to_proto, named_tensor, tensor
from rollserve_wire.v1.episode_batch_pb2 import FrameStack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey
    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = [
    "Column",
    "CompressedRows",
    "Gathered",
    "Headers",
    "Observations",
    "Part",
    "Rows",
    "array_field",
    "empty_info_column",
    "episode_info_columns",
    "frame_stack_field",
    "info_columns",
    "keys_by_name",
    "named_tensor_field",
    "non_finite_rows",
    "step_column_name",
    "tensor_field",
]

_BLOCK_BYTES = 128 << 10
"""Bytes of rows that are copied to be looked at: a block stays in the processor's cache."""

_NO_POSITIONS = np.empty(0, np.int64)


class Headers(NamedTuple):
    """Values of the S segments of a message, (S,) each, named as in the table of columns."""

    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    env_seeds: np.ndarray


class Column(NamedTuple):
    """A column of a message.

    Attributes:
        group: name of the column in the table.
        name: name of its leaf or info.
        rows: content of the column.
        num_raw_bytes: size that the column would have if it were plain.
        frame_count: number of frames of an observation, if the rows are frames; 0 otherwise.
    """

    group: str
    name: str
    rows: Rows | Gathered
    num_raw_bytes: int
    frame_count: int = 0

    @classmethod
    def of(cls, group: str, name: str, rows: Rows | Gathered) -> Column:
        """Return a plain column."""
        return cls(group, name, rows, rows.num_bytes)


class Observations(NamedTuple):
    """Observations of one leaf.

    Attributes:
        key: key of the leaf.
        rows: observation before each step.
        last: observation after the last step of each segment.
        find_frames: returns the frames of the observations, or None if they are no stacks of frames, or stacks that do
            not continue each other.
    """

    key: InfoKey
    rows: Rows | Gathered
    last: Rows
    find_frames: Callable[[], Rows | None]


def step_column_name(group: str, key: InfoKey, *, all_states: bool) -> tuple[str, str] | None:
    """Return the group and the name of a column of steps in messages; None if it has none, as observations."""
    match group:
        case "observations":
            return None
        case "states":
            return ("agent_infos", f"{STATE}{key.name}") if all_states else None
    return group, key.name


def episode_info_columns(infos: Sequence[Mapping[InfoKey, Any]], keys: Iterable[ColumnKey]) -> Iterator[Column]:
    """Yield columns of the infos of resets.

    Args:
        infos: infos of the reset of each segment's episode.
        keys: keys of the columns; other groups are ignored.
    """
    for name, same_name in keys_by_name(key for key in keys if key[0] == "episode_infos").items():
        column, mask = empty_info_column(len(infos), same_name)
        for row, row_infos in enumerate(infos):
            for key in same_name:
                if key in row_infos:
                    column[row] = row_infos[key]
                    mask[row] = True
        yield from info_columns("episode_infos", name, column, mask)


def info_columns(group: str, name: str, column: np.ndarray, mask: NDArray[np.bool_]) -> Iterator[Column]:
    """Yield a column of infos, and the column of its mask if any value is missing."""
    yield Column.of(group, name, Rows.of(column))
    if not mask.all():
        yield Column.of(group, mask_name(name), Rows.of(mask))


def keys_by_name(keys: Iterable[ColumnKey]) -> dict[str, list[InfoKey]]:
    """Return the keys by name, sorted by name and dtype, so that equal content is written alike."""
    by_name: dict[str, list[InfoKey]] = {}
    for _, key in sorted(keys, key=lambda key: (key[1].name, key[1].dtype.str)):
        by_name.setdefault(key.name, []).append(key)
    return by_name


def empty_info_column(num_rows: int, keys: Sequence[InfoKey]) -> tuple[np.ndarray, NDArray[np.bool_]]:
    """Return a column of zeros for values of keys of one name and shape, and its mask without any value."""
    dtype = np.result_type(*(key.dtype for key in keys))
    return np.zeros((num_rows, *keys[0].shape), dtype), np.zeros(num_rows, np.bool_)


class _Source(ABC):
    """Rows of one dtype and shape that are written one after the other.

    Attributes:
        dtype: dtype of the written elements, in little-endian order.
        shape: shape of one row.
        num_rows: number of rows.
        num_bytes: size of all rows in bytes.
    """

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...], num_rows: int) -> None:
        self.dtype, self.shape, self.num_rows = dtype, shape, num_rows
        self.num_bytes = num_rows * math.prod(shape) * dtype.itemsize

    def contiguous(self) -> NDArray[np.uint8]:
        """Return the bytes in one array, which is a view if they are contiguous already."""
        buffer = np.empty(self.num_bytes, np.uint8)
        self.write(buffer)
        return buffer

    @abstractmethod
    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in arrays (rows, *shape), in order."""

    @abstractmethod
    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Copy the rows into a buffer of their size."""


class Rows(_Source):
    """Arrays that are written one after the other along their first axis."""

    def __init__(self, pieces: Sequence[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Take arrays (rows, *shape) each."""
        super().__init__(dtype, shape, sum(map(len, pieces)))
        self._pieces = pieces

    @classmethod
    def of(cls, array: np.ndarray) -> Rows:
        """Return the rows of one array."""
        return cls([array], array.dtype, array.shape[1:])

    @override
    def contiguous(self) -> NDArray[np.uint8]:
        if len(self._pieces) == 1:
            (piece,) = self._pieces
            if piece.dtype == self.dtype.newbyteorder("<") and piece.flags.c_contiguous:
                return piece.reshape(-1).view(np.uint8)
        return super().contiguous()

    @override
    def blocks(self) -> Iterator[np.ndarray]:
        """Yield large pieces as they are, small ones copied together."""
        per_block = max(1, _BLOCK_BYTES * len(self._pieces) // max(self.num_bytes, 1))
        for start in range(0, len(self._pieces), per_block):
            pieces = self._pieces[start : start + per_block]
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    @override
    def write(self, buffer: NDArray[np.uint8]) -> None:
        if buffer.size:
            out = buffer.view(self.dtype.newbyteorder("<")).reshape(-1, *self.shape)
            np.concatenate(self._pieces, out=out, casting="same_kind")


class Gathered(_Source):
    """Rows of arrays that are written one after the other, from any positions."""

    def __init__(self, parts: Sequence[tuple[np.ndarray, NDArray[np.int64]]]) -> None:
        """Take contiguous arrays of shape (all rows, *shape), each with the indices (rows,) of the rows to write."""
        first = parts[0][0]
        super().__init__(first.dtype, first.shape[1:], sum(len(places) for _, places in parts))
        self._parts = parts

    @override
    def blocks(self) -> Iterator[np.ndarray]:
        """Yield copies."""
        per_block = max(1, _BLOCK_BYTES * self.num_rows // max(self.num_bytes, 1))
        for source, places in self._parts:
            for start in range(0, len(places), per_block):
                yield np.take(source, places[start : start + per_block], axis=0, mode="clip")

    @override
    def write(self, buffer: NDArray[np.uint8]) -> None:
        if not buffer.size:
            return
        rows, stop = buffer.reshape(self.num_rows, -1), 0
        for source, places in self._parts:
            start, stop = stop, stop + len(places)
            little = source.astype(self.dtype.newbyteorder("<"), copy=False).reshape(len(source), -1)
            # As bytes, because the buffer may be unaligned; with a mode, because numpy otherwise copies twice.
            np.take(little.view(np.uint8), places, axis=0, out=rows[start:stop], mode="clip")


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """Rows after compression.

    Attributes:
        rows: the rows before compression.
        compression: codec that compressed them.
        data: the compressed bytes.
    """

    rows: Rows | Gathered
    compression: Compression.ValueType
    data: bytes


Part = bytes | Rows | Gathered
"""Part of a message."""

_STACK_NAME, _FRAMES = (keys_of(FrameStack.DESCRIPTOR)[name] for name in ("name", "frames"))


def array_field(key: int, array: np.ndarray) -> list[Part]:
    """Return a field of packed little-endian numbers, or of truth values; nothing for an empty array.

    The array is copied into the field, because it is small: it has an element for each segment.
    """
    return [*length_delimited(key, [array.tobytes()])] if len(array) else []


def tensor_field(key: int, rows: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a Tensor."""
    return length_delimited(key, _tensor(rows))


def named_tensor_field(key: int, name: str, rows: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a NamedTensor."""
    return length_delimited(key, named_tensor(name or None, _tensor(rows)))


def frame_stack_field(key: int, name: str, frame_count: int, frames: Rows | Gathered | CompressedRows) -> list[Part]:
    """Return a field that holds a FrameStack."""
    head = text_field(_STACK_NAME, name) if name else b""
    count = varint_field(FrameStack.FRAME_COUNT_FIELD_NUMBER, frame_count)
    return length_delimited(key, [head + count, *length_delimited(_FRAMES, _tensor(frames))])


def _tensor(column: Rows | Gathered | CompressedRows) -> list[Part]:
    rows = column.rows if isinstance(column, CompressedRows) else column
    data_type, shape = dtype_to_proto(rows.dtype), (rows.num_rows, *rows.shape)
    if isinstance(column, CompressedRows):
        return [*tensor(data_type, shape, column.data, column.compression)]
    return [*tensor(data_type, shape, column)]


def non_finite_rows(rows: Rows | Gathered) -> NDArray[np.int64]:
    """Return the positions of the rows that have a NaN or an infinity."""
    found, start = [_NO_POSITIONS], 0
    for block in rows.blocks() if rows.dtype.kind == "f" else ():
        # The sum of squares takes a third of the time, and is not finite either; nor is it for very large numbers.
        if not math.isfinite(np.vdot(block, block)):
            found.append(start + np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1)))
        start += len(block)
    return np.concatenate(found) if len(found) > 1 else _NO_POSITIONS
