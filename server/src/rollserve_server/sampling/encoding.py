"""Segments of episodes as messages: the responses of a sampling call, byte for byte as they go to the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve.columns import mask_name
from rollserve.v1.episode_batch_pb2 import EpisodeBatch
from rollserve.v1.sampler_service_pb2 import ObtainExactEpisodesResponse, ObtainSamplesResponse
from rollserve_server.sampling.segments import info_keys
from rollserve_server.sampling.wire import (
    Part,
    Rows,
    array_field,
    field_number,
    message_field,
    named_tensor_field,
    tensor_field,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.episodes import ColumnKey, Piece
    from rollserve_server.sampling.infos import InfoKey
    from rollserve_server.sampling.segments import Segment

__all__ = ["EncodedMessage", "Encoding", "encode", "write_messages"]

_FIELDS = {field.name: field.number for field in EpisodeBatch.DESCRIPTOR.fields}
_BATCH = field_number(ObtainSamplesResponse.DESCRIPTOR, "batch")
if field_number(ObtainExactEpisodesResponse.DESCRIPTOR, "batch") != _BATCH:
    raise AssertionError("the responses of both sampling calls have the same fields")


@dataclass(frozen=True)
class Encoding:
    """What messages say beside their episodes.

    Attributes:
        policy_version: which version acted.
        worker_index: the worker that the episodes are bound to, or None.
    """

    policy_version: int
    worker_index: int | None


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message that is ready to be written.

    Attributes:
        parts: its content, in order.
        num_bytes: its size.
        num_steps: how many steps it holds.
        num_episodes: how many episodes end in it.
    """

    parts: Sequence[Part]
    num_bytes: int
    num_steps: int
    num_episodes: int

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Writes the message into the buffer, which has its size."""
        offset = 0
        for part in self.parts:
            if isinstance(part, bytes):
                end = offset + len(part)
                buffer[offset:end] = np.frombuffer(part, np.uint8)
            else:
                end = offset + part.num_bytes
                part.write(buffer[offset:end])
            offset = end


def encode(segments: Sequence[Segment], encoding: Encoding) -> EncodedMessage:
    """The message with the segments, in their order."""
    pieces = [piece for segment in segments for piece in segment.pieces()]
    # Of whole episodes, so that the columns are the same in all segments of one.
    infos = info_keys([segment.episode for segment in segments])
    batch = [
        *_headers(segments, encoding),
        *_step_columns(pieces),
        *_last_observations(segments),
        *_env_infos(segments, [key for key in infos if key[0] == "env_infos"]),
        *_episode_infos(segments, [key for key in infos if key[0] == "episode_infos"]),
    ]
    parts = message_field(_BATCH, batch)
    return EncodedMessage(
        parts,
        num_bytes=sum(len(part) if isinstance(part, bytes) else part.num_bytes for part in parts),
        num_steps=sum(segment.stop - segment.start for segment in segments),
        num_episodes=sum(segment.ends and segment.episode.ended for segment in segments),
    )


def write_messages(messages: Sequence[EncodedMessage]) -> NDArray[np.uint8]:
    """The messages one behind the other in one buffer."""
    buffer = np.empty(sum(message.num_bytes for message in messages), np.uint8)
    offset = 0
    for message in messages:
        message.write(buffer[offset : offset + message.num_bytes])
        offset += message.num_bytes
    return buffer


def _headers(segments: Sequence[Segment], encoding: Encoding) -> Iterator[Part]:
    columns = {
        "episode_indices": np.array([segment.episode.index for segment in segments], "<u8"),
        "first_steps": np.array([segment.episode.first_step + segment.start for segment in segments], "<u8"),
        "lengths": np.array([segment.stop - segment.start for segment in segments], "<u4"),
        "terminated": np.array([segment.ends and segment.episode.terminated for segment in segments]),
        "truncated": np.array([segment.ends and segment.episode.truncated for segment in segments]),
        "policy_versions": np.full(len(segments), encoding.policy_version, "<i8"),
        "environment_seeds": np.array([segment.episode.env_seed for segment in segments], "<u4"),
    }
    if encoding.worker_index is not None:
        columns["worker_indices"] = np.full(len(segments), encoding.worker_index, "<u4")
    for name, column in columns.items():
        yield from array_field(_FIELDS[name], column)


def _step_columns(pieces: Sequence[Piece]) -> Iterator[Part]:
    for group, key in pieces[0].block.columns:
        rows = _rows(pieces, (group, key))
        if group == "rewards":
            yield from tensor_field(_FIELDS[group], rows)
        else:
            yield from named_tensor_field(_FIELDS[group], key.name, rows)


def _rows(pieces: Sequence[Piece], key: ColumnKey) -> Rows:
    slices = [block.columns[key][row, start:stop] for block, row, start, stop in pieces]
    return Rows(slices, key[1].dtype, key[1].shape)


def _last_observations(segments: Sequence[Segment]) -> Iterator[Part]:
    keys = [key for group, key in segments[0].episode.pieces[0].block.columns if group == "observations"]
    values = [segment.last_observations for segment in segments]
    for position, key in enumerate(keys):
        rows = Rows([value[position][np.newaxis] for value in values], key.dtype, key.shape)
        yield from named_tensor_field(_FIELDS["last_observations"], key.name, rows)


def _env_infos(segments: Sequence[Segment], keys: Iterable[ColumnKey]) -> Iterator[Part]:
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
        yield from _info_fields("environment_infos", name, column, mask)


def _episode_infos(segments: Sequence[Segment], keys: Iterable[ColumnKey]) -> Iterator[Part]:
    for name, same_name in _by_name(keys).items():
        column, mask = _gaps(len(segments), same_name)
        for row, segment in enumerate(segments):
            for key in same_name:
                if key in segment.episode.reset_infos:
                    column[row] = segment.episode.reset_infos[key]
                    mask[row] = True
        yield from _info_fields("episode_infos", name, column, mask)


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


def _info_fields(group: str, name: str, column: np.ndarray, mask: NDArray[np.bool_]) -> Iterator[Part]:
    """A column of infos, and its mask if it has gaps."""
    yield from named_tensor_field(_FIELDS[group], name, Rows.of(column))
    if not mask.all():
        yield from named_tensor_field(_FIELDS[group], mask_name(name), Rows.of(mask))
