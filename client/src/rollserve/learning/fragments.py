"""Segments of a batch: some of them in a new order, or all of them cut into fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.batch_fields import HEADERS, SEGMENT_COLUMNS, STEP_COLUMNS
from rollserve._codec.columns import Columns, columns_of, is_mask, leaves_of, map_columns, mask_name
from rollserve._codec.initial_states import STEP_STATES
from rollserve.errors import mismatch
from rollserve.learning.arguments import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Fragments", "cut_segments", "rows_of", "take_segments"]


def take_segments(batch: Any, segments: ArrayLike) -> dict[str, Any]:
    """Return the fields of some segments of a batch in new arrays; see `EpisodeBatch.take`."""
    positions = np.asarray(segments)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        raise ValueError(f"segments: {mismatch('integers (M,)', f'{positions.dtype} of shape {positions.shape}')}")
    positions = positions.astype(np.int64)
    if positions.size and not 0 <= positions.min() <= positions.max() < len(batch):
        text = mismatch(f"positions from 0 to {len(batch) - 1}", f"{positions.min()} to {positions.max()}")
        raise ValueError(f"segments: {text}")
    return Fragments(batch, None).take(positions)


def cut_segments(batch: Any, length: int) -> dict[str, Any]:
    """Return the fields of a batch whose segments are cut into fragments; see `EpisodeBatch.cut`."""
    return Fragments(batch, check_count("length", length)).all()


_OWN_FIELDS = ("last_observations", "lengths", "first_steps", "returns_before")


class Fragments:
    """Fragments that the segments of a batch are cut into, in their order. Their columns are made on demand.

    Args:
        batch: the batch.
        length: number of steps of a fragment, the last of a segment may have fewer; None for whole segments.

    Attributes:
        lengths: (M,), number of steps of each.
    """

    def __init__(self, batch: Any, length: int | None) -> None:
        self._batch = batch
        counts = np.ones(len(batch), np.int64) if length is None else -(-batch.lengths // length)
        ends = np.cumsum(counts)
        self._owners = np.repeat(np.arange(len(batch)), counts)
        self._offsets = (np.arange(len(self._owners)) - np.repeat(ends - counts, counts)) * (length or 1)
        self._is_last = np.zeros(len(self._owners), np.bool_)
        self._is_last[ends - 1] = True
        if length is None:
            self.lengths, self._returns_before = batch.lengths, batch.returns_before
        else:
            self.lengths = np.minimum(length, batch.lengths[self._owners] - self._offsets)
        self._begins = np.cumsum(self.lengths) - self.lengths
        if length is not None:
            self._returns_before = _returns_before(batch, counts, self._begins)

    def all(self) -> dict[str, Any]:
        """Return the fields of all fragments; columns of steps are the batch's own."""
        return self._fields(slice(None), None)

    def take(self, positions: NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of some fragments in new arrays, given their positions (K,) among all."""
        begins, lengths = self._begins[positions], self.lengths[positions]
        return self._fields(positions, rows_of(begins, lengths))

    def _fields(self, chosen: NDArray[np.int64] | slice, rows: NDArray[np.int64] | None) -> dict[str, Any]:
        """Return the fields of chosen fragments, given the rows of their steps; None for all as they are."""
        batch, owners, is_cut = self._batch, self._owners[chosen], ~self._is_last[chosen]
        begins, continued = self._begins[chosen], self._offsets[chosen] > 0
        nexts = (begins + self.lengths[chosen])[is_cut]  # the step after each fragment that does not end its segment
        fields: dict[str, Any] = {}
        for name in STEP_COLUMNS:
            column = getattr(batch, name)
            fields[name] = column if column is None or rows is None else _take(column, rows)
        for name in (*SEGMENT_COLUMNS, *HEADERS):
            column = getattr(batch, name)
            if name not in _OWN_FIELDS:
                fields[name] = None if column is None else _take(column, owners)
        fields["lengths"] = self.lengths[chosen]
        fields["first_steps"] = batch.first_steps[owners] + self._offsets[chosen]
        fields["returns_before"] = self._returns_before[chosen]
        for name in ("terminated", "truncated"):
            fields[name] &= ~is_cut
        fields["last_observations"] = _last_observations(batch, owners, is_cut, nexts)
        if batch.last_values is not None:
            fields["last_values"] = _last_values(batch, fields["last_values"], is_cut, nexts)
        fields["initial_states"] = _with_states(
            fields["initial_states"], continued, begins[continued], batch.agent_infos
        )
        fields["last_states"] = _with_states(fields["last_states"], is_cut, nexts, batch.agent_infos)
        return fields


def rows_of(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of segments, one segment behind the other, given where they begin and their lengths."""
    ends = np.cumsum(lengths)
    rows: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0)
    rows += np.repeat(begins - (ends - lengths), lengths)
    return rows


def _last_observations(
    batch: Any, owners: NDArray[np.int64], is_cut: NDArray[np.bool_], nexts: NDArray[np.int64]
) -> Columns:
    """Return the observations after fragments: the next of the batch, or the last ones of segments."""
    before = leaves_of(batch.observations)
    found = {}
    for name, last in leaves_of(batch.last_observations).items():
        found[name] = np.empty((len(owners), *last.shape[1:]), last.dtype)
        found[name][is_cut] = np.take(before[name], nexts, axis=0)
        found[name][~is_cut] = np.take(last, owners[~is_cut], axis=0)
    return columns_of(found)


def _take(column: Columns, rows: NDArray[np.int64]) -> Columns:
    # Along one axis, `take` copies rows of several numbers about twice as fast as an index does.
    return map_columns(lambda array: np.take(array, rows, axis=0), column)


def _returns_before(batch: Any, counts: NDArray[np.int64], begins: NDArray[np.int64]) -> np.ndarray:
    """Return the sum of raw rewards of each fragment's episode before it, added one by one, as servers add them."""
    rewards = batch.rewards if batch.raw_rewards is None else batch.raw_rewards
    before: np.ndarray = np.repeat(batch.returns_before.astype(np.float64), counts)
    ends = np.cumsum(counts)
    cut = counts > 1
    for low, high in zip((ends - counts)[cut].tolist(), ends[cut].tolist(), strict=True):
        rows = begins[low:high]
        sums = np.add.accumulate(np.concatenate((before[low : low + 1], rewards[rows[0] : rows[-1]])))
        before[low:high] = sums[rows - rows[0]]
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
