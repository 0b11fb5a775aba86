"""Parts of a batch: segments, in a new order or cut; steps in random order; and sequences of steps of one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.initial_states import STEP_STATES
from rollserve.learning.arguments import check_count, check_generator
from rollserve.learning.transitions import observations_after
from rollserve_wire.columns import (
    PER_SEGMENT,
    PER_STEP,
    Columns,
    columns_of,
    is_mask,
    leaves_of,
    map_columns,
    mask_name,
    original,
)
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


__all__ = [
    "Fragments",
    "cut_segments",
    "minibatches",
    "rows_of",
    "sequences",
    "shuffled",
    "take_segments",
]

_OWN_FIELDS = ("last_observations", "lengths", "first_steps", "returns_before")
"""Fields in which a fragment differs from its segment."""
_ADDED = (
    "steps",
    "lengths",
    "valids",
    "learned",
    "initial_states",
    "last_observations",
    "terminated",
    "truncated",
)
"""Names that minibatches or sequences have beside the columns of steps."""


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
        self.lengths = batch.lengths
        if length is not None:
            self.lengths = np.minimum(length, batch.lengths[self._owners] - self._offsets)
        self._begins = np.cumsum(self.lengths) - self.lengths
        self._returns_before = batch.returns_before if length is None else _returns_before(batch, counts, self._begins)

    def all(self) -> dict[str, Any]:
        """Return the fields of all fragments; columns of steps are the batch's own."""
        return self._fields(lambda array: array, are_all=True)

    def take(self, positions: NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of some fragments in new arrays, given their positions (K,) among all."""
        return self._fields(lambda array: np.take(array, positions), are_all=False)

    def _fields(self, chosen: Callable[[np.ndarray], np.ndarray], *, are_all: bool) -> dict[str, Any]:
        """Return the fields of chosen fragments, given what picks their elements of arrays (M,)."""
        batch, owners, lengths, begins = self._batch, *map(chosen, (self._owners, self.lengths, self._begins))
        offsets, is_last = chosen(self._offsets), chosen(self._is_last)
        fields: dict[str, Any] = {name: getattr(batch, name) for name in PER_STEP}
        if not are_all:
            rows = rows_of(begins, lengths)
            fields = {name: None if column is None else _take(column, rows) for name, column in fields.items()}
        for name in PER_SEGMENT:
            if name not in _OWN_FIELDS:
                column = getattr(batch, name)
                fields[name] = None if column is None else _take(column, owners)
        fields["lengths"] = lengths
        fields["first_steps"] = np.take(batch.first_steps, owners) + offsets
        fields["returns_before"] = chosen(self._returns_before)
        for name in ("terminated", "truncated"):
            fields[name] &= is_last
        cut, continued = np.flatnonzero(~is_last), np.flatnonzero(offsets)
        nexts = (begins + lengths)[cut]  # the step after each fragment that does not end its segment
        fields["last_observations"] = _last_observations(batch, owners, cut, nexts)
        if batch.last_values is not None:
            fields["last_values"] = self._last_values(fields["last_values"], cut, nexts)
        initial_states, last_states = fields["initial_states"], fields["last_states"]
        fields["initial_states"] = _with_states(initial_states, continued, begins[continued], batch.agent_infos)
        fields["last_states"] = _with_states(last_states, cut, nexts, batch.agent_infos)
        return fields

    def _last_values(self, values: np.ndarray, cut: NDArray[np.int64], nexts: NDArray[np.int64]) -> np.ndarray | None:
        """Return the value after each fragment; None if the batch does not know those inside its segments."""
        infos = self._batch.agent_infos
        if self._is_last.all():
            return values
        if "value" not in infos or mask_name("value") in infos:
            return None
        values[cut] = infos["value"][nexts]
        return values


def rows_of(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of segments, one segment behind the other, given where they begin and their lengths."""
    ends = np.cumsum(lengths)
    if len(ends) and ends[-1] == len(ends):  # a step each
        return begins
    rows: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0)
    rows += np.repeat(begins - (ends - lengths), lengths)
    return rows


def _last_observations(
    batch: Any, owners: NDArray[np.int64], cut: NDArray[np.int64], nexts: NDArray[np.int64]
) -> Columns:
    """Return the observations after fragments: the batch's next ones of cut fragments, and else the last of segments.

    Most rows are copied once: all are taken from where most of them are, and the others are put in their place.
    """
    are_cut_mostly = len(cut) > len(owners) // 2
    rows = np.zeros_like(owners)
    rows[cut] = nexts
    whole = np.ones(len(owners), np.bool_)
    whole[cut] = False
    before, found = leaves_of(batch.observations), {}
    for name, last in leaves_of(batch.last_observations).items():
        if are_cut_mostly:
            found[name] = np.take(before[name], rows, axis=0)
            found[name][whole] = last[owners[whole]]
        else:
            found[name] = np.take(last, owners, axis=0)
            found[name][cut] = before[name][nexts]
    return columns_of(found)


