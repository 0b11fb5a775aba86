"""Steps in random order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.learning.arguments import check_count, check_generator
from rollserve_wire.columns import STEP_COLUMNS, leaves_of, map_columns
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_wire.columns import Columns

__all__ = ["minibatches", "shuffled", "step_columns"]


def minibatches(
    batch: Any, size: int, generator: np.random.Generator, num_epochs: int, columns: Mapping[str, Columns]
) -> Iterator[dict[str, Columns]]:
    """Return an iterator over minibatches of steps; see `EpisodeBatch.minibatches`."""
    size, num_epochs = check_count("size", size), check_count("num_epochs", num_epochs)
    generator = check_generator(generator)
    # A function of its own, so that wrong arguments raise at the call and not at the first minibatch.
    return _minibatches(step_columns(batch, columns), len(batch.rewards), size, generator, num_epochs)


def shuffled(batch: Any, generator: np.random.Generator, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of steps in random order; see `EpisodeBatch.shuffle`."""
    order = check_generator(generator).permutation(len(batch.rewards))
    return _rows(step_columns(batch, columns), order)


def step_columns(batch: Any, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the columns of steps of a batch with the caller's own.

    Args:
        batch: the batch.
        columns: (T, …) each, by names that no column of the batch has.

    Raises:
        ValueError: another name or number of rows.
    """
    own = ((name, getattr(batch, name)) for name in STEP_COLUMNS)
    found: dict[str, Columns] = {name: column for name, column in own if column is not None}
    for name, column in columns.items():
        if name in found or name in _ADDED:
            raise ValueError(f"{name}: {mismatch('a name that the result does not have', repr(name))}")
        found[name] = map_columns(np.asarray, column)
        for array in leaves_of(found[name]).values():
            if array.ndim < 1 or len(array) != len(batch.rewards):
                raise ValueError(f"{name}: {mismatch(f'{len(batch.rewards)} rows', f'shape {array.shape}')}")
    return found


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
