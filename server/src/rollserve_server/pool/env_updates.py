"""Updates of environments: what they make of the ones that are there, and which fields of a request they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rollserve import EnvChange, EnvSpec
from rollserve_server.envs import RowSpecs, WorkerSpecs, specs_of_rows
from rollserve_server.errors import InvalidValueError, OverLimitError

__all__ = ["MOST_ENV_BYTES", "EnvUpdate", "RowUpdates", "check_size", "field_in", "updated"]

MOST_ENV_BYTES = 16 << 20
"""Of the arguments of all rows of all workers, as text: GetSampler tells of them."""


@dataclass(frozen=True)
class RowUpdates:
    """Updates that differ between the rows of a worker.

    Attributes:
        updates: for each row a whole environment, a change of the one that is there, or None to leave that as it is.
    """

    updates: tuple[EnvSpec | EnvChange | None, ...]


EnvUpdate = EnvSpec | EnvChange | RowUpdates
"""A whole environment, or a change of the one that is there: for all rows of a worker, or one for each."""


def check_size(held: Sequence[WorkerSpecs], updates: Sequence[EnvUpdate], num_rows: int, num_workers: int) -> None:
    """Sees to it that what is to be known of all environments stays small: a row's arguments are kept for each worker.

    Args:
        held: those that are there, for each update.
        updates: what is new, for all workers or for each.
        num_rows: how many rows a worker has.
        num_workers: how many workers there are.

    Raises:
        OverLimitError: it is too large.
    """
    sizes: dict[int, int] = {}

    def size_of(each: EnvSpec | EnvChange | None) -> int:
        if id(each) not in sizes:
            sizes[id(each)] = len(repr(each))
        return sizes[id(each)]

    num_bytes = 0
    for specs, update in zip(held, updates, strict=True):
        differ = isinstance(update, RowUpdates) or (isinstance(specs, RowSpecs) and isinstance(update, EnvChange))
        rows = num_rows if differ else 1
        before = () if isinstance(update, EnvSpec) else specs_of_rows(specs, rows)
        after = update.updates if isinstance(update, RowUpdates) else (update,) * rows
        of_worker = sum(map(size_of, before)) + sum(map(size_of, after))
        num_bytes += of_worker * (num_workers if differ and len(updates) == 1 else 1)
    if num_bytes > MOST_ENV_BYTES:
        text = f"environments of all rows and workers of {num_bytes} bytes came, {MOST_ENV_BYTES} at most were expected"
        raise OverLimitError(text, reason="ENVIRONMENTS_TOO_LARGE", field="update")


def updated(specs: WorkerSpecs, update: EnvUpdate, num_rows: int) -> WorkerSpecs:
    """A worker's environments after the update.

    Args:
        specs: those that are there.
        update: what is new.
        num_rows: how many rows a worker has.

    Raises:
        InvalidValueError: not one update for each row, or a row is to go on with an environment of EnvPool's.
    """
    if isinstance(update, EnvSpec):
        return update
    if isinstance(update, EnvChange) and isinstance(specs, EnvSpec):
        return update.applied_to(specs)
    updates = update.updates if isinstance(update, RowUpdates) else (update,) * num_rows
    if len(updates) != num_rows:
        expected = f"one for each of a worker's {num_rows} rows"
        raise InvalidValueError.of("per_row.updates", f"{len(updates)} elements", expected)
    held = specs_of_rows(specs, num_rows)
    pairs = zip(held, updates, strict=True)
    return RowSpecs(tuple(_updated_row(row, spec, each) for row, (spec, each) in enumerate(pairs)))


def field_in(update: EnvUpdate, row: int | None) -> str:
    """The field of an EnvironmentUpdate that a row's environment comes from."""
    match update:
        case EnvSpec():
            return "environment"
        case EnvChange():
            return "change"
    if row is None:
        return "per_row"
    element = update.updates[row]
    field = f"per_row.updates[{row}]"
    return field if element is None else f"{field}.{field_in(element, None)}"


def _updated_row(row: int, spec: EnvSpec, update: EnvSpec | EnvChange | None) -> EnvSpec:
    if isinstance(update, EnvSpec):
        return update
    if spec.vectorization == "envpool":
        text = "a row of EnvPool's came, but rows that differ are stepped one by one: an environment was expected"
        raise InvalidValueError(text, field=f"per_row.updates[{row}]")
    # What it said holds for rows that are alike, and nobody has said it of these.
    if spec.vectorization == "native":
        spec = dataclasses.replace(spec, vectorization=None)
    return spec if update is None else update.applied_to(spec)
