"""Updates of environments: what they make of the ones that are there, and which fields of a request they come from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from rollserve import EnvChange, EnvSpec, Reason
from rollserve_server.envs import RowSpecs, WorkerSpecs, specs_of_rows
from rollserve_server.errors import InvalidValueError, OverLimitError

__all__ = ["MOST_ENV_BYTES", "EnvRoom", "EnvUpdate", "RowUpdates", "field_in", "updated"]

MOST_ENV_BYTES = 2 << 20
"""Of the environments of all rows of all workers, as text: each answer to GetSampler has all of it, and clients take
messages of 4 MiB unless they are set otherwise."""


@dataclass(frozen=True)
class RowUpdates:
    """Updates that differ between the rows of a worker.

    Attributes:
        updates: for each row a whole environment, a change of the one that is there, or None to leave that as it is.
    """

    updates: tuple[EnvSpec | EnvChange | None, ...]


EnvUpdate = EnvSpec | EnvChange | RowUpdates
"""A whole environment, or a change of the one that is there: for all rows of a worker, or one for each."""


class EnvRoom:
    """How much text the environments of all rows of all workers may still be: all of it is kept, and told of."""

    def __init__(self, *, num_workers: int = 1, num_rows: int = 1) -> None:
        """Begins with none.

        Args:
            num_workers: how many workers each environment that comes counts for.
            num_rows: how many rows one counts for that all rows of a worker have.
        """
        self._num_workers = num_workers
        self._num_rows = num_rows
        self._num_bytes = 0
        # With the specs, so that none of them has the identity of an earlier one.
        self._sizes: dict[int, tuple[EnvSpec, int]] = {}

    @classmethod
    def of_updates(
        cls, held: Sequence[WorkerSpecs], updates: Sequence[EnvUpdate], num_rows: int, num_workers: int
    ) -> EnvRoom:
        """What there is for environments after updates.

        Args:
            held: the environments that are there, for each update.
            updates: what is new, for all workers or for each.
            num_rows: how many rows a worker has.
            num_workers: how many workers there are.
        """
        if not any(map(_makes_rows_differ, held, updates)):
            return cls()
        return cls(num_workers=num_workers if len(updates) == 1 else 1, num_rows=num_rows)

    def take(self, specs: WorkerSpecs) -> None:
        """Counts a worker's environments; raises OverLimitError if there is no room for them."""
        if isinstance(specs, RowSpecs):
            for spec in specs.specs:
                self.take_row(spec)
        else:
            self._count(specs, self._num_rows)

    def take_row(self, spec: EnvSpec) -> None:
        """The same of the environment of one row."""
        self._count(spec, 1)

    def _count(self, spec: EnvSpec, num_rows: int) -> None:
        if id(spec) not in self._sizes:
            self._sizes[id(spec)] = spec, _text_bytes(spec)
        _, size = self._sizes[id(spec)]
        self._num_bytes += size * num_rows * self._num_workers
        if self._num_bytes > MOST_ENV_BYTES:
            text = f"environments of all rows and workers of more than {MOST_ENV_BYTES} bytes, as text, came"
            raise OverLimitError(f"{text}, which is the most", reason=Reason.ENVIRONMENTS_TOO_LARGE)


def updated(specs: WorkerSpecs, update: EnvUpdate, num_rows: int, room: EnvRoom) -> WorkerSpecs:
    """A worker's environments after the update.

    Args:
        specs: those that are there.
        update: what is new.
        num_rows: how many rows a worker has.
        room: what there is for them.

    Raises:
        InvalidValueError: not one update for each row, or a row is to go on with an environment of EnvPool's.
        OverLimitError: there is no room for them.
    """
    if isinstance(update, EnvSpec):
        room.take(update)
        return update
    if isinstance(update, EnvChange) and isinstance(specs, EnvSpec):
        changed = update.applied_to(specs)
        room.take(changed)
        return changed
    updates = update.updates if isinstance(update, RowUpdates) else (update,) * num_rows
    if len(updates) != num_rows:
        expected = f"one for each of a worker's {num_rows} rows"
        raise InvalidValueError.of("per_row.updates", expected=expected, got=f"{len(updates)} elements")
    rows = []
    for row, (spec, each) in enumerate(zip(specs_of_rows(specs, num_rows), updates, strict=True)):
        rows.append(_updated_row(row, spec, each))
        room.take_row(rows[-1])  # before there are more of them than there is room for
    return RowSpecs(tuple(rows))


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


def _makes_rows_differ(specs: WorkerSpecs, update: EnvUpdate) -> bool:
    """Whether rows of a worker may have environments of their own after an update."""
    return isinstance(update, RowUpdates) or (isinstance(update, EnvChange) and isinstance(specs, RowSpecs))


def _text_bytes(spec: EnvSpec) -> int:
    """How long the names and arguments of an environment are as JSON."""
    wrappers = [[wrapper.name, dict(wrapper.kwargs)] for wrapper in spec.wrappers]
    task = spec.task and [spec.task.method, spec.task.argument]
    parts = [spec.id, dict(spec.kwargs), wrappers, task, dict(spec.reset_options)]
    # A program's own pool may have arguments that JSON has no place for.
    return len(json.dumps(parts, default=repr, skipkeys=True))
