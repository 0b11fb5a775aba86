"""Digests of segments, to compare delivered steps with the same steps of a reference."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

import rollserve
from rollserve_wire.columns import is_mask, leaves_of, mask_name

__all__ = ["Segment", "num_bytes", "segments_of", "slice_digest", "state_digest", "step_digest"]

_STATES = "state/"


@dataclasses.dataclass(frozen=True)
class Segment:
    """Delivered steps of an episode.

    Attributes:
        index: index of the episode.
        first_step: index of the first step within the episode.
        length: number of steps.
        policy_version: version of the policy that acted.
        digest: digest of all columns.
        state: digest of the recurrent state before the first step, or None if it was not delivered.
    """

    index: int
    first_step: int
    length: int
    policy_version: int
    digest: str
    state: str | None


def segments_of(batch: rollserve.EpisodeBatch) -> Iterator[Segment]:
    """Yield a summary of each segment of a batch."""
    for position in range(len(batch)):
        length = int(batch.lengths[position])
        yield Segment(
            int(batch.episode_indices[position]),
            int(batch.first_steps[position]),
            length,
            int(batch.policy_versions[position]),
            slice_digest(batch, position, 0, length),
            state_digest(batch, position, 0),
        )


def slice_digest(batch: rollserve.EpisodeBatch, position: int, start: int, stop: int) -> str:
    """Return the digest of steps `start` to `stop` of a segment, as if the segment consisted of them."""
    length, first = int(batch.lengths[position]), int(batch.first_steps[position])
    row = int(batch.lengths[:position].sum())
    is_end = stop == length
    seed = None if batch.env_seeds is None else int(batch.env_seeds[position])
    ended = is_end and bool(batch.terminated[position]), is_end and bool(batch.truncated[position])
    head = (int(batch.episode_indices[position]), first + start, stop - start, *ended, seed)
    digest = hashlib.blake2b(repr(head).encode(), digest_size=8)
    steps = slice(row + start, row + stop)
    for group in ("observations", "actions", "rewards", "agent_infos", "env_infos"):
        _add(digest, group, leaves_of(getattr(batch, group)), steps)
    last = leaves_of(batch.last_observations if is_end else batch.observations)
    at = position if is_end else row + stop
    _add(digest, "last", last, slice(at, at + 1))
    if first + start == 0:
        _add(digest, "episode", batch.episode_infos, slice(position, position + 1))
    return digest.hexdigest()


def state_digest(batch: rollserve.EpisodeBatch, position: int, start: int) -> str | None:
    """Return the digest of the recurrent state before a step of a segment, or None if the batch does not have it."""
    states = batch.initial_states
    names = [name for name in states if not is_mask(name, states)]
    delivered = {name: batch.agent_infos[_STATES + name] for name in names if _STATES + name in batch.agent_infos}
    at = int(batch.lengths[:position].sum()) + start
    if len(delivered) < len(names):
        has_gap = not all(states[mask_name(name)][position] for name in names if mask_name(name) in states)
        if start or has_gap:
            return None
        delivered, at = {name: states[name] for name in names}, position
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, "before", delivered, slice(at, at + 1))
    return digest.hexdigest()


def step_digest(step: rollserve.DrivenStep) -> str:
    """Return the digest of all that a step of a session shows."""
    digest = hashlib.blake2b(str(step.number).encode(), digest_size=8)
    for field in dataclasses.fields(step):
        if field.name != "number":
            _add(digest, field.name, leaves_of(getattr(step, field.name)), slice(None))
    return digest.hexdigest()


def num_bytes(batch: rollserve.EpisodeBatch) -> int:
    """Return the size of a batch's columns."""
    groups = (batch.observations, batch.last_observations, batch.actions, batch.rewards, batch.agent_infos)
    return sum(array.nbytes for group in (*groups, batch.env_infos) for array in leaves_of(group).values())


def _add(digest: hashlib.blake2b, group: str, leaves: Mapping[str, np.ndarray], rows: slice) -> None:
    for name in sorted(leaves):
        if not name.startswith(_STATES):
            array = np.ascontiguousarray(leaves[name][rows])
            digest.update(f"{group} {name} {array.dtype} {array.shape}".encode())
            digest.update(array.data)
