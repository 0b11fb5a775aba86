"""Values of spaces in columns, one for each leaf: stored, read, and checked against the space."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rollserve_server.envs.leaves import Leaf, decode_texts, encode_text, value_range
from rollserve_server.envs.outcomes import ReturnedError, form_of
from rollserve_server.errors import show
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike

__all__ = [
    "assemble_rows",
    "batch_of_leaves",
    "check_observations",
    "check_precision",
    "check_rewards",
    "leaves_of_batch",
    "rows_of_batch",
    "store_observation",
    "unfit_rewards",
    "unfit_rows",
]


def store_observation(observation: Any, leaves: Sequence[Leaf], columns: Sequence[np.ndarray], row: int) -> None:
    """Write an observation to one row of each leaf's column.

    Values outside the space's bounds pass: many environments return some.

    Raises:
        ReturnedError: the observation lacks a part of the space's structure; or a part has another shape than its leaf,
            or a dtype whose conversion loses values, which numpy would broadcast or truncate silently. Rounding of
            floats is no loss; integers may have any dtype that holds them. A text is longer than its space allows, or
            no text.
    """
    for leaf, column in zip(leaves, columns, strict=True):
        part = _part(observation, leaf, leaf.shape)
        try:
            column[row] = part if leaf.takes(part) else _cast(part, leaf, leaf.shape)
        except OverflowError:  # a number of Python's
            raise _unfit(leaf, leaf.shape, "a number beyond that") from None


def check_precision(observation: Any, leaves: Sequence[Leaf]) -> None:
    """Raise ReturnedError if an observation, or a batch, has an array of wider floats than its space announces."""
    for leaf in leaves:
        part = _part(observation, leaf, leaf.shape)
        dtype = getattr(part, "dtype", None)  # Python's numbers have none
        if dtype is not None and dtype.kind == leaf.dtype.kind == "f" and dtype.itemsize > leaf.dtype.itemsize:
            hint = "the environment has to convert it, or to announce that dtype"
            raise _unfit(leaf, leaf.shape, form_of(part), hint)


def assemble_rows(space: Space[Any], columns: Iterator[np.ndarray], num_rows: int) -> list[Any]:
    """Return a value of the space for each row, from the columns of its leaves; a part may have no leaves.

    A number of a Discrete space is a numpy integer, as `space.sample()` makes it; arrays are views of the columns.
    """
    if isinstance(space, spaces.Dict):
        parts = {key: assemble_rows(subspace, columns, num_rows) for key, subspace in space.spaces.items()}
        return [dict(zip(parts, row, strict=True)) for row in _zipped(parts.values(), num_rows)]
    if isinstance(space, spaces.Tuple):
        subspaces = [assemble_rows(subspace, columns, num_rows) for subspace in space.spaces]
        return list(_zipped(subspaces, num_rows))
    return list(next(columns))


def _zipped(parts: Collection[list[Any]], num_rows: int) -> Iterable[tuple[Any, ...]]:
    """Return the parts of each row; an empty tuple for each without parts."""
    return zip(*parts, strict=True) if parts else itertools.repeat((), num_rows)


def leaves_of_batch(batch: Any, leaves: Sequence[Leaf], num_rows: int) -> list[np.ndarray]:
    """Return the column (M, *shape) of each leaf of a vector environment's batch of M values, without a copy.

    Raises:
        ReturnedError: the batch does not fit; see `store_observation`.
    """
    columns = []
    for leaf in leaves:
        part = _part(batch, leaf, (num_rows, *leaf.shape))
        if not (type(part) is np.ndarray and part.dtype is leaf.dtype and part.shape == (num_rows, *leaf.shape)):
            part = _cast(part, leaf, (num_rows, *leaf.shape))
        columns.append(part)
    return columns


def rows_of_batch(batch: Any, leaves: Sequence[Leaf], rows: Sequence[int], num_rows: int) -> list[np.ndarray]:
    """Return the columns (rows, *shape) of some rows of a vector environment's batch of M values.

    Some environments return a list or an array of M values, others a column for each leaf.

    Raises:
        ReturnedError: the batch has no M values, or one of the rows does not fit; see `store_observation`.
    """
    if isinstance(batch, list) or (isinstance(batch, np.ndarray) and batch.dtype.hasobject):
        return _rows_of_list(batch, leaves, rows, num_rows)
    columns = []
    for leaf in leaves:
        part = _part(batch, leaf, (num_rows, *leaf.shape))
        if isinstance(part, list) or (isinstance(part, np.ndarray) and part.dtype.hasobject):
            columns += _rows_of_list(part, [dataclasses.replace(leaf, path=())], rows, num_rows)
            continue
        try:
            values = np.asarray(part)
        except ValueError:  # sequences of several lengths
            raise _unfit(leaf, (num_rows, *leaf.shape), form_of(part)) from None
        if values.shape[:1] != (num_rows,):
            raise _unfit(leaf, (num_rows, *leaf.shape), form_of(part))
        columns.append(_cast(values[list(rows)], leaf, (len(rows), *leaf.shape)))
    return columns


def _rows_of_list(values: Any, leaves: Sequence[Leaf], rows: Sequence[int], num_rows: int) -> list[np.ndarray]:
    """Return columns as `rows_of_batch` does, of a list or an array of objects."""
    if np.shape(values)[:1] != (num_rows,):
        raise ReturnedError(mismatch(f"{num_rows} observations", form_of(values)))
    columns = [np.empty((len(rows), *leaf.shape), leaf.dtype) for leaf in leaves]
    for position, row in enumerate(rows):
        store_observation(values[row], leaves, columns, position)
    return columns


def batch_of_leaves(space: Space[Any], columns: Iterator[np.ndarray]) -> Any:
    """Return the batch that a vector environment takes, from the columns of the space's leaves."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of_leaves(subspace, columns) for key, subspace in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of_leaves(subspace, columns) for subspace in space.spaces)
    return next(columns)


