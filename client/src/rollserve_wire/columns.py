"""The table of columns of batches, from which messages, checks, joining and files follow, and what holds their arrays.

A column is one array for a plain space, or one array for each leaf of a nested space. An info that some rows lack is 0
in these rows and has a mask beside it: a bool column named like it with `_` in front, as in gymnasium's vector
environments. Texts among the infos of environments are columns of UTF-8 bytes.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "COLUMNS",
    "END_COLUMNS",
    "ENV_INFOS",
    "HEADERS",
    "INFOS",
    "JSON_PREFIX",
    "MANY_COLUMNS",
    "MAX_TEXT_INFO_BYTES",
    "ORIGINALS",
    "PER_SEGMENT",
    "PER_STEP",
    "POLICY_COLUMNS",
    "SEGMENT_COLUMNS",
    "TEXT_PREFIX",
    "ColumnSpec",
    "Columns",
    "Joined",
    "Kind",
    "columns_of",
    "concatenate_columns",
    "concatenate_infos",
    "exact_dtype",
    "is_mask",
    "joined_rows",
    "leaves_of",
    "map_columns",
    "mask_name",
    "named_arrays",
    "original",
    "text_infos",
    "without_full_masks",
]


class Kind(enum.Enum):
    """What a column has in each row, and the form in which messages have it."""

    HEADER = enum.auto()
    """A number or a truth value; packed."""
    NUMBERS = enum.auto()
    """Numbers of one shape, a single one except in global states; a Tensor."""
    LEAVES = enum.auto()
    """A value for each leaf of a space; NamedTensors."""
    INFOS = enum.auto()
    """Values by name, where gaps have a mask; NamedTensors."""


class Joined(enum.Enum):
    """What a segment that is joined of several parts has."""

    FIRST = enum.auto()
    """What the first part has."""
    LAST = enum.auto()
    """What the last part has."""
    SUM = enum.auto()
    """The sum over the parts."""


def _none(batch: Any) -> None:
    """Return None, for a column that a batch can be without."""


def _no_infos(batch: Any) -> dict[str, np.ndarray]:
    return {}


def _zeros(batch: Any) -> np.ndarray:
    return np.zeros(len(batch.lengths), np.int64)


def _positions(batch: Any) -> np.ndarray:
    return np.arange(len(batch.lengths), dtype=np.int64)


def _known_returns(batch: Any) -> np.ndarray:
    """Return the sums of no rewards before episodes, and NaN before segments that begin later."""
    return np.where(batch.first_steps == 0, 0.0, np.nan)


@dataclass(frozen=True)
class ColumnSpec:
    """Entry of the table of columns.

    Attributes:
        name: attribute of the batch, and group under which workers record the column.
        kind: its form.
        comment: its content.
        by_step: whether it has a row for each step; otherwise one for each segment.
        dtypes: kinds of dtypes that it may have, as in `numpy.dtype.kind`; all kinds of numbers by default.
        joined: what a joined segment has of it. Rows of steps stay as they are.
        default: returns the column of a batch that it was not given to; None if it has to be given.
        fields: fields of the message that can hold it, of which the first one that fits does; its name by default.
        original_of: the column that transforms change, and that this one has the environment's own values of. A batch
            without this one has them there.
        option: option of sampling calls that it comes with; empty if it does not depend on one.
    """

    name: str
    kind: Kind
    comment: str
    by_step: bool = False
    dtypes: str = "biufc"
    joined: Joined = Joined.FIRST
    default: Callable[[Any], Any] | None = None
    fields: tuple[str, ...] = ()
    original_of: str = ""
    option: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", self.fields or (self.name,))

    @property
    def is_optional(self) -> bool:
        """Whether it can be None."""
        return self.default is _none

    @property
    def is_flat(self) -> bool:
        """Whether it has one number or truth value in each row."""
        return self.kind in (Kind.HEADER, Kind.NUMBERS)


def _table(*specs: ColumnSpec) -> dict[str, ColumnSpec]:
    return {spec.name: spec for spec in specs}


_INTEGERS, _FLOATS, _FLAGS, _REALS = "iu", "f", "b", "fiu"

COLUMNS: Mapping[str, ColumnSpec] = _table(
    ColumnSpec("observations", Kind.LEAVES, "observation before each step", by_step=True),
    ColumnSpec("actions", Kind.LEAVES, "action of each step, as the agent chose it", by_step=True),
    ColumnSpec("rewards", Kind.NUMBERS, "reward of each step, with transforms", by_step=True, dtypes=_REALS),
    ColumnSpec("agent_infos", Kind.INFOS, "infos of the agent's actions", by_step=True, default=_no_infos),
    ColumnSpec(
        "env_infos",
        Kind.INFOS,
        "infos of the environment's steps",
        by_step=True,
        default=_no_infos,
        fields=("environment_infos",),
    ),
    ColumnSpec(
        "raw_rewards",
        Kind.NUMBERS,
        "reward of each step, as the environment returned it, where transforms change rewards",
        by_step=True,
        dtypes=_REALS,
        default=_none,
        original_of="rewards",
    ),
    ColumnSpec(
        "env_actions",
        Kind.LEAVES,
        "action of each step, as the environment got it, where transforms change actions",
        by_step=True,
        default=_none,
        fields=("environment_actions",),
        original_of="actions",
    ),
    ColumnSpec("last_observations", Kind.LEAVES, "observation after the last step", joined=Joined.LAST),
    ColumnSpec("episode_infos", Kind.INFOS, "infos of the environment's reset", default=_no_infos),
    ColumnSpec("initial_states", Kind.INFOS, "recurrent states before the first step", default=_no_infos),
    ColumnSpec(
        "last_states",
        Kind.INFOS,
        "recurrent states after the last step",
        joined=Joined.LAST,
        default=_no_infos,
        option="return_last_states",
    ),
    ColumnSpec("lengths", Kind.HEADER, "number of steps", dtypes=_INTEGERS, joined=Joined.SUM),
    ColumnSpec("terminated", Kind.HEADER, "whether the state after it is terminal", dtypes=_FLAGS, joined=Joined.LAST),
    ColumnSpec("truncated", Kind.HEADER, "whether a limit ended the episode", dtypes=_FLAGS, joined=Joined.LAST),
    ColumnSpec("policy_versions", Kind.HEADER, "version that acted", dtypes=_INTEGERS, default=_zeros),
    ColumnSpec("episode_indices", Kind.HEADER, "index of the episode", dtypes=_INTEGERS, default=_positions),
    ColumnSpec("first_steps", Kind.HEADER, "steps of the episode before it", dtypes=_INTEGERS, default=_zeros),
    ColumnSpec(
        "env_seeds",
        Kind.HEADER,
        "seed of the environment's reset",
        dtypes=_INTEGERS,
        default=_none,
        fields=("environment_seeds", "wide_environment_seeds"),
    ),
    ColumnSpec("worker_indices", Kind.HEADER, "worker that the episode is bound to", dtypes=_INTEGERS, default=_none),
    ColumnSpec("row_indices", Kind.HEADER, "row that it ran in", dtypes=_INTEGERS, default=_none),
    ColumnSpec(
        "last_values",
        Kind.NUMBERS,
        "value of the last observation",
        dtypes=_FLOATS,
        joined=Joined.LAST,
        default=_none,
        option="return_last_values",
    ),
    ColumnSpec(
        "returns_before",
        Kind.HEADER,
        "raw rewards of the episode before it",
        dtypes=_FLOATS,
        default=_known_returns,
        option="return_returns_before",
    ),
    ColumnSpec(
        "discounted_returns_before",
        Kind.HEADER,
        "discounted return of the episode before it",
        dtypes=_FLOATS,
        default=_none,
        option="return_discount",
    ),
)
"""The columns of an `EpisodeBatch`, by name."""

MANY_COLUMNS: Mapping[str, ColumnSpec] = _table(
    ColumnSpec("episode_indices", Kind.HEADER, "index of the episode", dtypes=_INTEGERS),
    ColumnSpec("first_steps", Kind.HEADER, "environment steps of the episode before it", dtypes=_INTEGERS),
    ColumnSpec("lengths", Kind.HEADER, "number of environment steps", dtypes=_INTEGERS, joined=Joined.SUM),
    ColumnSpec(
        "terminated", Kind.HEADER, "whether an agent was terminated at the end", dtypes=_FLAGS, joined=Joined.LAST
    ),
    ColumnSpec(
        "truncated", Kind.HEADER, "whether an agent was truncated at the end", dtypes=_FLAGS, joined=Joined.LAST
    ),
    ColumnSpec("agent_step_counts", Kind.HEADER, "steps of all agents", dtypes=_INTEGERS, joined=Joined.SUM),
    ColumnSpec("global_states", Kind.NUMBERS, "state before each environment step", by_step=True, default=_none),
    ColumnSpec("last_global_states", Kind.NUMBERS, "state after the last step", joined=Joined.LAST, default=_none),
)
"""The columns of a `MultiAgentBatch`, by name; its segments are parts of episodes, its steps environment steps."""

POLICY_COLUMNS: Mapping[str, ColumnSpec] = _table(
    ColumnSpec("agent_positions", Kind.HEADER, "agent of the life", dtypes=_INTEGERS),
    ColumnSpec(
        "env_steps",
        Kind.HEADER,
        "environment step of each step",
        by_step=True,
        dtypes=_INTEGERS,
        fields=("environment_steps",),
    ),
    ColumnSpec("rewards_before", Kind.HEADER, "rewards before the first action", dtypes=_FLOATS),
)
"""The columns that a `PolicyBatch` has beside those of its `EpisodeBatch`, by name."""

PER_STEP = {name: spec for name, spec in COLUMNS.items() if spec.by_step}
"""Columns with a row for each step."""

PER_SEGMENT = {name: spec for name, spec in COLUMNS.items() if not spec.by_step}
"""Columns with a row for each segment."""

HEADERS = {name: spec for name, spec in PER_SEGMENT.items() if spec.is_flat}
"""Columns with a number or a truth value for each segment."""

SEGMENT_COLUMNS = {name: spec for name, spec in PER_SEGMENT.items() if not spec.is_flat}
"""Other columns with a row for each segment."""

INFOS = {name: spec for name, spec in COLUMNS.items() if spec.kind is Kind.INFOS}
"""Columns that are mappings, whose arrays can have gaps."""

ENV_INFOS = ("env_infos", "episode_infos")
"""Infos of environments, which can have any names, types and shapes."""

END_COLUMNS = {name: spec for name, spec in PER_SEGMENT.items() if spec.joined is Joined.LAST}
"""Columns that a segment joined of several parts has from the last of them."""

ORIGINALS = {spec.original_of: name for name, spec in COLUMNS.items() if spec.original_of}
"""Columns that transforms change, and the columns that have the environment's own values then."""


