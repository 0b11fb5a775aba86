"""Columns of an episode batch: the names of its fields by their kinds, and what holds their arrays.

Columns are one array for a plain space, or one array for each leaf of a nested space. An info that some rows lack is 0
in these rows and has a mask beside it: a bool column named like it with `_` in front, as in gymnasium's vector
environments. Texts among the infos of environments are columns of UTF-8 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "END_FIELDS",
    "FIELDS",
    "FLOAT_HEADERS",
    "HEADERS",
    "INFOS",
    "INTEGER_HEADERS",
    "JSON_PREFIX",
    "MAX_TEXT_INFO_BYTES",
    "OPTIONAL_COLUMNS",
    "OPTIONAL_HEADERS",
    "REQUIRED",
    "SEGMENT_COLUMNS",
    "STEP_COLUMNS",
    "TEXT_PREFIX",
    "Columns",
    "columns_of",
    "concatenate_columns",
    "concatenate_infos",
    "exact_dtype",
    "is_mask",
    "leaves_of",
    "map_columns",
    "mask_name",
    "named_arrays",
    "text_infos",
    "without_full_masks",
]


OPTIONAL_COLUMNS = {"raw_rewards": "rewards", "env_actions": "actions"}
"""Columns that can be None, and the columns whose values they have then."""

STEP_COLUMNS = ("observations", "actions", "rewards", "agent_infos", "env_infos", *OPTIONAL_COLUMNS)
"""Fields with a row for each step."""

SEGMENT_COLUMNS = ("last_observations", "episode_infos", "initial_states", "last_states")
"""Fields with a row for each segment, beside the headers."""

INTEGER_HEADERS = ("lengths", "policy_versions", "episode_indices", "first_steps")
"""Headers of integers that every batch has."""

OPTIONAL_HEADERS = ("env_seeds", "worker_indices", "row_indices")
"""Headers of integers that can be None."""

FLOAT_HEADERS = ("last_values", "returns_before", "discounted_returns_before")
"""Headers of floats; all but `returns_before` can be None."""

END_FIELDS = ("terminated", "truncated", "last_observations", "last_values", "last_states")
"""Fields that a segment joined of several ones has from the last of them; others have them from the first."""

HEADERS = (
    "lengths",
    "terminated",
    "truncated",
    "policy_versions",
    "episode_indices",
    "first_steps",
    *OPTIONAL_HEADERS,
    *FLOAT_HEADERS,
)
"""Fields with a number or a truth value for each segment."""

FIELDS = (*STEP_COLUMNS, *SEGMENT_COLUMNS, *HEADERS)
"""Fields of a batch, except the account."""

INFOS = ("agent_infos", "env_infos", "episode_infos", "initial_states", "last_states")
"""Fields that are mappings, whose arrays can have gaps."""

REQUIRED = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated")
"""Fields that every row of `EpisodeBatch.from_list` has."""


_MAX_EXACT = 1 << 53
"""Magnitude up to which float64 holds every integer."""

Columns = np.ndarray | Mapping[str, np.ndarray]
"""Rows of one array, or of one array for each leaf."""


def leaves_of(columns: Columns) -> Mapping[str, np.ndarray]:
    """Return the arrays by leaf name; a single array has the empty name."""
    return columns if isinstance(columns, Mapping) else {"": columns}


def named_arrays(batch: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a batch's columns and headers, each by its field and, after a slash, the name of its leaf."""
    for name in FIELDS:
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
