"""Sequences of steps of one length, for recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.initial_states import STEP_STATES
from rollserve.learning.arguments import check_count
from rollserve.learning.minibatches import step_columns
from rollserve.learning.transitions import observations_after
from rollserve_wire.columns import is_mask, map_columns, mask_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_wire.columns import Columns

__all__ = ["sequences"]


def sequences(
    batch: Any, length: int, burn_in: int, stride: int | None, columns: Mapping[str, Columns]
) -> dict[str, Columns]:
    """Return sequences of steps; see `EpisodeBatch.sequences`."""
    length, burn_in = check_count("length", length), check_count("burn_in", burn_in, low=0)
    stride = length if stride is None else check_count("stride", stride, high=length)
    columns = step_columns(batch, columns)
    num_sequences = 1 + -(-np.maximum(batch.lengths - length, 0) // stride)
    segments = np.repeat(np.arange(len(batch.lengths)), num_sequences)
    # Steps of the segment: the first to learn from, the first of the sequence, and the one after its last.
    learned = (np.arange(len(segments)) - np.repeat(np.cumsum(num_sequences) - num_sequences, num_sequences)) * stride
    begins = np.maximum(learned - burn_in, 0)
    ends = np.minimum(learned + length, batch.lengths[segments])
    starts = (np.cumsum(batch.lengths) - batch.lengths)[segments]

    places = np.arange(burn_in + length)
    valids = places < (ends - begins)[:, np.newaxis]
    steps = ((starts + begins)[:, np.newaxis] + places)[valids]

    def pad(array: np.ndarray) -> np.ndarray:
        padded = np.zeros((*valids.shape, *array.shape[1:]), array.dtype)
        padded[valids] = array[steps]
        return padded

    is_end = ends == batch.lengths[segments]
    return {
        **{name: map_columns(pad, column) for name, column in columns.items()},
        "valids": valids,
        "learned": valids & (places >= (learned - begins)[:, np.newaxis]),
        "lengths": ends - begins,
        "steps": starts + begins,
        "initial_states": _states(batch, segments, begins, starts + begins),
        "last_observations": observations_after(batch, starts + ends - 1),
        "terminated": is_end & batch.terminated[segments],
        "truncated": is_end & batch.truncated[segments],
    }


def _states(
    batch: Any, segments: NDArray[np.int64], begins: NDArray[np.int64], steps: NDArray[np.int64]
) -> dict[str, np.ndarray]:
    """Return the recurrent states before the first step of each sequence, with masks where some are not known.

    Args:
        batch: the batch.
        segments: (S,), segment of each sequence.
        begins: (S,), first step of each sequence in its segment.
        steps: (S,), first step of each sequence in the batch.
    """
    states, infos = batch.initial_states, batch.agent_infos
    found: dict[str, np.ndarray] = {}
    for name, array in states.items():
        if is_mask(name, states):
            continue
        info = f"{STEP_STATES}{name}"
        initial = begins == 0
        known = initial & states.get(mask_name(name), np.ones(len(array), np.bool_))[segments]
        found[name] = np.zeros((len(segments), *array.shape[1:]), array.dtype)
        found[name][known] = array[segments[known]]
        if info in infos:
            later = ~known & infos.get(mask_name(info), np.ones(len(batch.rewards), np.bool_))[steps]
            found[name][later] = infos[info][steps[later]]
            known |= later
        if not known.all():
            found[mask_name(name)] = known
    return found