def original(batch: Any, name: str) -> Any:
    """Return the environment's own values of a column: its rewards, or the actions that it got."""
    own = getattr(batch, ORIGINALS[name])
    return getattr(batch, name) if own is None else own


def joined_rows(spec: ColumnSpec, column: Columns | None, begins: np.ndarray, ends: np.ndarray) -> Columns | None:
    """Return the rows of a column after segments were joined; rows of steps stay as they are.

    Args:
        spec: its entry in the table.
        column: the column.
        begins: positions of the first part of each joined segment.
        ends: positions of the last part of each.
    """
    if column is None or spec.by_step:
        return column
    if spec.joined is Joined.SUM:
        return map_columns(lambda array: np.add.reduceat(array, begins), column)
    positions = ends if spec.joined is Joined.LAST else begins
    rows = map_columns(lambda array: array[positions], column)
    # Segments that had gaps may have been joined to others.
    return without_full_masks(rows) if spec.kind is Kind.INFOS and isinstance(rows, Mapping) else rows


_MAX_EXACT = 1 << 53
"""Magnitude up to which float64 holds every integer."""

Columns = np.ndarray | Mapping[str, np.ndarray]
"""Rows of one array, or of one array for each leaf."""


def leaves_of(columns: Columns) -> Mapping[str, np.ndarray]:
    """Return the arrays by leaf name; a single array has the empty name."""
    return columns if isinstance(columns, Mapping) else {"": columns}


