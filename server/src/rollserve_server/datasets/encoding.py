"""Batches of files as messages, in the form that sampling calls deliver."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollserve import EpisodeBatch
from rollserve_wire.columns import FIELDS, STEP_COLUMNS, leaves_of, map_columns, named_arrays
from rollserve_wire.tensors import named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["StepTooLargeError", "encoded"]

_MESSAGE_BYTES = 2 << 20
_OVERHEAD_BYTES = 16 << 10
_COLUMNS = {
    "observations": "observations",
    "last_observations": "last_observations",
    "actions": "actions",
    "agent_infos": "agent_infos",
    "env_infos": "environment_infos",
    "episode_infos": "episode_infos",
    "initial_states": "initial_states",
    "last_states": "last_states",
    "env_actions": "environment_actions",
}
_TENSORS = ("rewards", "raw_rewards", "last_values")
_HEADERS = (
    "episode_indices",
    "first_steps",
    "lengths",
    "terminated",
    "truncated",
    "policy_versions",
    "worker_indices",
    "row_indices",
    "returns_before",
    "discounted_returns_before",
)


class StepTooLargeError(Exception):
    """A single step that does not fit into a message.

    Attributes:
        num_bytes: size of the message that it needs.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


def encoded(batch: EpisodeBatch, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the messages of a batch, and whether the first segment of each continues the last one of the one before.

    Raises:
        StepTooLargeError: a single step takes more than `max_bytes`.
        ValueError: a column of a dtype that the wire does not have.
    """
    for part, continues in _parts(batch, min(max_bytes, _MESSAGE_BYTES)):
        yield from _fitting(part, continues, max_bytes)


def _fitting(batch: EpisodeBatch, continues: bool, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the message of a batch, or those of its halves where it is too large."""
    data = _message(batch)
    if len(data) <= max_bytes:
        yield data, continues
    elif batch.num_steps == 1:
        raise StepTooLargeError(len(data))
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
    for name in FIELDS:
        rows = steps if name in STEP_COLUMNS else segments
        if fields[name] is not None:
            fields[name] = map_columns(lambda array, rows=rows: array[rows], fields[name])  # type: ignore[misc]
    for name in ("lengths", "terminated", "truncated", "first_steps"):
        fields[name] = fields[name].copy()
    vars(part).update(fields)
    return part


def _message(batch: EpisodeBatch) -> bytes:
    fields: dict[str, Any] = {
        field: named_tensors_to_proto(leaves_of(getattr(batch, name)))
        for name, field in _COLUMNS.items()
        if getattr(batch, name) is not None
    }
    fields |= {name: tensor_to_proto(getattr(batch, name)) for name in _TENSORS if getattr(batch, name) is not None}
    fields |= {name: getattr(batch, name).tolist() for name in _HEADERS if getattr(batch, name) is not None}
    seeds = batch.env_seeds
    if seeds is not None:
        is_wide = len(seeds) and (seeds.min() < 0 or seeds.max() >= 1 << 32)
        fields["wide_environment_seeds" if is_wide else "environment_seeds"] = seeds.tolist()
    return pb.ReadDatasetResponse(batch=episode_batch_pb2.EpisodeBatch(**fields)).SerializeToString()
