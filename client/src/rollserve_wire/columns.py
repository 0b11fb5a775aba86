"""The table of columns of batches, from which messages, checks, joining and files follow, and what holds their arrays.

A column is one array for a plain space, or one array for each leaf of a nested space. An info that some rows lack is 0
in these rows and has a mask beside it: a bool column named like it with `_` in front, as in gymnasium's vector
environments. Texts among the infos of environments are columns of UTF-8 bytes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
    "Column",
    "ColumnSpec",
    "Columns",
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


Kind = Literal["header", "numbers", "leaves", "infos"]
"""Content of a column's rows, and the form in which messages have it.

`header`: a number or a truth value; packed. `numbers`: numbers of one shape, a single one except in global states; a
Tensor. `leaves`: a value for each leaf of a space; NamedTensors. `infos`: values by name, where gaps have a mask;
NamedTensors.
"""


def _none(batch: Any) -> None:
    """Return None, for a column that a batch can be without."""


def _zeros(batch: Any) -> np.ndarray:
    return np.zeros(len(batch.lengths), np.int64)


def _positions(batch: Any) -> np.ndarray:
    return np.arange(len(batch.lengths), dtype=np.int64)


def _returns(batch: Any) -> np.ndarray:
    """Return the sums of no rewards before episodes, and NaN before segments that begin later."""
    return np.where(batch.first_steps == 0, 0.0, np.nan)


@dataclass(frozen=True)
class ColumnSpec:
    """Entry of the table of columns.

    Attributes:
        name: attribute of the batch, and group under which workers record the column.
        kind: form of the column.
        comment: content of a row.
        dtypes: kinds of dtypes that it may have, as in `numpy.dtype.kind`; all kinds of numbers by default.
        joined: what a segment that is joined of several parts has: what the `first` or the `last` part has, or the
            `sum`. Rows of steps stay as they are.
        by_step: whether it has a row for each step; otherwise one for each segment.
        default: returns the column of a batch that it was not given to; None if it has to be given, or is infos.
        fields: fields of the message that can hold it; the first that can hold its values does. By default, the field
            with the name of the column, and `environment` for `env`.
        original_of: the column that transforms change, and whose own values of the environment this one has. A batch
            without this one has them there.
        option: option of sampling calls that it comes with; empty if it depends on none.
    """

    name: str
    kind: Kind
    comment: str
    dtypes: str = "biufc"
    joined: Literal["first", "last", "sum"] = "first"
    by_step: bool = False
    default: Callable[[Any], Any] | None = None
    fields: tuple[str, ...] = ()
    original_of: str = ""
    option: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", self.fields or (self.name.replace("env_", "environment_"),))

    @property
    def is_required(self) -> bool:
        """Whether it has to be given."""
        return self.default is None and self.kind != "infos"

    @property
    def is_optional(self) -> bool:
        """Whether it can be None."""
        return self.default is _none

    @property
    def is_flat(self) -> bool:
        """Whether it has one number or truth value in each row."""
        return self.kind in ("header", "numbers")


_by_segment, _by_step = ColumnSpec, functools.partial(ColumnSpec, by_step=True)


def _table(*specs: ColumnSpec) -> dict[str, ColumnSpec]:
    return {spec.name: spec for spec in specs}


COLUMNS: Mapping[str, ColumnSpec] = _table(
    _by_step("observations", "leaves", "observation before the step"),
    _by_step("actions", "leaves", "action as the agent chose it"),
    _by_step("rewards", "numbers", "reward with transforms", "fiu"),
    _by_step("agent_infos", "infos", "infos of the agent's action"),
    _by_step("env_infos", "infos", "infos of the environment's step"),
    _by_step("raw_rewards", "numbers", "reward without transforms", "fiu", default=_none, original_of="rewards"),
    _by_step("env_actions", "leaves", "action as the environment got it", default=_none, original_of="actions"),
    _by_segment("last_observations", "leaves", "observation after the last step", joined="last"),
    _by_segment("episode_infos", "infos", "infos of the environment's reset"),
    _by_segment("initial_states", "infos", "recurrent states before the first step"),
    _by_segment("last_states", "infos", "states after the last step", joined="last", option="return_last_states"),
    _by_segment("lengths", "header", "number of steps", "iu", "sum"),
    _by_segment("terminated", "header", "whether the last step reached a terminal state", "b", "last"),
    _by_segment("truncated", "header", "whether a limit ended the episode with the last step", "b", "last"),
    _by_segment("policy_versions", "header", "version that acted", "iu", default=_zeros),
    _by_segment("episode_indices", "header", "index of the episode", "iu", default=_positions),
    _by_segment("first_steps", "header", "steps of the episode before the segment", "iu", default=_zeros),
    _by_segment(
        "env_seeds",
        "header",
        "seed of the environment's reset",
        "iu",
        default=_none,
        fields=("environment_seeds", "wide_environment_seeds"),
    ),
    _by_segment("worker_indices", "header", "worker that the episode is bound to", "iu", default=_none),
    _by_segment("row_indices", "header", "row of all workers' rows", "iu", default=_none),
    _by_segment(
        "last_values", "numbers", "last observation's value", "f", "last", default=_none, option="return_last_values"
    ),
    _by_segment(
        "returns_before", "header", "sum of earlier raw rewards", "f", default=_returns, option="return_returns_before"
    ),
    _by_segment(
        "discounted_returns_before",
        "header",
        "discounted earlier rewards",
        "f",
        default=_none,
        option="return_discount",
    ),
)
"""The columns of an `EpisodeBatch`, by name."""

MANY_COLUMNS: Mapping[str, ColumnSpec] = _table(
    _by_segment("episode_indices", "header", "index of the episode", "iu"),
    _by_segment("first_steps", "header", "environment steps of the episode before the part", "iu"),
    _by_segment("lengths", "header", "number of environment steps", "iu", "sum"),
    _by_segment("terminated", "header", "whether the episode ended, and an agent was terminated", "b", "last"),
    _by_segment("truncated", "header", "whether the episode ended, and an agent was truncated", "b", "last"),
    _by_segment("agent_step_counts", "header", "steps of all agents", "iu", "sum"),
    _by_step("global_states", "numbers", "state before the environment step", default=_none),
    _by_segment("last_global_states", "numbers", "state after the last step", joined="last", default=_none),
)
"""The columns of a `MultiAgentBatch`, by name; its segments are parts of episodes, its steps environment steps."""

POLICY_COLUMNS: Mapping[str, ColumnSpec] = _table(
    _by_segment("agent_positions", "header", "position of the agent", "iu"),
    _by_step("env_steps", "header", "environment step", "iu"),
    _by_segment("rewards_before", "header", "rewards of the life before its first action", "f"),
)
"""The columns of a `PolicyBatch` beside its `EpisodeBatch`, by name."""

PER_STEP = {name: spec for name, spec in COLUMNS.items() if spec.by_step}
"""Columns with a row for each step."""

PER_SEGMENT = {name: spec for name, spec in COLUMNS.items() if not spec.by_step}
"""Columns with a row for each segment."""

HEADERS = {name: spec for name, spec in PER_SEGMENT.items() if spec.is_flat}
"""Columns with a number or a truth value for each segment."""

SEGMENT_COLUMNS = {name: spec for name, spec in PER_SEGMENT.items() if not spec.is_flat}
"""Other columns with a row for each segment."""

INFOS = {name: spec for name, spec in COLUMNS.items() if spec.kind == "infos"}
"""Columns that are mappings, whose arrays can have gaps."""

ENV_INFOS = ("env_infos", "episode_infos")
"""Infos of environments, which can have any names, types and shapes."""

END_COLUMNS = {name: spec for name, spec in PER_SEGMENT.items() if spec.joined == "last"}
"""Columns that a segment joined of several parts has from the last of them."""

ORIGINALS = {spec.original_of: name for name, spec in COLUMNS.items() if spec.original_of}
"""Columns that transforms change, and the columns that have the environment's own values then."""