def named_arrays(batch: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a batch's columns and headers, each by its field and, after a slash, the name of its leaf."""
    for name in COLUMNS:
        columns = getattr(batch, name)
        for leaf, array in leaves_of(columns).items() if columns is not None else ():
            yield f"{name}/{leaf}" if leaf else name, array


def columns_of(leaves: Mapping[str, np.ndarray]) -> Columns:
    """Return columns for arrays by leaf name: the inverse of `leaves_of`."""
    return leaves[""] if leaves.keys() == {""} else dict(leaves)


def map_columns(function: Callable[[np.ndarray], np.ndarray], columns: Columns) -> Columns:
    """Apply a function to each array of the columns."""
    if isinstance(columns, Mapping):
        return {name: function(array) for name, array in columns.items()}
    return function(columns)


def concatenate_columns(parts: Sequence[Columns]) -> Columns:
    """Concatenate columns along their rows.

    Raises:
        ValueError: parts whose leaves or row shapes differ, or whose integers no common dtype holds.
    """
    leaves = [leaves_of(part) for part in parts]
    for part in leaves:
        if part.keys() != leaves[0].keys():
            raise ValueError(mismatch(f"leaves {sorted(leaves[0])}", sorted(part)))
    joined = {}
    for leaf in leaves[0]:
        arrays = [part[leaf] for part in leaves]
        joined[leaf] = np.concatenate(arrays, dtype=exact_dtype(arrays), casting="unsafe")
    return columns_of(joined)


def exact_dtype(arrays: Sequence[np.ndarray]) -> np.dtype:
    """Return the dtype that holds each value of all arrays: numpy's, but uint64 for integers that numpy makes floats.

    Raises:
        ValueError: an integer beyond 2**53 is beside floats, or a negative one beside uint64.
    """
    dtypes = {array.dtype for array in arrays}
    dtype = np.result_type(*dtypes)
    if dtype.kind != "f" or len(dtypes) == 1:
        return dtype
    integers = [array for array in arrays if array.dtype.kind in "iu" and array.size]
    low = min((int(array.min()) for array in integers), default=0)
    high = max((int(array.max()) for array in integers), default=0)
    if not any(each.kind == "f" for each in dtypes):  # signed integers beside uint64
        dtype, is_exact = np.dtype(np.uint64), low >= 0
    else:
        is_exact = max(-low, high) <= _MAX_EXACT
    if is_exact:
        return dtype
    got = f"{', '.join(sorted(map(str, dtypes)))} with integers from {low} to {high}"
    raise ValueError(mismatch("numbers that one dtype can hold", got))


def mask_name(name: str) -> str:
    """Return the name of the mask of an info."""
    return f"_{name}"


def is_mask(name: str, infos: Mapping[str, np.ndarray]) -> bool:
    """Whether an info is the mask of another info."""
    return name.startswith("_") and name[1:] in infos


def without_full_masks(infos: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the infos without masks that are true in every row."""
    return {name: array for name, array in infos.items() if not (is_mask(name, infos) and array.all())}


def concatenate_infos(parts: Sequence[Mapping[str, np.ndarray]], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Concatenate infos along their rows. An info that a part lacks is a gap of that part's length.

    Args:
        parts: infos of each part, each array with as many rows as the part.
        lengths: number of rows of each part.

    Raises:
        ValueError: an info whose row shape differs between parts, or whose integers no common dtype holds.
    """
    names = dict.fromkeys(name for part in parts for name in part if not is_mask(name, part))
    joined: dict[str, np.ndarray] = {}
    for name in names:
        arrays = [part[name] for part in parts if name in part]
        if len({array.shape[1:] for array in arrays}) > 1:
            shapes = sorted({array.shape[1:] for array in arrays})
            raise ValueError(f"{name!r}: {mismatch('rows of one shape', f'rows of shapes {shapes}')}")
        try:
            row_shape, dtype = arrays[0].shape[1:], exact_dtype(arrays)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
        columns, masks = [], []
        for part, length in zip(parts, lengths, strict=True):
            has_values = name in part
            columns.append(part[name] if has_values else np.zeros((length, *row_shape), dtype))
            masks.append(part.get(mask_name(name), np.full(length, has_values)))
        joined[name] = np.concatenate(columns, dtype=dtype, casting="unsafe")
        mask = np.concatenate(masks)
        if not mask.all():
            joined[mask_name(name)] = mask
    return joined


MAX_TEXT_INFO_BYTES = 1 << 16
"""Upper bound for the bytes of a text."""

TEXT_PREFIX, JSON_PREFIX = "text/", "json/"
"""Texts in front of the name of a column of texts, and of a column of other values as JSON."""


def text_infos(infos: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Return the texts among infos by name, as Python's values: one for each row, None for a row without one.

    >>> rollserve.text_infos(batch.env_infos)["event"]  # doctest: +SKIP
    [None, 'goal', None, …]

    Args:
        infos: `env_infos` or `episode_infos` of a batch whose environment has `EnvSpec.text_info_bytes`. Texts are the
            columns `text/NAME`, and other values `json/NAME`: uint8 (T, B), UTF-8 with zeros behind it.
            Columns of such a name that hold something else, as of a number that the environment calls `text/x`, are
            left out.
    """
    values: dict[str, list[Any]] = {}
    for column_name, column in infos.items():
        for prefix, read in ((TEXT_PREFIX, bytes.decode), (JSON_PREFIX, json.loads)):
            if column_name.startswith(prefix) and column.dtype == np.uint8 and column.ndim == 2:
                present = infos.get(mask_name(column_name))
                rows = range(len(column)) if present is None else np.flatnonzero(present).tolist()
                try:
                    texts = {row: read(column[row].tobytes().rstrip(b"\0")) for row in rows}
                except ValueError:  # bytes that are no text
                    continue
                found = values.setdefault(column_name.removeprefix(prefix), [None] * len(column))
                for row, text in texts.items():
                    found[row] = text
    return values
