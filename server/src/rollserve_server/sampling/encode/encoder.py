"""The encoder: segments as messages, the responses of a sampling call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rollserve_server.sampling.encode.columns import Column, Headers, Observations
from rollserve_server.sampling.encode.compression import Compressor
from rollserve_server.sampling.encode.fields import (
    CompressedRows,
    Gathered,
    Rows,
    array_field,
    frame_stack_field,
    named_tensor_field,
    non_finite_rows,
    tensor_field,
)
from rollserve_server.sampling.encode.messages import EncodedMessage
from rollserve_server.sampling.encode.moments import moments_of
from rollserve_server.sampling.encode.sizes import FILL_BYTES
from rollserve_server.sampling.protocol.orders import PLAIN, ColumnFormat
from rollserve_wire.protobuf import keys_of, length_delimited, size_of
from rollserve_wire.v1.episode_batch_pb2 import EpisodeBatch
from rollserve_wire.v1.multi_agent_batch_pb2 import MultiAgentBatch, PolicyBatch
from rollserve_wire.v1.sampler_service_pb2 import EvaluateResponse, ObtainExactEpisodesResponse, ObtainSamplesResponse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.fields import Part
    from rollserve_server.sampling.encode.many_content import ManyContent, ManyHeaders
    from rollserve_server.sampling.encode.segment_content import SegmentContent
    from rollserve_server.sampling.encode.table_content import TableContent
    from rollserve_wire.v1.tensor_pb2 import Compression

__all__ = ["Encoder", "Encoding", "Evaluate"]

_KEYS = keys_of(EpisodeBatch.DESCRIPTOR)
_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["batch"]
if keys_of(ObtainExactEpisodesResponse.DESCRIPTOR)["batch"] != _BATCH:
    raise AssertionError("expected the same number of the field `batch` in the responses of both sampling calls")

_MANY_KEYS, _POLICY_KEYS = keys_of(MultiAgentBatch.DESCRIPTOR), keys_of(PolicyBatch.DESCRIPTOR)
_GLOBAL_STATES = ("global_states", "last_global_states")
_MANY_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["multi_agent_batch"]
for _response in (ObtainExactEpisodesResponse, EvaluateResponse):
    if keys_of(_response.DESCRIPTOR)["multi_agent_batch"] != _MANY_BATCH:
        raise AssertionError("expected the same number of `multi_agent_batch` in the responses of all calls")

_MAX_SHRINKAGE = 4
"""Upper bound for how many times more plain data messages hold because they shrink: beyond it, nothing is gained."""


class Evaluate(Protocol):
    """Evaluator of observations; see `Evaluator` of `collect`.

    Attributes:
        mask_infos: names of the environment's infos that have the action mask; empty if there is none, or if it is part
            of the observations.
    """

    mask_infos: tuple[str, ...]

    def __call__(
        self,
        observations: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        episode_indices: Sequence[int],
        masks: Sequence[tuple[np.ndarray, NDArray[np.bool_]] | None] = (),
    ) -> np.ndarray:
        """Return the values (S,) of observations."""


@dataclass(frozen=True)
class Encoding:
    """Values that messages hold besides their segments, and the format of their columns.

    Attributes:
        policy_version: version of the agent that acted.
        worker_index: index of the worker that the episodes are bound to; None if they are bound to none.
        columns: how columns may be written.
        evaluate: evaluator of observations, which has to be there if last values are written.
    """

    policy_version: int
    worker_index: int | None
    columns: ColumnFormat = PLAIN
    evaluate: Evaluate | None = None


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
        moments = moments_of(content, options.moments)
        fields = length_delimited(_BATCH, batch)
        return self._message(fields, num_raw_bytes, headers, content, moments, num_non_finite)

    def encode_many(
        self, content: ManyContent, encoding: Encoding, evaluator_of: Callable[[str, int], Evaluate]
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
        moments = moments_of(content, encoding.columns.moments)
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
        num_bytes = sum(map(size_of, parts))
        self._shrinkage = min(max(num_raw_bytes / num_bytes, 1.0), _MAX_SHRINKAGE)
        return EncodedMessage(
            parts,
            num_bytes=num_bytes,
            num_raw_bytes=max(num_bytes, num_raw_bytes),
            num_steps=int(headers.lengths.sum()),
            num_episodes=int(np.count_nonzero(headers.terminated | headers.truncated)),
            dropped_infos=content.dropped_infos(),
            endings=content.endings(),
            moments=moments,
            num_non_finite_steps=num_non_finite_steps,
        )

    def _observations(self, observations: Observations, *, frames_once: bool) -> Iterator[Column]:
        """Yield a leaf's observations as frames that are written once each, if they may be; else as two columns."""
        key, rows, last, find_frames = observations
        frames = find_frames() if frames_once else None
        if frames is None:
            yield Column.of("observations", key.name, rows)
            yield Column.of("last_observations", key.name, last)
        else:
            num_raw_bytes = rows.num_bytes + last.num_bytes
            yield Column("frame_stacks", key.name, frames, num_raw_bytes, frame_count=key.shape[0])

    def _field(
        self, column: Column, compression: Compression.ValueType | None, owner: tuple[Hashable, ...]
    ) -> list[Part]:
        """Return the column as a field of the message, compressed if it may be and shrinks by it."""
        rows = self._compressed((*owner, column.group, column.name), column.rows, compression)
        key = _KEYS[column.group]
        if column.group in ("rewards", "raw_rewards", "last_values"):
            return tensor_field(key, rows)
        if column.group == "frame_stacks":
            return frame_stack_field(key, column.name, column.frame_count, rows)
        return named_tensor_field(key, column.name, rows)

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
        assert encoding.evaluate is not None  # noqa: S101  # the format asks for values
        evaluate, goes_on = encoding.evaluate, np.flatnonzero(~headers.terminated)
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
    found = [non_finite_rows(column.rows) for column in columns if column.group in ("rewards", "raw_rewards")]
    found += [non_finite_rows(leaf.rows) for leaf in leaves]
    last_steps = np.cumsum(headers.lengths, dtype=np.int64) - 1
    for segments in map(non_finite_rows, (leaf.last for leaf in leaves)):
        # Where only the message ends, the observation is that of the next message's first step.
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
