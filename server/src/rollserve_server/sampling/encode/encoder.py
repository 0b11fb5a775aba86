"""Segments of episodes as messages: the responses of a sampling call, byte for byte as they go to the client."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve._codec.columns import mask_name
from rollserve._codec.protobuf import keys_of, length_delimited, size_of
from rollserve.v1.episode_batch_pb2 import EpisodeBatch
from rollserve.v1.sampler_service_pb2 import ObtainExactEpisodesResponse, ObtainSamplesResponse
from rollserve_server.sampling.encode.compression import Compressor
from rollserve_server.sampling.encode.fields import (
    CompressedRows,
    Gathered,
    Part,
    Rows,
    array_field,
    frame_stack_field,
    named_tensor_field,
    tensor_field,
)
from rollserve_server.sampling.encode.frame_stacks import frames_of, frames_of_table, may_be_stack
from rollserve_server.sampling.encode.payoff import Payoffs
from rollserve_server.sampling.encode.segments import GOAL_BYTES, STATE_PREFIX, info_keys
from rollserve_server.sampling.protocol.episodes import PLAIN, ColumnFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve.v1.tensor_pb2 import Compression
    from rollserve_server.sampling.encode.segments import Segment
    from rollserve_server.sampling.encode.tables import FragmentTable, TablePart
    from rollserve_server.sampling.record.episodes import ColumnKey, Piece
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["EncodedMessage", "Encoder", "Encoding", "write_messages"]

_KEYS = keys_of(EpisodeBatch.DESCRIPTOR)
_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["batch"]
if keys_of(ObtainExactEpisodesResponse.DESCRIPTOR)["batch"] != _BATCH:
    raise AssertionError("the responses of both sampling calls have the same fields")

_MOST_GROWTH = 4
"""How much more than usual a message may hold if it gets smaller on the way: beyond, nothing is won by it."""


@dataclass(frozen=True)
class Encoding:
    """What messages say beside their episodes, and how.

    Attributes:
        policy_version: which version acted.
        worker_index: the worker that the episodes are bound to, or None.
        columns: how columns may be written.
    """

    policy_version: int
    worker_index: int | None
    columns: ColumnFormat = PLAIN


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message that is ready to be written.

    Attributes:
        parts: its content, in order.
        num_bytes: its size.
        num_raw_bytes: what its size would be with all columns plain.
        num_steps: how many steps it holds.
        num_episodes: how many episodes end in it.
    """

    parts: Sequence[Part]
    num_bytes: int
    num_raw_bytes: int
    num_steps: int
    num_episodes: int

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Writes the message into the buffer, which has its size."""
        offset, view = 0, buffer.data
        for part in self.parts:
            end = offset + size_of(part)
            if isinstance(part, bytes):
                view[offset:end] = part
            else:
                part.write(buffer[offset:end])
            offset = end


class Encoder:
    """Encodes the messages of one stream, and remembers which of its columns get smaller and how."""

    def __init__(self) -> None:
        self._compressor = Compressor()
        self._stack_payoffs = Payoffs()
        self._growth = 1.0

    def goal_bytes(self) -> int:
        """How much the next message is to hold, if it gets as much smaller on the way as the last one did."""
        return round(GOAL_BYTES * self._growth)

    def encode(self, segments: Sequence[Segment], encoding: Encoding) -> EncodedMessage:
        """The message with the segments, in their order."""
        pieces = [piece for segment in segments for piece in segment.pieces()]
        # Of whole episodes, so that the columns are the same in all segments of one.
        infos = info_keys([segment.episode for segment in segments])
        headers = _Headers(
            episode_indices=np.array([segment.episode.index for segment in segments], "<u8"),
            first_steps=np.array([segment.episode.first_step + segment.start for segment in segments], "<u8"),
            lengths=np.array([segment.stop - segment.start for segment in segments], "<u4"),
            terminated=np.array([segment.ends and segment.episode.terminated for segment in segments]),
            truncated=np.array([segment.ends and segment.episode.truncated for segment in segments]),
            environment_seeds=np.array([segment.episode.env_seed for segment in segments], "<u4"),
        )
        columns = [
            *self._observations(segments, pieces, frames_once=encoding.columns.frames_once),
            *_step_columns(pieces, all_states=encoding.columns.all_states),
            *_env_infos(segments, [key for key in infos if key[0] == "env_infos"]),
            *_episode_infos([segment.episode.reset_infos for segment in segments], infos),
            *_initial_states(segments),
        ]
        return self._message(headers, columns, encoding)

    def encode_part(self, part: TablePart, encoding: Encoding) -> EncodedMessage:
        """The message with a part of a table whose infos of one name have one key. It refers to the columns."""
        table = part.segments()
        headers = _Headers(
            episode_indices=table.episode_indices.astype("<u8"),
            first_steps=table.first_steps.astype("<u8"),
            lengths=table.lengths.astype("<u4"),
            terminated=table.terminated,
            truncated=table.truncated,
            environment_seeds=np.full(len(table), table.env_seed, "<u4"),
        )
        columns = [
            *self._table_observations(table, frames_once=encoding.columns.frames_once),
            *_table_columns(table, all_states=encoding.columns.all_states),
            *_table_infos(table, part.whole),
            *_episode_infos(table.reset_infos, table.info_keys),
            *_table_initial_states(table),
        ]
        return self._message(headers, columns, encoding)

    def _message(self, headers: _Headers, columns: Sequence[_Column], encoding: Encoding) -> EncodedMessage:
        batch = list(headers.fields(encoding))
        for column in columns:
            batch += self._field(column, encoding.columns.compression)
        parts = length_delimited(_BATCH, batch)
        num_bytes = sum(map(size_of, parts))
        num_raw_bytes = sum(column.num_raw_bytes for column in columns)
        self._growth = min(max(num_raw_bytes / num_bytes, 1.0), _MOST_GROWTH)
        return EncodedMessage(
            parts,
            num_bytes=num_bytes,
            num_raw_bytes=max(num_bytes, num_raw_bytes),
            num_steps=int(headers.lengths.sum()),
            num_episodes=int(np.count_nonzero(headers.terminated | headers.truncated)),
        )

    def _observations(
        self, segments: Sequence[Segment], pieces: Sequence[Piece], *, frames_once: bool
    ) -> Iterator[_Column]:
        """Observations and last ones, of each leaf as frames or as two plain columns."""
        keys = [key for group, key in pieces[0].buffer.columns if group == "observations"]
        values = [segment.last_observations for segment in segments]
        for position, key in enumerate(keys):
            rows = _rows(pieces, ("observations", key))
            last = Rows([value[position][np.newaxis] for value in values], key.dtype, key.shape)
            find = functools.partial(frames_of, segments, key, position)
            yield from self._observation_columns(key, rows, last, find if frames_once else None)

    def _table_observations(self, table: FragmentTable, *, frames_once: bool) -> Iterator[_Column]:
        """The same of the fragments of a table."""
        places = table.places
        keys = [key for group, key in table.columns.keys if group == "observations"]
        for position, key in enumerate(keys):
            rows = Gathered(table.columns.column(("observations", key)), places)
            last = Rows.of(table.last_observations[position])
            find = functools.partial(frames_of_table, table, key, position)
            yield from self._observation_columns(key, rows, last, find if frames_once else None)

    def _observation_columns(
        self, key: InfoKey, rows: Rows | Gathered, last: Rows, find_frames: Callable[[], Rows | None] | None
    ) -> Iterator[_Column]:
        """A leaf's observations and last ones as frames, once each, if they may be and are stacks of them."""
        frames = None
        if find_frames and may_be_stack(key) and self._stack_payoffs.is_due(key):
            frames = find_frames()
            self._stack_payoffs.tell(key, helped=frames is not None)
        if frames is None:
            yield _Column.of("observations", key.name, rows)
            yield _Column.of("last_observations", key.name, last)
        else:
            num_raw_bytes = rows.num_bytes + last.num_bytes
            yield _Column("frame_stacks", key.name, frames, num_raw_bytes, frame_count=key.shape[0])

    def _field(self, column: _Column, compression: Compression.ValueType | None) -> list[Part]:
        """The column as a field of the message, compressed if it may be and shrinks by it."""
        rows: Rows | Gathered | CompressedRows = column.rows
        if compression is not None:
            rows = self._compressor.compress((column.group, column.name), column.rows, compression)
        key = _KEYS[column.group]
        if column.group == "rewards":
            return tensor_field(key, rows)
        if column.group == "frame_stacks":
            return frame_stack_field(key, column.name, column.frame_count, rows)
        return named_tensor_field(key, column.name, rows)