def unfit_rows(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> Mapping[int, str]:
    """Return what is wrong with observations that are not in their space, by row.

    Args:
        leaves: leaves of the space.
        columns: an array (M, *O) for each leaf.
        rows: indices of the rows to check.
    """
    found: dict[int, str] = {}
    for leaf, column in zip(leaves, columns, strict=True):
        if isinstance(leaf.space, spaces.Text):
            for row, text in zip(rows, decode_texts(column[list(rows)]), strict=True):
                if not leaf.space.contains(text):
                    found.setdefault(row, f"{_named(leaf)}: {mismatch(f'a text of {leaf.space}', show(text))}")
            continue
        low, high = value_range(leaf)
        values = column[list(rows)]
        fits = (values >= low) & (values <= high)  # False for NaN
        if fits.all():
            continue
        for position in np.flatnonzero(~fits.reshape(len(rows), -1).all(axis=1)).tolist():
            place = tuple(map(int, np.argwhere(~fits[position])[0]))
            expected = "a number from {} to {}".format(
                *(np.broadcast_to(end, leaf.shape)[place] for end in (low, high))
            )
            path = f"{_named(leaf)}{list(place) if place else ''}"
            found.setdefault(rows[position], f"{path}: {mismatch(expected, values[position][place])}")
    return found


def check_observations(leaves: Sequence[Leaf], columns: Sequence[np.ndarray], rows: Sequence[int]) -> None:
    """Raise ReturnedError if the observation of a row is not in its space; takes the arguments of `unfit_rows`."""
    for text in unfit_rows(leaves, columns, rows).values():
        raise ReturnedError(text)


def unfit_rewards(rewards: ArrayLike, rows: Sequence[int]) -> Mapping[int, str]:
    """Return what is wrong with rewards (M,) that are not finite, by row; takes the indices of the rows to check."""
    values = np.asarray(rewards)[list(rows)]
    return {
        rows[place]: f"reward: {mismatch('a finite number', values[place])}"
        for place in np.flatnonzero(~np.isfinite(values)).tolist()
    }


def check_rewards(rewards: ArrayLike, rows: Sequence[int]) -> None:
    """Raise ReturnedError if the reward of a row is not finite; takes the arguments of `unfit_rewards`."""
    for text in unfit_rewards(rewards, rows).values():
        raise ReturnedError(text)


def _part(observation: Any, leaf: Leaf, shape: tuple[int, ...]) -> Any:
    """Return the part of an observation, or of a batch, that belongs to a leaf; raise ReturnedError without one."""
    part = observation
    try:
        for step in leaf.path:
            part = part[step]
    except (LookupError, TypeError):
        raise _unfit(leaf, shape, f"none in {form_of(part)}") from None
    return part


def _cast(value: Any, leaf: Leaf, shape: tuple[int, ...]) -> np.ndarray:
    """Return the value as an array of a shape and the leaf's dtype; raise ReturnedError if it does not fit."""
    if isinstance(leaf.space, spaces.Text):
        try:
            return encode_text(value, leaf.space)
        except ValueError as error:
            raise ReturnedError(f"{_named(leaf)}: {error}") from None
    try:
        array = np.asarray(value)
    except ValueError:  # sequences of several lengths
        raise _unfit(leaf, shape, form_of(value)) from None
    integral = array.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    fits = integral or np.can_cast(array.dtype, leaf.dtype, "same_kind")
    if array.shape != shape or not fits:
        raise _unfit(leaf, shape, form_of(value if array.dtype.hasobject else array))
    if array.dtype == leaf.dtype:
        return array
    cast = array.astype(leaf.dtype)
    if integral and not np.array_equal(cast, array):
        expected, got = f"a value of dtype {leaf.dtype}", array[cast != array].flat[0]
        raise ReturnedError(f"{_named(leaf)}: {mismatch(expected, got)}")
    return cast


def _unfit(leaf: Leaf, shape: tuple[int, ...], got: str, hint: str = "") -> ReturnedError:
    return ReturnedError(f"{_named(leaf)}: {mismatch(f'{leaf.dtype} of shape {shape}', got, hint)}")


def _named(leaf: Leaf) -> str:
    return f"observation {leaf.name!r}" if leaf.name else "observation"
