"""The encoder: episodes and fragments as messages, the responses of a sampling call."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from rollserve_server.sampling.encode.compression import Compressor
from rollserve_server.sampling.encode.fields import (
    Column,
    CompressedRows,
    Gathered,
    Headers,
    Observations,
    Rows,
    array_field,
    frame_stack_field,
    named_tensor_field,
    non_finite_rows,
    tensor_field,
)
from rollserve_server.sampling.encode.many import ManyContent, ManySegment, cut_many_into_messages
from rollserve_server.sampling.encode.segments import FILL_BYTES, Segment, SegmentContent, cut_into_messages
from rollserve_server.sampling.protocol import PLAIN, ColumnFormat, Message
from rollserve_wire.columns import COLUMNS, MANY_COLUMNS, PER_STEP
from rollserve_wire.moments import segment_moments
from rollserve_wire.protobuf import keys_of, length_delimited, size_of
from rollserve_wire.recurrences import forward_recurrence
from rollserve_wire.v1.episode_batch_pb2 import EpisodeBatch
from rollserve_wire.v1.multi_agent_batch_pb2 import MultiAgentBatch, PolicyBatch
from rollserve_wire.v1.sampler_service_pb2 import EvaluateResponse, ObtainExactEpisodesResponse, ObtainSamplesResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.collect.acting import Evaluator
    from rollserve_server.sampling.encode.fields import Part
    from rollserve_server.sampling.encode.many import ManyHeaders
    from rollserve_server.sampling.encode.tables import TableContent
    from rollserve_server.sampling.protocol import MomentsFormat
    from rollserve_server.sampling.record.columns import ColumnKey, Piece
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.lives import ManyEpisode
    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = [
    "ONE_AGENT",
    "E",
    "EncodedMessage",
    "Encoder",
    "Encoding",
    "MessageForm",
    "P",
    "many_agents",
    "new_array",
    "write_messages",
]

_MAX_SHRINKAGE = 4
"""Upper bound for how many times more plain data messages hold because they shrink: beyond it, nothing is gained."""

_FIELDS = keys_of(EpisodeBatch.DESCRIPTOR)
_KEYS = {name: _FIELDS[spec.fields[0]] for name, spec in COLUMNS.items()}
_STEP_NUMBERS = {name for name, spec in PER_STEP.items() if spec.kind == "numbers"}

_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["batch"]

if keys_of(ObtainExactEpisodesResponse.DESCRIPTOR)["batch"] != _BATCH:
    raise AssertionError("expected the same number of the field `batch` in the responses of both sampling calls")

_MANY_KEYS, _POLICY_KEYS = keys_of(MultiAgentBatch.DESCRIPTOR), keys_of(PolicyBatch.DESCRIPTOR)

_GLOBAL_STATES = [name for name, spec in MANY_COLUMNS.items() if spec.kind == "numbers"]

_MANY_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["multi_agent_batch"]

for _response in (ObtainExactEpisodesResponse, EvaluateResponse):
    if keys_of(_response.DESCRIPTOR)["multi_agent_batch"] != _MANY_BATCH:
        raise AssertionError("expected the same number of `multi_agent_batch` in the responses of all calls")


E = TypeVar("E", bound="Episode | ManyEpisode")
P = TypeVar("P", bound="Segment | ManySegment")


class MessageForm(NamedTuple, Generic[E, P]):
    """How episodes become messages.

    Attributes:
        cut: yields the parts of episodes that each message has; see `cut_into_messages`.
        encode: returns the message with parts.
    """

    cut: Callable[[Sequence[E], int, int, Callable[[], int], ColumnFormat], Iterator[Sequence[P]]]
    encode: Callable[[Encoder, Sequence[P], Encoding], EncodedMessage]


def _encode(encoder: Encoder, segments: Sequence[Segment], encoding: Encoding) -> EncodedMessage:
    return encoder.encode(SegmentContent(segments), encoding)


ONE_AGENT: MessageForm[Episode, Segment] = MessageForm(cut_into_messages, _encode)
"""Messages of environments with one agent."""


def many_agents(
    agents: Sequence[str], policies: Sequence[tuple[str, int]], evaluator_of: Callable[[str, int], Evaluator | None]
) -> MessageForm[ManyEpisode, ManySegment]:
    """Return the form of messages of environments with many agents.

    Args:
        agents: names of the possible agents.
        policies: name and version of the policies, at the positions that lives have.
        evaluator_of: returns the evaluator of a policy's version; see `Encoder.encode_many`.
    """

    def encode(encoder: Encoder, segments: Sequence[ManySegment], encoding: Encoding) -> EncodedMessage:
        return encoder.encode_many(ManyContent(segments, agents, policies), encoding, evaluator_of)

    return MessageForm(cut_many_into_messages, encode)


@dataclass(frozen=True)
class Encoding:
    """Values that messages hold besides their segments, and the format of their columns.

    Attributes:
        policy_version: version of the agent that acted.
        worker_index: index of the worker that the episodes are bound to; None if they are bound to none.
        columns: how columns may be written.
        evaluate: evaluator of observations, if last values are written; without one, they are NaN.
    """

    policy_version: int
    worker_index: int | None
    columns: ColumnFormat = PLAIN
    evaluate: Evaluator | None = None


class Encoder:
    """Encodes the messages of one sequence, and remembers which encodings make which columns smaller."""

    def __init__(self) -> None:
        self._compressor = Compressor()
        self._shrinkage = 1.0

    def fill_bytes(self) -> int:
        """Return the preferred plain size of the next message, if it shrinks as much as the last one did."""
        return round(FILL_BYTES * self._shrinkage)

    def encode(self, content: SegmentContent | TableContent, encoding: Encoding) -> EncodedMessage:
        """Return the message with the content. It refers to the content's columns until it is written."""
        headers, options = content.headers(), encoding.columns
        batch, num_raw_bytes, num_non_finite = self._batch(content, headers, encoding)
        moments = _moments_of(content, options.moments)
        fields = length_delimited(_BATCH, batch)
        return self._message(fields, num_raw_bytes, headers, content, moments, num_non_finite)

    def encode_many(
        self, content: ManyContent, encoding: Encoding, evaluator_of: Callable[[str, int], Evaluator | None]
    ) -> EncodedMessage:
        """Return the message with parts of episodes with many agents; as `encode`.

        Args:
            content: the parts.
            encoding: the other values; without an evaluator.
            evaluator_of: returns the evaluator of a policy's version, by its name; called if last values are written.
        """
        headers = content.headers()
        fields: list[Part] = []
        for agent in content.agents:
            fields += length_delimited(_MANY_KEYS["agents"], [agent.encode()])
        for name, column in headers._asdict().items():
            fields += array_field(_MANY_KEYS[name], column)
        num_raw_bytes = num_non_finite = 0
        for part in content.parts():
            if encoding.columns.policies and part.policy not in encoding.columns.policies:
                continue
            evaluate = evaluator_of(part.policy, part.version) if encoding.columns.last_values else None
            of_policy = dataclasses.replace(encoding, policy_version=part.version, evaluate=evaluate)
            owner = part.policy, part.version
            batch, raw_bytes, non_finite = self._batch(part.content, part.content.headers(), of_policy, *owner)
            num_raw_bytes += raw_bytes
            num_non_finite += non_finite
            policy: list[Part] = [*length_delimited(_POLICY_KEYS["policy"], [part.policy.encode()])]
            policy += length_delimited(_POLICY_KEYS["batch"], batch)
            policy += array_field(_POLICY_KEYS["agent_positions"], part.agent_positions)
            policy += array_field(_POLICY_KEYS["environment_steps"], part.environment_steps)
            if part.rewards_before.any():
                policy += array_field(_POLICY_KEYS["rewards_before"], part.rewards_before)
            fields += length_delimited(_MANY_KEYS["policies"], policy)
        for name, rows in zip(_GLOBAL_STATES, content.global_states() or (), strict=False):
            num_raw_bytes += rows.num_bytes
            fields += tensor_field(_MANY_KEYS[name], self._compressed(name, rows, encoding.columns.compression))
        moments = _moments_of(content, encoding.columns.moments)
        batch = length_delimited(_MANY_BATCH, fields)
        return self._message(batch, num_raw_bytes, headers, content, moments, num_non_finite)

    def _batch(
        self,
        content: SegmentContent | TableContent,
        headers: Headers,
        encoding: Encoding,
        *owner: Hashable,
    ) -> tuple[list[Part], int, int]:
        """Return the fields of a batch, its columns' size if they were plain, and its number of non-finite steps."""
        options = encoding.columns
        leaves = list(content.observations())
        columns: list[Column] = []
        for observations in leaves:
            columns += self._observations(observations, frames_once=options.frames_once)
        columns += content.columns(all_states=options.all_states)
        columns += _ends(content, headers, encoding)
        batch = list(_header_fields(headers, encoding))
        if options.returns_before and headers.first_steps.any():
            batch += array_field(_KEYS["returns_before"], content.returns_before())
        if (discount := options.return_discount) is not None:
            batch += array_field(_KEYS["discounted_returns_before"], content.discounted_before(discount))
        for column in columns:
            batch += self._field(column, options.compression, owner)
        num_raw_bytes = sum(column.num_raw_bytes for column in columns)
        return batch, num_raw_bytes, _num_non_finite_steps(content, headers, leaves, columns)

    def _message(
        self,
        parts: Sequence[Part],
        num_raw_bytes: int,
        headers: Headers | ManyHeaders,
        content: SegmentContent | TableContent | ManyContent,
        moments: tuple[bytes, ...],
        num_non_finite_steps: int,
    ) -> EncodedMessage:
        """Return the message of these parts, and remember how much it shrank."""
        num_bytes = size_of(parts)
        self._shrinkage = min(max(num_raw_bytes / num_bytes, 1.0), _MAX_SHRINKAGE)
        info = Message(
            0,
            num_bytes,
            int(headers.lengths.sum()),
            int(np.count_nonzero(headers.terminated | headers.truncated)),
            content.dropped_infos(),
            max(num_bytes, num_raw_bytes),
            content.endings(),
            moments,
            num_non_finite_steps,
        )
        return EncodedMessage(parts, info)

    def _observations(self, observations: Observations, *, frames_once: bool) -> Iterator[Column]:
        """Yield a leaf's observations as frames that are written once each, if they may be; else as two columns."""
        key, rows, last, find_frames = observations
        frames = find_frames() if frames_once else None
        if frames is None:
            yield Column.of("observations", key.name, rows)
            yield Column.of("last_observations", key.name, last)
        else:
            num_raw_bytes = rows.num_bytes + last.num_bytes
            yield Column("observations", key.name, frames, num_raw_bytes, frame_count=key.shape[0])

    def _field(
        self, column: Column, compression: Compression.ValueType | None, owner: tuple[Hashable, ...]
    ) -> list[Part]:
        """Return the column as a field of the message, compressed if it may be and shrinks by it."""
        rows = self._compressed((*owner, column.group, column.name, column.frame_count), column.rows, compression)
        if column.frame_count:
            return frame_stack_field(_FIELDS["frame_stacks"], column.name, column.frame_count, rows)
        if COLUMNS[column.group].kind == "numbers":
            return tensor_field(_KEYS[column.group], rows)
        return named_tensor_field(_KEYS[column.group], column.name, rows)

    def _compressed(
        self, key: Hashable, rows: Rows | Gathered, compression: Compression.ValueType | None
    ) -> Rows | Gathered | CompressedRows:
        """Return rows compressed, if they may be and shrink by it; the key names their column."""
        return rows if compression is None else self._compressor.compress(key, rows, compression)


