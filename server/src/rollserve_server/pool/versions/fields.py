"""Fields of update requests, for the paths in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError, joined
from rollserve_wire.environments import EnvChange, EnvSpec

if TYPE_CHECKING:
    from rollserve_server.pool.interface.updates import EnvUpdate

__all__ = ["ALL_WORKERS", "EnvFields", "element_field"]

ALL_WORKERS = "all_workers"
"""Field of an update request that has one update for all workers."""


def element_field(index: int, *, per_worker: bool, field: str = ALL_WORKERS) -> str:
    """Return the field of a request that a worker's update comes from, given the one of an update for all workers."""
    return f"per_worker.updates[{index}]" if per_worker else field


class EnvFields:
    """The fields of an UpdateEnv request that workers' environments come from."""

    def __init__(self, updates: Sequence[EnvUpdate | None], *, per_worker: bool) -> None:
        """Take the update of each worker, and whether the request has one for each."""
        self._updates = updates
        self._per_worker = per_worker

    @contextlib.contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Prefix the fields of errors about a worker's environments with the path in the request."""
        try:
            yield
        except DomainError as error:
            element = element_field(worker, per_worker=self._per_worker)
            error.field = joined(joined(element, _field_in(self._updates[worker], error.row)), error.field)
            raise


def _field_in(update: EnvUpdate | None, row: int | None) -> str:
    """Return the field of an EnvironmentUpdate that a row's environment comes from; empty if the update keeps it."""
    match update:
        case None:
            return ""
        case EnvSpec():
            return "environment"
        case EnvChange():
            return "change"
    if row is None:
        return "per_row"
    element = update.updates[row]
    return joined(f"per_row.updates[{row}]", _field_in(element, None))
