"""Episodes as arrays: flat columns, lengths, and the observation after each last action."""

from __future__ import annotations

import dataclasses
import enum
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.column_checks import check_columns, check_header, check_last_observations
from rollserve._codec.columns import Columns, columns_of, concatenate_infos, leaves_of, map_columns, without_full_masks
from rollserve._codec.initial_states import begun_later

if TYPE_CHECKING:
    import os

    from rollserve.account import Account

__all__ = ["EpisodeBatch", "StepType"]

_STEP_COLUMNS = ("observations", "actions", "rewards", "agent_infos", "env_infos")
_SEGMENT_COLUMNS = ("last_observations", "episode_infos", "initial_states")
_INTEGER_HEADERS = ("lengths", "policy_versions", "episode_indices", "first_steps")
_OPTIONAL_HEADERS = ("env_seeds", "worker_indices")
_HEADERS = (
    "lengths",
    "terminated",
    "truncated",
    "policy_versions",
    "episode_indices",
    "first_steps",
    *_OPTIONAL_HEADERS,
)
_INFOS = ("agent_infos", "env_infos", "episode_infos", "initial_states")

_ZIP_BEGINNING = b"PK\x03\x04"
_UNREADABLE = (EOFError, LookupError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
"""What reading a file raises that is not a saved batch, whatever it is."""


class StepType(enum.IntEnum):
    """A step's place in its episode."""

    FIRST = 0
    """The first of several steps."""
    MID = 1
    """Neither the first nor the last, or the last before a fragment's cut."""
    TERMINAL = 2
    """The last, because a terminal state was reached."""
    TIMEOUT = 3
    """The last, because of a limit; the state was not terminal."""


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """N segments (episodes, or fragments of some) with T steps in all, flattened to columns.

    Rows of one segment stand together, and segments follow each other in the order of the headers. The arrays are
    the caller's: they may be written to. Columns of Dict and Tuple spaces, infos and states are mappings from a leaf's
    name to its array. In infos and states, where a column has gaps, a bool column named with `_` in front tells which
    rows have a value.

    Attributes:
        observations: (T, *O), what the policy saw before each step.
        last_observations: (N, *O), the observation after each segment's last step.
        actions: (T, *A).
        rewards: (T,), floats.
        lengths: (N,), the steps of each segment, int64, at least 1.
        terminated: (N,), bool: the last step reached a terminal state.
        truncated: (N,), bool: a limit cut the episode at the last step. Both may be set; neither is for a fragment that
            was cut before its episode's end.
        agent_infos: each (T, *I), such as `log_prob`.
        env_infos: each (T, *I), the environment's infos of the steps.
        episode_infos: each (N, *I), the environment's infos of the resets.
        policy_versions: (N,), int64, the version that acted; 0 where unknown.
        episode_indices: (N,), int64, the index of the episode; its position where not given.
        first_steps: (N,), int64, how many steps of the episode precede the segment, in earlier calls too; 0 where not
            given.
        env_seeds: (N,), int64, what the environment was reset with, or None.
        worker_indices: (N,), int64, where episodes are bound to workers, or None: those of `obtain_exact_episodes` and
            `obtain_fragments`, and all after an update of agents or environments per worker or per row.
        initial_states: each (N, *H), what a recurrent agent remembered before each segment's first step, by the names
            of its states: where an episode was cut, what the step before left. With the option `return_states`,
            agent_infos `state/NAME` have those of every step.
        account: what the call did, where the batch is the whole result of one.

    Integers of another type become int64.

    Raises:
        ValueError: a column is not an array, or not as long as the others ask for; the message names it.
    """

    observations: Columns
    last_observations: Columns
    actions: Columns
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    agent_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    env_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    episode_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    policy_versions: np.ndarray = None  # type: ignore[assignment]  # filled in below
    episode_indices: np.ndarray = None  # type: ignore[assignment]
    first_steps: np.ndarray = None  # type: ignore[assignment]
    env_seeds: np.ndarray | None = None
    worker_indices: np.ndarray | None = None
    initial_states: Mapping[str, np.ndarray] = field(default_factory=dict)
    account: Account | None = None

    def __post_init__(self) -> None:
        check_header("lengths", self.lengths, "iu", None)
        num_segments = len(self.lengths)
        for name in ("policy_versions", "episode_indices", "first_steps"):
            if getattr(self, name) is None:
                default = np.arange if name == "episode_indices" else np.zeros
                object.__setattr__(self, name, default(num_segments, dtype=np.int64))
        self._check()
        for name in (*_INTEGER_HEADERS, *_OPTIONAL_HEADERS):
            header = getattr(self, name)
            if header is not None:
                object.__setattr__(self, name, _as_int64(name, header))

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        ended = f"{int(self.terminated.sum())} terminated, {int(self.truncated.sum())} truncated"
        whole = (self.first_steps == 0) & (self.terminated | self.truncated)
        return f"EpisodeBatch({len(self)} {'episodes' if whole.all() else 'segments'}, {self.num_steps} steps, {ended})"

    @property
    def num_steps(self) -> int:
        """T, the steps of all segments together."""
        return len(self.rewards)

    @property
    def returns(self) -> np.ndarray:
        """(N,), the sum of each segment's rewards."""
        sums: np.ndarray = np.add.reduceat(self.rewards, self._starts) if len(self) else self.rewards[:0]
        return sums

    @property
    def step_types(self) -> np.ndarray:
        """(T,), uint8, a `StepType` for each step. A step that ends an episode is TERMINAL or TIMEOUT even if it is the
        episode's first; TERMINAL where both flags are set.
        """  # noqa: D205
        types = np.full(self.num_steps, StepType.MID, np.uint8)
        ends = self._starts + self.lengths - 1
        types[self._starts[self.first_steps == 0]] = StepType.FIRST
        types[ends[self.truncated]] = StepType.TIMEOUT
        types[ends[self.terminated]] = StepType.TERMINAL
        return types

    @property
    def next_observations(self) -> Columns:
        """(T, *O), the observation after each step."""
        ends = self._starts + self.lengths - 1
        last = leaves_of(self.last_observations)
        following = {}
        for name, observations in leaves_of(self.observations).items():
            following[name] = np.empty_like(observations)
            following[name][:-1] = observations[1:]
            following[name][ends] = last[name]
        return columns_of(following)

    @property
    def valids(self) -> np.ndarray:
        """(N, longest length), bool: which places of a padded column hold a step."""
        longest = self.lengths.max(initial=0)
        return np.arange(longest) < self.lengths[:, np.newaxis]

    def padded(self, name: str) -> Columns:
        """A column of steps as (N, longest length, *shape), with zeros behind each segment's end.

        Args:
            name: `observations`, `next_observations`, `actions`, `rewards`, `step_types`, `agent_infos` or `env_infos`.

        Raises:
            ValueError: there is no column of steps with that name.
        """
        known = (*_STEP_COLUMNS, "next_observations", "step_types")
        if name not in known:
            raise ValueError(f"column {name!r} came, one of {', '.join(known)} was expected")
        valids = self.valids

        def pad(array: np.ndarray) -> np.ndarray:
            padded = np.zeros((*valids.shape, *array.shape[1:]), array.dtype)
            padded[valids] = array
            return padded

        return map_columns(pad, getattr(self, name))

    def split(self) -> list[EpisodeBatch]:
        """Each segment as a batch of its own, whose arrays are views of this one's."""
        return [
            EpisodeBatch(**self._columns(slice(start, start + length), slice(position, position + 1)))
            for position, (start, length) in enumerate(zip(self._starts, self.lengths, strict=True))
        ]

    @classmethod
    def concatenate(cls, *batches: EpisodeBatch) -> EpisodeBatch:
        """The segments of all batches, in their order, copied into new arrays.

        Infos that a batch lacks become gaps. Seeds and worker indices are None where a batch has none; so is the
        account.

        Raises:
            ValueError: there are no batches, or columns do not match; the message names the column.
        """
        if not batches:
            raise ValueError("no batches came, at least one was expected")
        columns: dict[str, Any] = {}
        for name in (*_STEP_COLUMNS, *_SEGMENT_COLUMNS, *_HEADERS):
            parts = [getattr(batch, name) for batch in batches]
            try:
                columns[name] = _concatenate(name, parts, batches)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return cls(**columns)

    def joined(self) -> EpisodeBatch:
        """The batch with neighbouring segments of one episode made into one.

        Two segments are joined where the second has the same episode index and policy version, begins at the step
        that the first stopped before, and the first did not end the episode.
        """
        goes_on = (
            (self.episode_indices[1:] == self.episode_indices[:-1])
            & (self.policy_versions[1:] == self.policy_versions[:-1])
            & (self.first_steps[1:] == self.first_steps[:-1] + self.lengths[:-1])
            & ~(self.terminated | self.truncated)[:-1]
        )
        if not goes_on.any():
            return self
        begins = np.flatnonzero(np.append(True, ~goes_on))
        ends = np.append(begins[1:], len(self)) - 1
        replaced: dict[str, Any] = {name: getattr(self, name) for name in _HEADERS}
        for name, header in replaced.items():
            at = ends if name in ("terminated", "truncated") else begins
            replaced[name] = None if header is None else header[at]
        replaced["lengths"] = np.add.reduceat(self.lengths, begins)
        replaced["last_observations"] = map_columns(lambda array: array[ends], self.last_observations)
        for group in ("episode_infos", "initial_states"):
            # What was a gap may have gone into the segment before it.
            infos = {name: array[begins] for name, array in getattr(self, group).items()}
            replaced[group] = without_full_masks(infos)
        return dataclasses.replace(self, **replaced)

    def without_first_steps(self, num_steps: int) -> EpisodeBatch:
        """The batch from a step on; a segment that is cut so begins at a later step of its episode.

        What the agent remembered before that is a gap, unless the agent_infos tell it.

        Raises:
            ValueError: there are fewer steps.
        """
        if not 0 <= num_steps <= self.num_steps:
            raise ValueError(f"{num_steps} came, a number from 0 to {self.num_steps} was expected")
        ends = np.cumsum(self.lengths)
        num_dropped = int(np.searchsorted(ends, num_steps, side="right"))
        columns = self._columns(slice(num_steps, None), slice(num_dropped, None))
        cut = num_steps - (int(ends[num_dropped - 1]) if num_dropped else 0)
        if cut:
            columns["lengths"], columns["first_steps"] = columns["lengths"].copy(), columns["first_steps"].copy()
            columns["lengths"][0] -= cut
            columns["first_steps"][0] += cut
            columns["initial_states"] = begun_later(columns["initial_states"], columns["agent_infos"])
        return EpisodeBatch(**columns)

    def to_list(self) -> list[dict[str, Any]]:
        """Each segment as a dict of its columns: arrays of steps, and the values of its headers."""
        rows = []
        for batch in self.split():
            row: dict[str, Any] = {name: getattr(batch, name) for name in _STEP_COLUMNS}
            for name in _SEGMENT_COLUMNS:
                row[name] = map_columns(lambda array: array[0], getattr(batch, name))
            for name in _HEADERS:
                header = getattr(batch, name)
                row[name] = None if header is None else header[0].item()
            rows.append(row)
        return rows

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> EpisodeBatch:
        """The inverse of `to_list`. Of the headers, only `terminated` and `truncated` must be there.

        Raises:
            ValueError: there are no rows, one has an unknown column or lacks one, or columns do not match.
        """
        batches = []
        for position, row in enumerate(rows):
            unknown = row.keys() - {*_STEP_COLUMNS, *_SEGMENT_COLUMNS, *_HEADERS}
            required = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated")
            missing = set(required) - row.keys()
            if unknown or missing:
                names = ", ".join(sorted(unknown or missing))
                raise ValueError(f"row {position}: {'unknown' if unknown else 'missing'} columns: {names}")
            columns = {name: row[name] for name in _STEP_COLUMNS if name in row}
            for name in _SEGMENT_COLUMNS:
                columns[name] = map_columns(lambda array: np.asarray(array)[np.newaxis], row.get(name, {}))
            for name in _HEADERS:
                columns[name] = None if row.get(name) is None else np.array([row[name]])
            columns["lengths"] = np.array([len(row["rewards"])])
            columns["episode_indices"] = np.array([row.get("episode_indices", position)])
            batches.append(cls(**columns))
        return cls.concatenate(*batches)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the columns to a file that `load` and `numpy.load` read; nothing in it is pickled. Not the account.

        The file has just the name that is given: no ending is added.
        """
        arrays: dict[str, np.ndarray] = {}
        for name in (*_STEP_COLUMNS, *_SEGMENT_COLUMNS, *_HEADERS):
            columns = getattr(self, name)
            if isinstance(columns, Mapping):
                arrays |= {f"{name}/{leaf}": array for leaf, array in columns.items()}
            elif columns is not None:
                arrays[name] = columns
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # a column cannot be named like its option

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EpisodeBatch:
        """Reads what `save` wrote.

        Raises:
            ValueError: the file is not such a file; the message says why.
        """
        with open(path, "rb") as file:
            try:
                return cls(**_read_columns(file))
            except _UNREADABLE as error:
                raise ValueError(f"{path}: not a saved batch: {error}") from None

    @property
    def _starts(self) -> np.ndarray:
        """(N,), the row of each segment's first step."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def _columns(self, steps: slice, segments: slice) -> dict[str, Any]:
        """All columns' rows of some steps, which are those of some segments, as views."""
        columns: dict[str, Any] = {}
        for name in _STEP_COLUMNS:
            columns[name] = map_columns(lambda array: array[steps], getattr(self, name))
        for name in (*_SEGMENT_COLUMNS, *_HEADERS):
            header = getattr(self, name)
            columns[name] = None if header is None else map_columns(lambda array: array[segments], header)
        return columns

    def _check(self) -> None:
        num_segments = len(self.lengths)
        if num_segments and self.lengths.min() < 1:
            raise ValueError(f"lengths: {self.lengths.min()} came, at least 1 was expected")
        check_header("rewards", self.rewards, "fiu", None)
        num_steps = int(self.lengths.sum())
        if num_steps != len(self.rewards):
            raise ValueError(f"lengths: they sum to {num_steps}, but rewards has {len(self.rewards)} rows")
        for name in ("terminated", "truncated"):
            check_header(name, getattr(self, name), "b", num_segments)
        for name in ("policy_versions", "episode_indices", "first_steps", *_OPTIONAL_HEADERS):
            header = getattr(self, name)
            if header is not None or name not in _OPTIONAL_HEADERS:
                check_header(name, header, "iu", num_segments)
        for name in _STEP_COLUMNS:
            check_columns(name, getattr(self, name), num_steps)
        for name in _SEGMENT_COLUMNS:
            check_columns(name, getattr(self, name), num_segments)
        for name in _INFOS:
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name}: {type(getattr(self, name)).__name__} came, a mapping was expected")
        check_last_observations(self.observations, self.last_observations)