def _ends(content: SegmentContent | TableContent, headers: Headers, encoding: Encoding) -> Iterator[Column]:
    """Yield what is asked for about the ends of the segments: recurrent states, and values."""
    options = encoding.columns
    if not (options.last_states or options.last_values):
        return
    states = content.last_states()
    if options.last_states:
        for name, column in states:
            yield Column.of("last_states", name, Rows.of(column))
    if options.last_values:
        goes_on = np.flatnonzero(~headers.terminated)
        found = np.full(len(goes_on), np.nan, np.float32)
        if (evaluate := encoding.evaluate) is not None:
            masks = [content.last_infos(name) for name in evaluate.mask_infos]
            found = evaluate(
                [column[goes_on] for column in content.last_observations()],
                [column[goes_on] for _, column in states],
                headers.episode_indices[goes_on].tolist(),
                [each and (each[0][goes_on], each[1][goes_on]) for each in masks],
            )
        values = np.zeros(len(headers.terminated), found.dtype)
        values[goes_on] = found
        yield Column.of("last_values", "", Rows.of(values))


def _num_non_finite_steps(
    content: SegmentContent | TableContent,
    headers: Headers,
    leaves: Sequence[Observations],
    columns: Sequence[Column],
) -> int:
    """Return the number of steps with a NaN or an infinity; see `non_finite_step_count` of Account."""
    found = [non_finite_rows(column.rows) for column in columns if column.group in _STEP_NUMBERS]
    found += [non_finite_rows(leaf.rows) for leaf in leaves]
    last_steps = np.cumsum(headers.lengths, dtype=np.int64) - 1
    for segments in map(non_finite_rows, (leaf.last for leaf in leaves)):
        # Where only the message ends, the observation belongs to the next message's first step.
        found.append(last_steps[segments[content.ends()[segments]]] if len(segments) else segments)
    return len(np.unique(np.concatenate(found))) if any(map(len, found)) else 0


