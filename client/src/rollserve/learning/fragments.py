"""Segments of a batch: some of them in a new order, or all of them cut into fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.batch_fields import HEADERS, SEGMENT_COLUMNS, STEP_COLUMNS
from rollserve._codec.columns import Columns, is_mask, leaves_of, map_columns, mask_name
from rollserve._codec.initial_states import STEP_STATES
from rollserve.errors import mismatch
from rollserve.learning.arguments import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

__all__ = ["cut_segments", "take_segments"]


def take_segments(batch: Any, segments: ArrayLike) -> dict[str, Any]:
    """Return the fields of some segments of a batch in new arrays; see `EpisodeBatch.take`."""
    positions = np.asarray(segments)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        raise ValueError(f"segments: {mismatch('integers (M,)', f'{positions.dtype} of shape {positions.shape}')}")
    positions = positions.astype(np.int64)
    if positions.size and not 0 <= positions.min() <= positions.max() < len(batch):
        text = mismatch(f"positions from 0 to {len(batch) - 1}", f"{positions.min()} to {positions.max()}")
        raise ValueError(f"segments: {text}")
    steps = batch.steps_of(positions)
    fields: dict[str, Any] = {}
    for name in (*STEP_COLUMNS, *SEGMENT_COLUMNS, *HEADERS):
        column, rows = getattr(batch, name), steps if name in STEP_COLUMNS else positions
        fields[name] = None if column is None else _take(column, rows)
    return fields


def cut_segments(batch: Any, length: int) -> dict[str, Any]:
    """Return the fields of a batch whose segments are cut into fragments; see `EpisodeBatch.cut`."""
    length = check_count("length", length)
    counts = -(-batch.lengths // length)
    owners = np.repeat(np.arange(len(batch)), counts)
    parts = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = np.minimum(length, batch.lengths[owners] - parts * length)
    is_last = parts == counts[owners] - 1
    begins, continued = np.cumsum(lengths) - lengths, parts > 0
    nexts = (begins + lengths)[~is_last]  # the step after each fragment that does not end its segment
    fields: dict[str, Any] = {name: getattr(batch, name) for name in STEP_COLUMNS}
    for name in (*SEGMENT_COLUMNS, *HEADERS):
        column = getattr(batch, name)
        fields[name] = None if column is None else _take(column, owners)
    fields["lengths"] = lengths
    fields["first_steps"] = batch.first_steps[owners] + parts * length
    fields["returns_before"] = _returns_before(batch, owners, parts, begins)
    for name in ("terminated", "truncated"):
        fields[name] = fields[name] & is_last
    for name, array in leaves_of(fields["last_observations"]).items():
        array[~is_last] = leaves_of(batch.observations)[name][nexts]
    if batch.last_values is not None:
        fields["last_values"] = _last_values(batch, fields["last_values"], ~is_last, nexts)
    fields["initial_states"] = _with_states(fields["initial_states"], continued, begins[continued], batch.agent_infos)
    fields["last_states"] = _with_states(fields["last_states"], ~is_last, nexts, batch.agent_infos)
    return fields


def _take(column: Columns, rows: NDArray[np.int64]) -> Columns:
    # Along one axis, `take` copies rows of several numbers about twice as fast as an index does.
    return map_columns(lambda array: np.take(array, rows, axis=0), column)


def _returns_before(
    batch: Any, owners: NDArray[np.int64], parts: NDArray[np.int64], begins: NDArray[np.int64]
) -> np.ndarray:
    """Return the sum of raw rewards of each fragment's episode before it, added one by one, as servers add them."""
    rewards = batch.rewards if batch.raw_rewards is None else batch.raw_rewards
    before: np.ndarray = batch.returns_before[owners].astype(np.float64)
    starts = np.cumsum(batch.lengths) - batch.lengths
    for segment in np.unique(owners[parts > 0]).tolist():
        low, high = np.searchsorted(owners, [segment, segment + 1]).tolist()
        start, end = int(starts[segment]), int(begins[high - 1])
        sums = np.add.accumulate(np.append(before[low], rewards[start:end]))
        before[low:high] = sums[begins[low:high] - start]
    return before


def _last_values(batch: Any, values: np.ndarray, cut: NDArray[np.bool_], nexts: NDArray[np.int64]) -> np.ndarray | None:
    """Return the value after each fragment; None if the batch does not know those inside its segments."""
    if not cut.any():
        return values
    if "value" not in batch.agent_infos or mask_name("value") in batch.agent_infos:
        return None
    values[cut] = batch.agent_infos["value"][nexts]
    return values


def _with_states(
    states: Mapping[str, np.ndarray],
    replaced: NDArray[np.bool_],
    steps: NDArray[np.int64],
    agent_infos: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return recurrent states whose replaced rows are the states before steps, or gaps if no info has them."""
    found = dict(states)
    for name in [name for name in states if not is_mask(name, states)] if replaced.any() else []:
        step_states = agent_infos.get(f"{STEP_STATES}{name}")
        found[name][replaced] = 0 if step_states is None else step_states[steps]
        if step_states is None:
            found.setdefault(mask_name(name), np.ones(len(replaced), np.bool_))[replaced] = False
    return found