def _read_columns(file: IO[bytes]) -> dict[str, Any]:
    """The columns in a file, or one of many errors that numpy has for files that are something else."""
    beginning = file.read(len(_ZIP_BEGINNING))
    file.seek(0)
    if beginning != _ZIP_BEGINNING:  # else numpy takes it for a pickle
        raise ValueError("it does not begin as a .npz file does")
    columns: dict[str, Any] = {name: {} for name in _INFOS}
    with np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            column, slash, leaf = name.partition("/")
            if slash:
                columns.setdefault(column, {})[leaf] = arrays[name]
            else:
                columns[column] = arrays[name]
    return columns


def _as_int64(name: str, header: np.ndarray) -> np.ndarray:
    """The integers as int64, or ValueError if one is larger."""
    if header.dtype == np.int64:
        return header
    most = np.iinfo(np.int64).max
    if header.dtype == np.uint64 and header.max(initial=0) > most:
        raise ValueError(f"{name}: {header.max()} came, at most {most} was expected")
    return header.astype(np.int64, copy=False)


def _concatenate(name: str, parts: Sequence[Any], batches: Sequence[EpisodeBatch]) -> Any:
    """One column of several batches, joined."""
    if name in _INFOS:
        of_segments = name in _SEGMENT_COLUMNS
        lengths = [len(batch) if of_segments else batch.num_steps for batch in batches]
        return concatenate_infos(parts, lengths)
    if any(part is None for part in parts):
        return None
    leaves = [leaves_of(part) for part in parts]
    for part in leaves:
        if part.keys() != leaves[0].keys():
            raise ValueError(f"leaves {sorted(part)} came, {sorted(leaves[0])} were expected")
    return columns_of({leaf: np.concatenate([part[leaf] for part in leaves]) for leaf in leaves[0]})