class _Column(NamedTuple):
    """A column of a message.

    Attributes:
        group: which field of EpisodeBatch it goes into.
        name: its name there.
        rows: what it holds.
        num_raw_bytes: what it would take if it were plain.
        frame_count: of how many frames an observation consists, if the rows are frames.
    """

    group: str
    name: str
    rows: Rows | Gathered
    num_raw_bytes: int
    frame_count: int = 0

    @classmethod
    def of(cls, group: str, name: str, rows: Rows | Gathered) -> _Column:
        """A plain column."""
        return cls(group, name, rows, rows.num_bytes)


def write_messages(messages: Sequence[EncodedMessage]) -> NDArray[np.uint8]:
    """The messages one behind the other in one buffer."""
    buffer = np.empty(sum(message.num_bytes for message in messages), np.uint8)
    offset = 0
    for message in messages:
        message.write(buffer[offset : offset + message.num_bytes])
        offset += message.num_bytes
    return buffer


class _Headers(NamedTuple):
    """Those of a message's segments, (S,) each, as the fields of EpisodeBatch are called."""

    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    environment_seeds: np.ndarray

    def fields(self, encoding: Encoding) -> Iterator[Part]:
        """Them, and what is the same for all."""
        num_segments = len(self.lengths)
        columns = self._asdict()
        columns["policy_versions"] = np.full(num_segments, encoding.policy_version, "<i8")
        if encoding.worker_index is not None:
            columns["worker_indices"] = np.full(num_segments, encoding.worker_index, "<u4")
        for name, column in columns.items():
            yield from array_field(_KEYS[name], column)