def original(batch: Any, name: str) -> Any:
    """Return the environment's own values of a column, such as its rewards, or the actions that it got."""
    own = getattr(batch, ORIGINALS[name]) if name in ORIGINALS else None
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
    if spec.joined == "sum":
        return map_columns(lambda array: np.add.reduceat(array, begins), column)
    positions = ends if spec.joined == "last" else begins
    rows = map_columns(lambda array: array[positions], column)
    # Segments that had gaps may have been joined to others.
    return without_full_masks(rows) if spec.kind == "infos" and isinstance(rows, Mapping) else rows


_MAX_EXACT = 1 << 53
"""Magnitude up to which float64 holds every integer."""

Columns = np.ndarray | Mapping[str, np.ndarray]
"""Rows of one array, or of one array for each leaf."""

Column = np.ndarray | Any
"""Column that a batch has: for type checkers an array.

Of a Dict or Tuple space it is a mapping, which `leaves_of` returns by type, and without its option None. Callers know
that, and type checkers cannot: a union without `Any` would have programs check what they have asked for.
"""


def leaves_of(columns: Columns) -> Mapping[str, np.ndarray]:
    """Return the arrays of columns by the names of their leaves; a single array has the empty name.

    >>> rollserve.leaves_of(batch.observations)["camera"].shape  # of a Dict space  # doctest: +SKIP
    """
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