def _header_fields(headers: Headers, encoding: Encoding) -> Iterator[Part]:
    """Yield the values of each segment, and the values that all segments share, repeated for each."""
    num_segments = len(headers.lengths)
    columns = headers._asdict()
    columns["policy_versions"] = np.full(num_segments, encoding.policy_version, "<i8")
    if encoding.worker_index is not None:
        columns["worker_indices"] = np.full(num_segments, encoding.worker_index, "<u4")
    for name, column in columns.items():
        yield from array_field(_KEYS[name], column)


def _moments_of(
    content: SegmentContent | TableContent | ManyContent, forms: Sequence[MomentsFormat]
) -> tuple[bytes, ...]:
    """Return the moments of the whole episodes or fragments that end in a message; see `Message.moments`."""
    found: list[bytes] = []
    for form in forms:
        found += _moments(content.ending_pieces(form.policy), content.ending_discounted_before(form.policy), form)
    return tuple(found)


def _moments(segments: Sequence[Sequence[Piece]], before: NDArray[np.float64], form: MomentsFormat) -> Iterator[bytes]:
    """Yield the moments of each leaf, and then of the returns, of whole episodes or fragments."""
    if not segments:
        yield from [b""] * (len(form.leaves) + (form.discount is not None))
        return
    moments = [
        segment_moments(
            [_arrays(pieces, _key_of(pieces, "observations", name)) for pieces in segments], math.prod(shape)
        )
        for name, shape in form.leaves
    ]
    if form.discount is not None:
        moments.append(segment_moments([[returns] for returns in _returns(segments, form.discount, before)], 1))
    yield from (rows.tobytes() for rows in moments)