def _take(column: Columns, rows: NDArray[np.int64]) -> Columns:
    # Along one axis, `take` copies rows of several numbers about twice as fast as an index does.
    return map_columns(lambda array: np.take(array, rows, axis=0), column)


def _returns_before(batch: Any, counts: NDArray[np.int64], begins: NDArray[np.int64]) -> np.ndarray:
    """Return the sum of raw rewards of each fragment's episode before it, added one by one, as servers add them."""
    rewards = original(batch, "rewards")
    before: np.ndarray = np.repeat(batch.returns_before.astype(np.float64), counts)
    ends = np.cumsum(counts)
    cut = counts > 1
    for low, high in zip((ends - counts)[cut].tolist(), ends[cut].tolist(), strict=True):
        rows = begins[low:high]
        sums = np.add.accumulate(np.concatenate((before[low : low + 1], rewards[rows[0] : rows[-1]])))
        before[low:high] = sums[rows - rows[0]]
    return before


def _with_states(
    states: Mapping[str, np.ndarray],
    replaced: NDArray[np.int64],
    steps: NDArray[np.int64],
    agent_infos: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return recurrent states whose replaced rows are the states before steps, or gaps if no info has them."""
    found = dict(states)
    for name in [name for name in states if not is_mask(name, states)] if len(replaced) else []:
        step_states = agent_infos.get(f"{STEP_STATES}{name}")
        found[name][replaced] = 0 if step_states is None else step_states[steps]
        if step_states is None:
            found.setdefault(mask_name(name), np.ones(len(found[name]), np.bool_))[replaced] = False
    return found


def minibatches(
    batch: Any, size: int, generator: np.random.Generator, num_epochs: int, columns: Mapping[str, Columns]
) -> Iterator[dict[str, Columns]]:
    """Return an iterator over minibatches of steps; see `EpisodeBatch.minibatches`."""
    size, num_epochs = check_count("size", size), check_count("num_epochs", num_epochs)
    generator = check_generator(generator)
    # A function of its own, so that wrong arguments raise at the call and not at the first minibatch.
    return _minibatches(_step_columns(batch, columns), len(batch.rewards), size, generator, num_epochs)


def shuffled(batch: Any, generator: np.random.Generator, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of steps in random order; see `EpisodeBatch.shuffle`."""
    order = check_generator(generator).permutation(len(batch.rewards))
    return _rows(_step_columns(batch, columns), order)


def _step_columns(batch: Any, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of steps of a batch with the caller's own.

    Args:
        batch: the batch.
        columns: (T, …) each, by names that no column of the batch has.

    Raises:
        ValueError: another name or number of rows.
    """
    own = ((name, getattr(batch, name)) for name in PER_STEP)
    found: dict[str, Columns] = {name: column for name, column in own if column is not None}
    for name, column in columns.items():
        if name in found or name in _ADDED:
            raise ValueError(f"{name}: {mismatch('a name that the result does not have', repr(name))}")
        found[name] = map_columns(np.asarray, column)
        for array in leaves_of(found[name]).values():
            if array.ndim < 1 or len(array) != len(batch.rewards):
                raise ValueError(f"{name}: {mismatch(f'{len(batch.rewards)} rows', f'shape {array.shape}')}")
    return found


def _minibatches(
    columns: Mapping[str, Columns], num_steps: int, size: int, generator: np.random.Generator, num_epochs: int
) -> Iterator[dict[str, Columns]]:
    for _ in range(num_epochs):
        order = generator.permutation(num_steps)
        for start in range(0, num_steps, size):
            yield _rows(columns, order[start : start + size])


def _rows(columns: Mapping[str, Columns], steps: np.ndarray) -> dict[str, Columns]:
    """Return some rows of all columns, and their positions."""
    return {
        **{name: map_columns(lambda array: array[steps], column) for name, column in columns.items()},
        "steps": steps,
    }


def sequences(
    batch: Any, length: int, burn_in: int, stride: int | None, columns: Mapping[str, Columns]
) -> dict[str, Columns]:
    """Return sequences of steps; see `EpisodeBatch.sequences`."""
    length, burn_in = check_count("length", length), check_count("burn_in", burn_in, low=0)
    stride = length if stride is None else check_count("stride", stride, high=length)
    columns = _step_columns(batch, columns)
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