def _rows(pieces: Sequence[Piece], key: ColumnKey) -> Rows:
    slices = [buffer.columns[key][row, start:stop] for buffer, row, start, stop in pieces]
    return Rows(slices, key[1].dtype, key[1].shape)


def _step_columns(pieces: Sequence[Piece], *, all_states: bool) -> Iterator[_Column]:
    for group, key in pieces[0].buffer.columns:
        place = _place_of_steps(group, key, all_states=all_states)
        if place is not None:
            yield _Column.of(*place, _rows(pieces, (group, key)))


def _place_of_steps(group: str, key: InfoKey, *, all_states: bool) -> tuple[str, str] | None:
    """The group and name that a column of steps is told by, but for those of observations."""
    match group:
        case "observations":
            return None
        case "states":
            return ("agent_infos", f"{STATE_PREFIX}{key.name}") if all_states else None
    return group, key.name


def _initial_states(segments: Sequence[Segment]) -> Iterator[_Column]:
    """What the agent remembered before each segment's first step."""
    keys = [key for group, key in segments[0].episode.pieces[0].buffer.columns if group == "states"]
    firsts = [segment.pieces()[0] for segment in segments] if keys else ()
    for key in keys:
        rows = [buffer.columns["states", key][row, start : start + 1] for buffer, row, start, _ in firsts]
        yield _Column.of("initial_states", key.name, Rows(rows, key.dtype, key.shape))


def _env_infos(segments: Sequence[Segment], keys: Iterable[ColumnKey]) -> Iterator[_Column]:
    num_rows = sum(segment.stop - segment.start for segment in segments)
    for name, same_name in _by_name(keys).items():
        column, mask = _gaps(num_rows, same_name)
        stop = 0
        for segment in segments:
            start, stop = stop, stop + segment.stop - segment.start
            for key in same_name:
                info = segment.episode.env_infos.get(key)
                if info is not None:
                    steps, values = info.within(segment.start, segment.stop)
                    column[start:stop][steps] = values
                    mask[start:stop][steps] = True
        yield from _info_columns("environment_infos", name, column, mask)


def _episode_infos(infos: Sequence[Mapping[InfoKey, Any]], keys: Iterable[ColumnKey]) -> Iterator[_Column]:
    """Columns of the infos that each segment's episode began with."""
    for name, same_name in _by_name(key for key in keys if key[0] == "episode_infos").items():
        column, mask = _gaps(len(infos), same_name)
        for row, its_infos in enumerate(infos):
            for key in same_name:
                if key in its_infos:
                    column[row] = its_infos[key]
                    mask[row] = True
        yield from _info_columns("episode_infos", name, column, mask)


def _table_columns(table: FragmentTable, *, all_states: bool) -> Iterator[_Column]:
    places, keys = table.places, table.columns.keys
    for group, key in keys:
        place = _place_of_steps(group, key, all_states=all_states)
        if place is not None:
            yield _Column.of(*place, Gathered(table.columns.column((group, key)), places))


def _table_initial_states(table: FragmentTable) -> Iterator[_Column]:
    for group, key in table.columns.keys:
        if group == "states":
            yield _Column.of(
                "initial_states", key.name, Gathered(table.columns.column((group, key)), table.first_places)
            )


def _table_infos(table: FragmentTable, whole: FragmentTable) -> Iterator[_Column]:
    columns = table.columns
    if not columns.info_keys:
        return
    places = table.places
    for key in sorted(columns.info_keys, key=lambda key: key.name):
        values, mask = columns.infos(key, places)
        # Of whole episodes, so that the columns are the same in all segments of one.
        if mask.any() or columns.infos(key, whole.places)[1].any():
            yield from _info_columns("environment_infos", key.name, values, mask)


def _by_name(keys: Iterable[ColumnKey]) -> dict[str, list[InfoKey]]:
    """The keys by their names, in the order of names and dtypes: what is equal is to be written alike."""
    by_name: dict[str, list[InfoKey]] = {}
    for _, key in sorted(keys, key=lambda key: (key[1].name, key[1].dtype.str)):
        by_name.setdefault(key.name, []).append(key)
    return by_name


def _gaps(num_rows: int, keys: Sequence[InfoKey]) -> tuple[np.ndarray, NDArray[np.bool_]]:
    """A column for values of the keys, which have one name and shape, and its mask: without any value yet."""
    dtype = np.result_type(*(key.dtype for key in keys))
    return np.zeros((num_rows, *keys[0].shape), dtype), np.zeros(num_rows, np.bool_)


def _info_columns(group: str, name: str, column: np.ndarray, mask: NDArray[np.bool_]) -> Iterator[_Column]:
    """A column of infos, and its mask if it has gaps."""
    yield _Column.of(group, name, Rows.of(column))
    if not mask.all():
        yield _Column.of(group, mask_name(name), Rows.of(mask))
