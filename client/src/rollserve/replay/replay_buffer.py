"""Replay buffer: the newest steps of all batches, to draw transitions from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.episode_batch import EpisodeBatch
from rollserve.learning.arguments import check_count, check_fraction, check_generator, checked_values
from rollserve.learning.transitions import Transitions, check_discount
from rollserve.replay.observations import ObservationColumn, num_stacked_frames, same_rows
from rollserve_wire.columns import columns_of, leaves_of, mask_name
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["ReplayBuffer", "SumTree"]

_MAX_PRIORITY = 1e100
_Key = tuple[int, int, int | None]


class ReplayBuffer:
    """The newest steps of the batches that were added, up to a capacity, to draw transitions from.

    A step that is drawn has its true next observation, also at the end of an episode or fragment. A fragment that goes
    on in a later batch, with the observation that the earlier one ended with, is joined to it, so that transitions of
    several steps run across.

    Each observation is kept once, as what follows one step and precedes the next. Of observations that are stacks of K
    frames, (K, *F) of at least 1 KiB, each frame is kept once: Atari's stacks of four take a quarter of their bytes.
    Whether an observation is a stack is seen by the first batch. What is drawn has the same bytes as what was added.

    Steps are drawn with replacement: with equal probabilities, or with a priority exponent in proportion to
    priority^exponent (Schaul et al.: Prioritized experience replay, ICLR 2016). A buffer serves one thread at a time,
    and can be pickled.

    >>> buffer = rollserve.ReplayBuffer(1_000_000)  # doctest: +SKIP
    >>> buffer.add(sampler.obtain_fragments(1_000))  # doctest: +SKIP
    >>> found = buffer.sample(256, generator, n=3, gamma=0.99)  # doctest: +SKIP

    Args:
        capacity: number of steps that the buffer holds. A newer step replaces the oldest one. Memory is taken as steps
            arrive; each step has K references of 8 bytes to frames before it and as many after it.
        priority_exponent: alpha, from 0 to 1, of prioritized replay; None for equal probabilities.
        agent_infos: names of infos of the agent to keep, such as `log_prob`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a number out of range.
    """

    def __init__(
        self, capacity: int, *, priority_exponent: float | None = None, agent_infos: Sequence[str] = ()
    ) -> None:
        self._capacity = check_count("capacity", capacity)
        if isinstance(agent_infos, str):
            raise TypeError(f"agent_infos: {mismatch('a sequence of names', 'str')}")
        self._info_names = tuple(agent_infos)
        self._tree, self._alpha = None, 0.0
        if priority_exponent is not None:
            self._tree, self._alpha = SumTree(self._capacity), check_fraction("priority_exponent", priority_exponent)
        self._max_priority = 1.0
        self._num_added = 0  # the number of the next step; its slot is the number modulo the capacity
        self._columns: dict[tuple[str, str], np.ndarray] = {}
        self._observations: dict[str, ObservationColumn] = {}
        self._terminated, self._truncated = np.zeros((2, self._capacity), np.bool_)
        # Number of the next step of the same episode; -1 where it is not in the buffer.
        self._successors = np.full(self._capacity, -1)
        self._open = _OpenSegments()

    def __len__(self) -> int:
        """Return the number of steps in the buffer."""
        return min(self._num_added, self._capacity)

    def __repr__(self) -> str:
        return f"ReplayBuffer({len(self)} of {self._capacity} steps, {self.nbytes} bytes)"

    @property
    def capacity(self) -> int:
        """Number of steps that the buffer holds."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the buffer. The system provides their memory as it is written."""
        arrays = (*self._columns.values(), self._terminated, self._truncated, self._successors)
        observations = sum(column.nbytes for column in self._observations.values())
        return sum(array.nbytes for array in arrays) + observations + (0 if self._tree is None else self._tree.nbytes)

    def add(self, batch: EpisodeBatch) -> None:
        """Add the steps of a batch, in its order, and drop the oldest ones beyond the capacity.

        With a priority exponent, new steps have the highest priority that any step has had.

        Raises:
            ValueError: columns with other names, dtypes or shapes than in the first batch, or infos to keep that are
                missing or have gaps. The buffer is unchanged.
        """
        columns = self._checked_columns(batch)
        if batch.num_steps > self._capacity:
            batch = batch.without_first_steps(batch.num_steps - self._capacity)
            columns = self._checked_columns(batch)
        if not batch.num_steps:
            return
        batch = batch.joined()
        if not self._columns:
            self._begin(batch, columns)
        first, num_steps = self._num_added, batch.num_steps
        steps, starts = first + np.arange(num_steps), np.cumsum(batch.lengths) - batch.lengths
        slots, ends = steps % self._capacity, starts + batch.lengths - 1
        oldest = max(0, first + num_steps - self._capacity)
        self._drop(oldest)
        predecessors = self._predecessors(batch, starts, oldest)
        self._add_observations(batch, first, predecessors)
        for key, array in columns.items():
            self._columns[key][slots] = array
        for flags, values in ((self._terminated, batch.terminated), (self._truncated, batch.truncated)):
            flags[slots] = False
            flags[slots[ends]] = values
        self._successors[slots] = steps + 1
        self._successors[slots[ends]] = -1
        continued = predecessors >= 0
        self._successors[predecessors[continued] % self._capacity] = steps[starts[continued]]
        if self._tree is not None:
            self._tree[slots] = self._max_priority**self._alpha
        self._open.add(batch, steps[ends], oldest)
        self._num_added += num_steps

    def sample(
        self,
        size: int,
        generator: np.random.Generator,
        *,
        n: int = 1,
        gamma: float | None = None,
        weight_exponent: float = 1.0,
    ) -> Transitions:
        """Draw transitions, in new arrays.

        With a priority exponent, the priorities are cut into `size` equal ranges, and one transition is drawn from
        each. Its weight is (len(buffer) times its probability)^-weight_exponent, divided by the largest weight drawn.

        Args:
            size: number of transitions.
            generator: draws them.
            n: number of steps of a transition. It has fewer where its episode ends, or the buffer lacks the next step.
            gamma: the discount of the rewards, from 0 to 1; not needed for one step.
            weight_exponent: beta, from 0 to 1; 1 corrects the bias of priorities, and 0 does not.

        Returns:
            Transitions, whose `indices` are what `update_priorities` takes.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, no discount for several steps, or an empty buffer.
        """
        size, generator = check_count("size", size), check_generator(generator)
        n, gamma = check_discount(n, gamma)
        weight_exponent = check_fraction("weight_exponent", weight_exponent)
        if not len(self):
            raise ValueError(f"buffer: {mismatch('at least one step', 'none')}")
        oldest = self._num_added - len(self)
        weights = np.ones(size, np.float32)
        if self._tree is None:
            steps = generator.integers(oldest, self._num_added, size)
        else:
            places = (np.arange(size) + generator.random(size)) * (self._tree.total / size)
            slots = self._tree.find(places)
            steps = oldest + (slots - oldest) % self._capacity
            raw = (self._tree[slots] * (len(self) / self._tree.total)) ** -weight_exponent
            weights = (raw / raw.max()).astype(np.float32)
        return self._transitions(steps, n, gamma, weights)

    def update_priorities(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of steps, such as the absolute errors of their Q-values plus a small number.

        Steps that newer ones have replaced in the meantime are left out. Of an index that occurs several times, the
        last priority counts.

        Args:
            indices: (S,), integers, `indices` of transitions that `sample` returned.
            priorities: (S,), over 0 and at most 1e100.

        Raises:
            ValueError: a buffer without a priority exponent, indices that no step has had, or priorities that are out
                of range. The priorities are unchanged.
        """
        if self._tree is None:
            raise ValueError(f"priority_exponent: {mismatch('a number, for priorities', None)}")
        steps = np.asarray(indices)
        if steps.ndim != 1 or steps.dtype.kind not in "iu":
            raise ValueError(f"indices: {mismatch('integers of shape (S,)', f'{steps.dtype} of shape {steps.shape}')}")
        values = checked_values("priorities", priorities, len(steps)).astype(np.float64)
        if not ((steps >= 0) & (steps < self._num_added)).all():
            raise ValueError(f"indices: {mismatch(f'numbers from 0 to {self._num_added - 1}', 'others')}")
        is_wrong = ~((values > 0) & (values <= _MAX_PRIORITY))
        if is_wrong.any():
            raise ValueError(f"priorities: {mismatch(f'over 0 and at most {_MAX_PRIORITY:g}', values[is_wrong][0])}")
        is_kept = steps >= self._num_added - len(self)
        self._tree[steps[is_kept].astype(np.int64) % self._capacity] = values[is_kept] ** self._alpha
        self._max_priority = max(self._max_priority, values.max(initial=0))

    def _checked_columns(self, batch: EpisodeBatch) -> dict[tuple[str, str], np.ndarray]:
        """Return the columns of steps to keep, beside the observations; raise ValueError if they do not fit."""
        if not isinstance(batch, EpisodeBatch):
            raise TypeError(f"batch: {mismatch('an EpisodeBatch', type(batch).__name__)}")
        for name in self._info_names:
            if name not in batch.agent_infos or mask_name(name) in batch.agent_infos:
                raise ValueError(f"agent_infos[{name!r}]: {mismatch('a value for each step', 'none, or gaps')}")
        infos = {name: batch.agent_infos[name] for name in self._info_names}
        groups: dict[str, Any] = {"actions": batch.actions, "rewards": batch.rewards, "agent_infos": infos}
        found = {
            (group, name): array for group, columns in groups.items() for name, array in leaves_of(columns).items()
        }
        if self._columns:
            _check_like(found, {key: (array.dtype, array.shape[1:]) for key, array in self._columns.items()})
            observations = {("observations", name): array for name, array in leaves_of(batch.observations).items()}
            _check_like(
                observations, {("observations", name): column.kind for name, column in self._observations.items()}
            )
        return found

    def _begin(self, batch: EpisodeBatch, columns: dict[tuple[str, str], np.ndarray]) -> None:
        """Prepare columns for the first batch. The system provides their memory as it is written."""
        last = leaves_of(batch.last_observations)
        for name, array in leaves_of(batch.observations).items():
            num_frames = num_stacked_frames(array, last[name], batch.lengths)
            self._observations[name] = ObservationColumn(self._capacity, array.shape[1:], array.dtype, num_frames)
        self._columns = {
            key: np.zeros((self._capacity, *array.shape[1:]), array.dtype) for key, array in columns.items()
        }

    def _drop(self, oldest: int) -> None:
        """Free the observations of all steps before the oldest one to keep."""
        dropped = np.arange(max(0, self._num_added - self._capacity), min(oldest, self._num_added)) % self._capacity
        for column in self._observations.values():
            column.drop(dropped, oldest)

    def _predecessors(self, batch: EpisodeBatch, starts: NDArray[np.int64], oldest: int) -> NDArray[np.int64]:
        """Return the number of the step that each segment follows, (N,); -1 for none since the oldest one."""
        steps = self._open.find(batch, oldest)
        for name, array in leaves_of(batch.observations).items():
            found = np.flatnonzero(steps >= 0)
            after = self._observations[name].after(steps[found] % self._capacity)
            steps[found[~same_rows(after, array[starts[found]])]] = -1
        return steps

    def _add_observations(self, batch: EpisodeBatch, first: int, predecessors: NDArray[np.int64]) -> None:
        """Add the observations of a batch, whose first step has the number `first`."""
        last = leaves_of(batch.last_observations)
        slots = np.where(predecessors < 0, -1, predecessors % self._capacity)
        for name, array in leaves_of(batch.observations).items():
            self._observations[name].add(array, last[name], batch.lengths, first, slots)

    def _transitions(self, steps: NDArray[np.int64], n: int, gamma: float, weights: np.ndarray) -> Transitions:
        """Return the transitions of n steps that begin with some steps."""
        slots = steps % self._capacity
        rewards_column = self._columns["rewards", ""]
        rewards, last = rewards_column[slots], slots
        lengths = np.ones(len(slots), np.int64)
        if n > 1 and rewards.dtype.kind != "f":
            rewards = rewards.astype(np.float64)
        for distance in range(1, n):
            successors = self._successors[last]
            goes_on = (successors >= 0) & (lengths == distance)
            if not goes_on.any():
                break
            last = np.where(goes_on, successors % self._capacity, last)
            rewards[goes_on] += gamma**distance * rewards_column[last[goes_on]]
            lengths += goes_on
        groups: dict[str, dict[str, np.ndarray]] = {"actions": {}, "agent_infos": {}}
        for (group, name), array in self._columns.items():
            if group in groups:
                groups[group][name] = array[slots]
        return Transitions(
            observations=columns_of({name: column.before(slots) for name, column in self._observations.items()}),
            actions=columns_of(groups["actions"]),
            rewards=rewards,
            next_observations=columns_of({name: column.after(last) for name, column in self._observations.items()}),
            terminated=self._terminated[last],
            truncated=self._truncated[last],
            lengths=lengths,
            agent_infos=groups["agent_infos"],
            indices=steps,
            weights=weights,
        )


def _check_like(
    arrays: dict[tuple[str, str], np.ndarray], kinds: dict[tuple[str, str], tuple[np.dtype, tuple[int, ...]]]
) -> None:
    """Raise ValueError unless arrays have the names, dtypes and row shapes of the columns in the buffer."""
    if arrays.keys() != kinds.keys():
        expected, got = (sorted(map("/".join, keys)) for keys in (kinds, arrays))
        raise ValueError(f"batch: {mismatch(f'columns {expected}, as in the first batch', got)}")
    for key, array in arrays.items():
        if (array.dtype, array.shape[1:]) != kinds[key]:
            dtype, shape = kinds[key]
            text = mismatch(f"{dtype} of shape {shape} for each step", f"{array.dtype} of shape {array.shape[1:]}")
            raise ValueError(f"{'/'.join(filter(None, key))}: {text}")


class _OpenSegments:
    """The last steps of fragments, by where their episodes go on."""

    def __init__(self) -> None:
        self._steps: dict[_Key, int] = {}
        self._limit = 64

    def add(self, batch: EpisodeBatch, steps: NDArray[np.int64], oldest: int) -> None:
        """Remember the segments of a batch whose episodes have not ended.

        Args:
            batch: the batch.
            steps: (N,), number of the last step of each segment.
            oldest: number of the oldest step in the buffer; what was before it is forgotten, now or later.
        """
        for segment in np.flatnonzero(~(batch.terminated | batch.truncated)).tolist():
            self._steps[_key(batch, segment, int(batch.lengths[segment]))] = int(steps[segment])
        if len(self._steps) > self._limit:
            self._steps = {key: step for key, step in self._steps.items() if step >= oldest}
            self._limit = max(64, 2 * len(self._steps))

    def find(self, batch: EpisodeBatch, oldest: int) -> NDArray[np.int64]:
        """Return the number of the step before each segment, and forget it, (N,); -1 for none since the oldest one."""
        found = np.full(len(batch), -1)
        for segment in np.flatnonzero(batch.first_steps > 0).tolist():
            step = self._steps.pop(_key(batch, segment, 0), -1)
            found[segment] = step if step >= oldest else -1
        return found


def _key(batch: EpisodeBatch, segment: int, num_steps: int) -> _Key:
    """Return the episode, and the step of it that is some steps after the beginning of a segment."""
    seed = None if batch.env_seeds is None else int(batch.env_seeds[segment])
    return int(batch.episode_indices[segment]), int(batch.first_steps[segment]) + num_steps, seed


class SumTree:
    """Priorities of leaves under a binary tree of their sums, changed and drawn for many leaves at once.

    A node's sum is always the sum of its two children's, and never updated by differences, so that rounding errors do
    not add up.
    """

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = 1 << (num_leaves - 1).bit_length()
        self._sums = np.zeros(2 * self._num_leaves)  # the root is node 1, the children of node i are 2 i and 2 i + 1

    def __getitem__(self, leaves: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of leaves."""
        return self._sums[leaves + self._num_leaves]

    def __setitem__(self, leaves: NDArray[np.int64], priorities: np.ndarray | float) -> None:
        """Set the priorities of leaves, at least 0; the last one counts for a leaf that occurs several times."""
        nodes = leaves + self._num_leaves
        self._sums[nodes] = priorities
        nodes = np.unique(nodes)
        while len(nodes) and nodes[0] > 1:
            nodes = nodes >> 1
            nodes = nodes[np.append(True, nodes[1:] != nodes[:-1])]
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return self._sums.nbytes

    def find(self, places: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaf at each place, if the leaves' priorities lie one behind the other from 0 to `total`.

        Leaves of priority 0 are never found while `total` is over 0, also if rounding moves a place beyond a sum.
        """
        nodes, rests = np.ones(len(places), np.int64), places
        for _ in range(self._num_leaves.bit_length() - 1):
            left, right = self._sums[2 * nodes], self._sums[2 * nodes + 1]
            goes_right = (rests >= left) & (right > 0)
            rests = np.where(goes_right, rests - left, rests)
            nodes = 2 * nodes + goes_right
        return nodes - self._num_leaves