def _returns(segments: Sequence[Sequence[Piece]], discount: float, before: NDArray[np.float64]) -> Iterator[np.ndarray]:
    """Yield the discounted return after each step of whole episodes or fragments, given those before them, (N,)."""
    rewards = [_arrays(pieces, _key_of(pieces, "rewards", "")) for pieces in segments]
    lengths = np.array([sum(map(len, arrays)) for arrays in rewards])
    terms = np.concatenate([array for arrays in rewards for array in arrays], dtype=np.float64)
    returns = forward_recurrence(discount, terms, lengths, before)
    yield from np.split(returns, np.cumsum(lengths)[:-1])


def _arrays(pieces: Sequence[Piece], key: ColumnKey) -> list[np.ndarray]:
    return [array for piece in pieces for array in piece.arrays(key)]


def _key_of(pieces: Sequence[Piece], group: str, name: str) -> ColumnKey:
    columns = pieces[0].buffer.columns
    return next(key for key in columns if key[0] == group and key[1].name == name)


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message whose columns are written where it is put.

    Attributes:
        parts: content of the message, in order.
        info: what is known of it, as of a message at the beginning of a buffer.
    """

    parts: Sequence[Part]
    info: Message

    @property
    def num_bytes(self) -> int:
        """Size of the message."""
        return self.info.size

    @property
    def num_raw_bytes(self) -> int:
        """Size that the message would have with all columns plain."""
        return self.info.raw_size

    def place(self, offset: int) -> Message:
        """Return the message's position in a buffer, and its content."""
        return dataclasses.replace(self.info, offset=offset)

    def write(self, buffer: NDArray[np.uint8]) -> None:
        """Write the message into a buffer of its size."""
        offset, view = 0, buffer.data
        for part in self.parts:
            if isinstance(part, bytes):
                end = offset + len(part)
                view[offset:end] = part
            else:
                end = offset + part.num_bytes
                part.write(buffer[offset:end])
            offset = end


def write_messages(
    messages: Sequence[EncodedMessage], new_buffer: Callable[[int], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Return a buffer, made by `new_buffer` for its number of bytes, with the messages, one behind the other."""
    buffer = new_buffer(sum(message.num_bytes for message in messages))
    offset = 0
    for message in messages:
        message.write(buffer[offset : offset + message.num_bytes])
        offset += message.num_bytes
    return buffer


def new_array(num_bytes: int) -> NDArray[np.uint8]:
    """Return a buffer for messages in memory of this process."""
    return np.empty(num_bytes, np.uint8)
