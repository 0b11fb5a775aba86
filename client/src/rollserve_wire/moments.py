"""Running moments of observations and returns: count, mean and variance, merged from calls, servers and arrays.

The moments of n rows of K numbers are one row of 1 + 2 K float64: n, the K means, and the K sums of squared deviations
from the mean (M2). They are merged by the formulas of Chan, Golub and LeVeque (Updating formulae and a pairwise
algorithm for computing sample variances, 1979), extended to any number of parts:

  n = sum of n[i];  mean = sum of n[i] mean[i] / n;  M2 = sum of M2[i] + sum of n[i] (mean[i] - mean)^2

Each segment is computed by itself, in parts that its length determines; segments are then merged in groups of a size
that K determines, and the groups one after the other. So the bits depend on the segments and their order, and on
nothing else, such as how segments came in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollserve_wire.checks import check_type
from rollserve_wire.columns import Column, Columns, columns_of, leaves_of, map_columns
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Box, MultiBinary, Space, is_within, named_leaves
from rollserve_wire.tensors import tensor_from_proto

if TYPE_CHECKING:
    from rollserve_wire.v1 import episode_batch_pb2, sampler_service_pb2

__all__ = [
    "MEAN",
    "VARIANCE",
    "OrderedMoments",
    "PolicyMoments",
    "RunningMoments",
    "moments_of",
    "policy_moments_of",
    "segment_moments",
]


MEAN, VARIANCE = "observation/mean", "observation/variance"
"""Names of the parameters that normalize observations."""
_COUNT, _MEAN, _M2 = "count", "mean", "m2"


class RunningMoments:
    """Count, mean and variance, per element, of all that was added, in float64.

    The account of a call has such moments of the delivered observations or returns, with `observation_moments` or
    `return_discount`. Moments of other calls, samplers and servers are merged by Chan's formula, and so are arrays. The
    same parts in the same order give the same bits.

    >>> moments = rollserve.RunningMoments()  # doctest: +SKIP
    >>> batch = sampler.obtain_samples(2048, observation_moments=True)  # doctest: +SKIP
    >>> moments.merge(batch.account.observation_moments)  # doctest: +SKIP
    >>> sampler.update_agent(parameters, observation_moments=moments)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        """Start without anything; what is added first determines names and shapes."""
        # By the name of the leaf: the shape, and the moments as one row, (1 + 2 K,).
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._moments: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.count} rows>"

    def __eq__(self, other: object) -> bool:
        """Whether counts, means and M2 are equal, to the last bit of each number."""
        if not isinstance(other, RunningMoments):
            return NotImplemented
        return self._shapes == other._shapes and all(
            np.array_equal(row, other._moments[name], equal_nan=True) for name, row in self._moments.items()
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def count(self) -> int:
        """Number of rows that were added: of steps."""
        return int(max((row[0] for row in self._moments.values()), default=0))

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the leaves; the empty name for the only leaf, nothing before anything was added."""
        return tuple(self._shapes)

    @property
    def mean(self) -> Column:
        """Mean of each element, (*O) float64, of each leaf.

        Raises:
            ValueError: nothing was added.
        """
        return self._columns(lambda row, size: row[1 : 1 + size])

    @property
    def m2(self) -> Column:
        """Sum of squared deviations from the mean of each element, (*O) float64, of each leaf; raises as `mean`."""
        return self._columns(lambda row, size: row[1 + size :])

    @property
    def variance(self) -> Column:
        """Variance of each element, M2 divided by the count, (*O) float64, of each leaf; raises as `mean`."""
        return self._columns(lambda row, size: row[1 + size :] / row[0])

    def add(self, values: Columns) -> None:
        """Add rows of numbers: an array (T, *O), or an array for each leaf.

        Raises:
            ValueError: leaves, shapes or dtypes that do not fit, or different numbers of rows.
        """
        leaves = {name: np.asarray(array) for name, array in leaves_of(values).items()}
        for name, array in leaves.items():
            if array.ndim < 1 or array.dtype.kind not in "biuf":
                expected = "rows of numbers"
                raise ValueError(f"{_field('values', name)}: {mismatch(expected, f'{array.dtype}{array.shape}')}")
        num_rows = {len(array) for array in leaves.values()}
        if len(num_rows) != 1:
            raise ValueError(f"values: {mismatch('leaves with as many rows each', sorted(num_rows))}")
        if num_rows != {0}:
            self.merge(RunningMoments.of_segments(leaves, np.array(list(num_rows))))

    def merge(self, other: RunningMoments) -> None:
        """Merge other moments, which come after the present ones; `other` stays as it is.

        Raises:
            TypeError: no moments.
            ValueError: moments of other leaves or shapes.
        """
        check_type(
            "other", other, RunningMoments, "moments, as of calls with `observation_moments` or `return_discount`"
        )
        if not other.count:
            return
        if not self.count:
            self._shapes, self._moments = dict(other._shapes), dict(other._moments)
            return
        if other._shapes != self._shapes:
            raise ValueError(f"other: {mismatch(f'leaves of shapes {self._shapes}', other._shapes)}")
        self._moments = {
            name: _merged_moments(np.stack([row, other._moments[name]])) for name, row in self._moments.items()
        }

    def normalized(
        self,
        values: Columns,
        *,
        epsilon: float = 1e-8,
        clip: float = 10.0,
        observation_space: Space | None = None,
    ) -> Column:
        """Return (values - mean) / √(variance + epsilon), clipped to ±clip, as float32: as an agent's normalization.

        Before anything was added, the mean is 0 and the variance 1, as of a new agent.

        Args:
            values: rows (T, *O), or rows for each leaf. Leaves without moments stay as they are.
            epsilon: number that is added to the variance.
            clip: bound of the result.
            observation_space: space of the observations, which tells the leaves without moments before anything was
                added; without it, all leaves then count as numbers.

        Raises:
            ValueError: rows of another shape, or leaves that the space lacks.
        """
        means = leaves_of(self.mean) if self.count else {}
        variances = leaves_of(self.variance) if self.count else {}
        plain = set() if observation_space is None else set(_leaves_without_moments(observation_space, values))

        def normalize(name: str, array: np.ndarray) -> np.ndarray:
            if name in plain or (self.count and name not in means):
                return array
            if self.count and array.shape[1:] != self._shapes[name]:
                expected = f"rows of shape {self._shapes[name]}"
                raise ValueError(f"{_field('values', name)}: {mismatch(expected, array.shape[1:])}")
            normal = (array - means.get(name, 0.0)) / np.sqrt(variances.get(name, 1.0) + epsilon)
            return np.clip(normal, -clip, clip).astype(np.float32)

        return columns_of({name: normalize(name, np.asarray(array)) for name, array in leaves_of(values).items()})

    def parameters(
        self, observation_space: Space | None = None, *, without: str | None = None
    ) -> dict[str, np.ndarray]:
        """Return the parameters `observation/mean` and `observation/variance` of an agent that normalizes.

        Args:
            observation_space: space of the observations, which is needed if it has Discrete or MultiDiscrete leaves:
                these have no moments, and their one-hot elements get mean 0 and variance 1, which change nothing.
            without: name of a leaf, or of a Dict or Tuple of leaves, that the agent does not get as observations: its
                action mask.

        Returns:
            float64 arrays of the flat size of an observation.

        Raises:
            ValueError: nothing was added, or the moments are not of that space.
        """
        means, variances = leaves_of(self.mean), leaves_of(self.variance)
        if observation_space is None:
            sizes = {name: array.size for name, array in means.items()}
        else:
            sizes = {name: leaf.flat_size for name, leaf in named_leaves(observation_space).items()}
            numeric = {name: array.size for name, array in means.items()}
            if any(sizes.get(name) != size for name, size in numeric.items()):
                raise ValueError(f"observation_space: {mismatch(f'leaves of sizes {numeric}', sizes)}")
        if without is not None:
            sizes = {name: size for name, size in sizes.items() if not is_within(name, without)}
        mean = [np.ravel(means.get(name, np.zeros(size))) for name, size in sizes.items()]
        variance = [np.ravel(variances.get(name, np.ones(size))) for name, size in sizes.items()]
        return {MEAN: np.concatenate(mean), VARIANCE: np.concatenate(variance)}

    def state(self) -> dict[str, np.ndarray]:
        """Return everything as arrays, such as for `numpy.savez`; `from_state` is the inverse.

        Returns:
            `count/NAME`, `mean/NAME` and `m2/NAME` for each leaf.
        """
        state: dict[str, np.ndarray] = {}
        for name, row in self._moments.items():
            shape = self._shapes[name]
            count, mean, m2 = row[0], *np.split(row[1:], 2)
            arrays = {_COUNT: np.array(count), _MEAN: mean.reshape(shape), _M2: m2.reshape(shape)}
            state |= {f"{kind}/{name}": array.copy() for kind, array in arrays.items()}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Self:
        """Return the moments that `state` described.

        Raises:
            TypeError: no mapping.
            ValueError: arrays that are missing, do not fit together, or are no moments, such as a negative M2.
        """
        check_type("state", state, Mapping, "a mapping from names to arrays")
        names = [name.removeprefix(f"{_COUNT}/") for name in state if name.startswith(f"{_COUNT}/")]
        expected = sorted(f"{kind}/{name}" for kind in (_COUNT, _MEAN, _M2) for name in names)
        if sorted(state) != expected:
            raise ValueError(f"state: {mismatch('count, mean and m2 of each leaf', sorted(state))}")
        return cls.from_leaves(
            {name: (state[f"{_COUNT}/{name}"], state[f"{_MEAN}/{name}"], state[f"{_M2}/{name}"]) for name in names}
        )

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, tuple[Any, Any, Any]]) -> Self:
        """Return moments for the count, the mean and M2 of each leaf; the empty name stands for the only leaf.

        Raises:
            ValueError: shapes that differ, a negative M2, or a count that is no integer of at least 0.
        """
        moments = cls()
        for name, (count, mean, m2) in leaves.items():
            count, mean, m2 = (np.asarray(part, np.float64) for part in (count, mean, m2))
            if count.shape != () or not count >= 0 or count % 1:
                raise ValueError(f"{_field('count', name)}: {mismatch('an integer of at least 0', count)}")
            if mean.shape != m2.shape:
                raise ValueError(f"{_field('m2', name)}: {mismatch(f'the shape of the mean, {mean.shape}', m2.shape)}")
            if (m2 < 0).any():
                raise ValueError(f"{_field('m2', name)}: {mismatch('at least 0', m2.min())}")
            moments._shapes[name] = mean.shape
            moments._moments[name] = np.concatenate([count.reshape(1), mean.ravel(), m2.ravel()])
        return moments

    @classmethod
    def of_segments(cls, columns: Columns, lengths: Sequence[int] | np.ndarray) -> Self:
        """Return the moments of all rows of a batch's columns, bit for bit as the server computes them for an account.

        >>> RunningMoments.of_segments(batch.observations, batch.lengths)  # doctest: +SKIP

        Args:
            columns: rows (T, *O), or rows for each leaf.
            lengths: (N,), number of rows of each segment, at least 1: of whole episodes, or of the fragments of a call.
        """
        moments = cls()
        ends = np.cumsum(lengths)
        for name, array in leaves_of(columns).items():
            shape = array.shape[1:]
            size = int(np.prod(shape, dtype=np.int64))
            ordered = OrderedMoments(size)
            ordered.add(segment_moments([[part] for part in np.split(array, ends[:-1])], size))
            moments._shapes[name], moments._moments[name] = shape, ordered.total()
        return moments

    def _columns(self, part_of: Callable[[np.ndarray, int], np.ndarray]) -> Columns:
        """Return a part of the moments of each leaf, as columns."""
        if not self.count:
            raise ValueError(f"moments: {mismatch('moments of at least one row', 'none')}")
        leaves = {name: part_of(row, len(row) // 2).reshape(self._shapes[name]) for name, row in self._moments.items()}
        return map_columns(np.copy, columns_of(leaves))


@briefly
@dataclass(frozen=True)
class PolicyMoments:
    """Moments of a policy's part in a call, in an environment with many agents.

    Attributes:
        observations: moments of the observations of the agents that the policy acted for; None without the option
            `observation_moments`, and where these have no Box or MultiBinary leaves.
        returns: moments of the discounted returns after each step of these agents' lives; None without the option
            `return_discount`.
    """

    observations: RunningMoments | Any
    returns: RunningMoments | Any


def policy_moments_of(
    message: episode_batch_pb2.Account | sampler_service_pb2.StreamRound,
) -> dict[str, PolicyMoments]:
    """Return the moments of each policy that an account or a round has; raises as `moments_of`."""
    return {each.policy: PolicyMoments(*moments_of(each)) for each in message.policy_moments}


def moments_of(
    message: episode_batch_pb2.Account | sampler_service_pb2.StreamRound | episode_batch_pb2.PolicyMoments,
) -> tuple[RunningMoments | None, RunningMoments | None]:
    """Return the moments of observations and of returns that an account or a round has; None where it has none.

    Raises:
        ValueError: a malformed tensor, or shapes that differ.
    """
    observations = {each.name: each.moments for each in message.observation_moments}
    returns = {"": message.return_moments} if message.HasField("return_moments") else {}
    return _from_protos(observations) if observations else None, _from_protos(returns) if returns else None


def _from_protos(leaves: Mapping[str, episode_batch_pb2.Moments]) -> RunningMoments:
    return RunningMoments.from_leaves(
        {
            name: (moments.count, tensor_from_proto(moments.mean), tensor_from_proto(moments.m2))
            for name, moments in leaves.items()
        }
    )


def _leaves_without_moments(space: Space, values: Columns) -> Iterator[str]:
    """Return the names of the leaves that have no moments: of other spaces than Box and MultiBinary."""
    found = named_leaves(space)
    if missing := sorted(set(leaves_of(values)) - set(found)):
        raise ValueError(
            f"observation_space: {mismatch(f'leaves {sorted(leaves_of(values))}', f'none named {missing}')}"
        )
    return (name for name, leaf in found.items() if not isinstance(leaf, Box | MultiBinary))


def _field(field: str, name: str) -> str:
    return f"{field}[{name!r}]" if name else field


_PART_ELEMENTS = 1 << 19
"""Elements that are converted to float64 at a time, 4 MiB, if a row has fewer."""
_GROUP_ELEMENTS = 1 << 19
"""Elements of the moments that are merged at a time."""
_MAX_GROUP = 1024


class OrderedMoments:
    """Moments merged in the order in which they are added, in groups of a fixed size."""

    def __init__(self, size: int) -> None:
        """Start without moments.

        Args:
            size: K.
        """
        self._group = np.empty((min(max(_GROUP_ELEMENTS // (1 + 2 * size), 1), _MAX_GROUP), 1 + 2 * size))
        self._num_waiting = 0
        self._total = np.zeros(1 + 2 * size)

    def add(self, rows: np.ndarray) -> None:
        """Add moments, (N, 1 + 2 K), which follow those before."""
        while len(rows):
            taken = rows[: len(self._group) - self._num_waiting]
            self._group[self._num_waiting : self._num_waiting + len(taken)] = taken
            self._num_waiting += len(taken)
            rows = rows[len(taken) :]
            if self._num_waiting == len(self._group):
                self._total, self._num_waiting = self.total(), 0

    def total(self) -> np.ndarray:
        """Return the moments of all that was added, (1 + 2 K,); zeros if nothing was."""
        if not self._num_waiting:
            return self._total
        group = _merged_moments(self._group[: self._num_waiting])
        return _merged_moments(np.stack([self._total, group])) if self._total[0] else group


@np.errstate(all="ignore")  # of numbers that are not finite
def _merged_moments(rows: np.ndarray) -> np.ndarray:
    """Return the moments of all parts together, (1 + 2 K,).

    Args:
        rows: (N, 1 + 2 K), the moments of at least one part, each of at least one row.
    """
    size = rows.shape[1] // 2
    counts, means, squares = rows[:, :1], rows[:, 1 : 1 + size], rows[:, 1 + size :]
    count = counts.sum()
    # Differences from the first mean, so that the mean of equal means is the same, to the last bit.
    mean = means[0] + (counts / count * (means - means[0])).sum(axis=0)
    deviations = means - mean
    return np.concatenate([[count], mean, squares.sum(axis=0) + (counts * deviations * deviations).sum(axis=0)])


def segment_moments(segments: Sequence[Sequence[np.ndarray]], size: int) -> np.ndarray:
    """Return the moments of each segment, (N, 1 + 2 K).

    Args:
        segments: for each segment, arrays (rows, *shape) that follow each other, with at least one row in all.
        size: K, the product of the shape.
    """
    max_rows = max(_PART_ELEMENTS // max(size, 1), 1)
    moments = np.empty((len(segments), 1 + 2 * size))
    begin = num_rows = 0
    lengths = [sum(map(len, arrays)) for arrays in segments]
    for number, length in enumerate(lengths):
        if num_rows and num_rows + length > max_rows:
            moments[begin:number] = _moments(segments[begin:number], lengths[begin:number], size)
            begin, num_rows = number, 0
        if length > max_rows:
            moments[number] = _of_parts(segments[number], max_rows, size)
            begin = number + 1
        else:
            num_rows += length
    if num_rows:
        moments[begin:] = _moments(segments[begin:], lengths[begin:], size)
    return moments


def _of_parts(arrays: Sequence[np.ndarray], max_rows: int, size: int) -> np.ndarray:
    """Return the moments of a long segment, part by part."""
    moments = OrderedMoments(size)
    for part in _parts(arrays, max_rows):
        moments.add(_moments([part], [sum(map(len, part))], size))
    return moments.total()


def _parts(arrays: Sequence[np.ndarray], max_rows: int) -> Iterator[list[np.ndarray]]:
    """Yield the rows in parts of `max_rows`, the last one of fewer."""
    part: list[np.ndarray] = []
    room = max_rows
    for array in arrays:
        start = 0
        while start < len(array):
            piece = array[start : start + room]
            part.append(piece)
            start, room = start + len(piece), room - len(piece)
            if not room:
                yield part
                part, room = [], max_rows
    if part:
        yield part


@np.errstate(all="ignore")  # of numbers that are not finite
def _moments(segments: Sequence[Sequence[np.ndarray]], lengths: Sequence[int], size: int) -> np.ndarray:
    """Return the moments of short segments, (N, 1 + 2 K); each sum runs over the rows of one segment in order."""
    arrays = [array.reshape(len(array), size) for arrays in segments for array in arrays]
    values = np.concatenate(arrays, dtype=np.float64, casting="same_kind")
    counts = np.array(lengths)
    starts = np.cumsum(counts) - counts
    # Without the first row of each segment, so that columns that do not change have exactly this mean, and M2 0.
    firsts = values[starts]
    values -= np.repeat(firsts, counts, axis=0)
    means = np.add.reduceat(values, starts, axis=0) / counts[:, np.newaxis]
    values -= np.repeat(means, counts, axis=0)
    np.multiply(values, values, out=values)
    squares = np.add.reduceat(values, starts, axis=0)
    return np.concatenate([counts[:, np.newaxis], firsts + means, squares], axis=1)
