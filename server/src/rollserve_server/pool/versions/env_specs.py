"""Environment specs after updates, within the text that `GetSampler` can answer with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from rollserve_server.envs import RowSpecs, WorkerSpecs, requested, specs_of_rows
from rollserve_server.errors import InvalidValueError, OverLimitError, within
from rollserve_server.pool.requests import EnvUpdate, RowUpdates
from rollserve_wire.environments import EnvChange, EnvSpec
from rollserve_wire.reasons import Reason

__all__ = ["MAX_ENV_BYTES", "EnvBudget", "check_text_infos", "updated_specs"]

MAX_ENV_BYTES = 2 << 20
"""JSON bytes of the environments of all rows of all workers: each answer to GetSampler holds all of it, and clients
accept messages of 4 MiB by default."""


_Updated = Callable[[EnvSpec, EnvSpec | EnvChange], EnvSpec]
"""Returns an environment after an update."""


class EnvBudget:
    """How much text the environments of all rows of all workers may still take."""

    def __init__(self, *, num_workers: int = 1, num_rows: int = 1) -> None:
        """Start with nothing spent.

        Args:
            num_workers: number of workers that each environment counts for.
            num_rows: number of rows that an environment of all rows of a worker counts for.
        """
        self._num_workers = num_workers
        self._num_rows = num_rows
        self._num_bytes = 0
        # Sizes by identity; the specs stay referenced so that no other one gets the same identity.
        self._sizes: dict[int, tuple[EnvSpec, int]] = {}

    @classmethod
    def for_updates(
        cls, current: Sequence[WorkerSpecs], updates: Sequence[EnvUpdate | None], num_rows: int, num_workers: int
    ) -> EnvBudget:
        """Return the budget for the environments after updates.

        Args:
            current: for each update, the environments that it changes.
            updates: one update for all workers, or one for each.
            num_rows: number of rows of a worker.
            num_workers: number of workers.
        """
        if not any(map(_makes_rows_differ, current, updates)):
            return cls()
        return cls(num_workers=num_workers if len(updates) == 1 else 1, num_rows=num_rows)

    def spend(self, specs: WorkerSpecs) -> None:
        """Count a worker's environments; raise OverLimitError if they exceed the budget."""
        if isinstance(specs, RowSpecs):
            for spec in specs.specs:
                self.spend_row(spec)
        else:
            self.spend_row(specs, self._num_rows)

    def spend_row(self, spec: EnvSpec, num_rows: int = 1) -> None:
        """Count the environment of one row, or of several rows; raise OverLimitError if it exceeds the budget."""
        if id(spec) not in self._sizes:
            self._sizes[id(spec)] = spec, _text_bytes(spec)
        _, size = self._sizes[id(spec)]
        self._num_bytes += size * num_rows * self._num_workers
        if self._num_bytes > MAX_ENV_BYTES:
            text = f"expected environments of all rows and workers of at most {MAX_ENV_BYTES} bytes as JSON, got more"
            raise OverLimitError(text, reason=Reason.ENVIRONMENTS_TOO_LARGE)


def updated_specs(
    specs: WorkerSpecs,
    update: EnvUpdate | None,
    num_rows: int,
    budget: EnvBudget,
    updated: _Updated,
    why_not_single: str = "",
) -> WorkerSpecs:
    """Return a worker's environments after an update.

    Args:
        specs: the environments before it.
        update: the update; None to keep them.
        num_rows: number of rows of a worker.
        budget: how much text all environments may take.
        updated: returns an environment after an update.
        why_not_single: why the environments before it cannot be stepped one by one; empty if they can.

    Raises:
        InvalidValueError: there is not one update for each row, or the environment before it would become a single
            row, although it cannot.
        OverLimitError: the environments exceed the budget.
    """
    if update is None:
        budget.spend(specs)
        return specs
    if isinstance(update, EnvSpec) or (isinstance(update, EnvChange) and isinstance(specs, EnvSpec)):
        before = specs if isinstance(specs, EnvSpec) else specs.specs[0]
        after = _updated(before, update, updated)
        budget.spend(after)
        return after
    differs = isinstance(update, RowUpdates)
    updates = update.updates if isinstance(update, RowUpdates) else (update,) * num_rows
    if len(updates) != num_rows:
        expected = f"{num_rows} elements, one for each row of a worker"
        raise InvalidValueError.of("per_row.updates", expected=expected, got=len(updates))
    rows = []
    for row, (spec, each) in enumerate(zip(specs_of_rows(specs, num_rows), updates, strict=True)):
        with within(f"per_row.updates[{row}]" if differs else ""):
            rows.append(_updated_row(spec, each, updated, why_not_single))
        budget.spend_row(rows[-1])  # at once, so that no more are made than the budget allows
    return RowSpecs(tuple(rows))


def check_text_infos(specs: Sequence[WorkerSpecs]) -> None:
    """Raise InvalidValueError unless the infos of all workers' environments have texts of the same size."""
    sizes = [spec.text_info_bytes for worker_specs in specs for spec in specs_of_rows(worker_specs, 1)]
    for size in sizes:
        if size != sizes[0]:
            expected = f"{sizes[0]}, as in the first row of the first worker"
            raise InvalidValueError.of("text_info_bytes", expected=expected, got=size)


def _updated_row(spec: EnvSpec, update: EnvSpec | EnvChange | None, updated: _Updated, why_not_single: str) -> EnvSpec:
    if isinstance(update, EnvSpec):
        return _updated(spec, update, updated)
    if why_not_single:
        expected = "an environment, because rows that differ are stepped one by one"
        got = "a change" if update else f"none, which keeps {requested(spec).id}"
        raise InvalidValueError.of("", expected=expected, got=got, hint=why_not_single)
    after = spec if update is None else _updated(spec, update, updated)
    # The choice of native code was made for rows that are alike.
    return dataclasses.replace(after, vectorization=None) if after.vectorization == "native" else after


def _updated(spec: EnvSpec, update: EnvSpec | EnvChange, updated: _Updated) -> EnvSpec:
    with within("environment" if isinstance(update, EnvSpec) else "change"):
        return updated(spec, update)


def _makes_rows_differ(specs: WorkerSpecs, update: EnvUpdate | None) -> bool:
    """Whether the rows of a worker may have environments of their own after an update."""
    return isinstance(update, RowUpdates) or (isinstance(update, EnvChange | None) and isinstance(specs, RowSpecs))


def _text_bytes(spec: EnvSpec) -> int:
    """Return the length of an environment's names and arguments as JSON."""
    wrappers = [[wrapper.name, dict(wrapper.kwargs)] for wrapper in spec.wrappers]
    task = spec.task and [spec.task.method, spec.task.argument]
    parts = [spec.id, dict(spec.kwargs), wrappers, task, dict(spec.reset_options), list(spec.transforms)]
    # A pool that is used without a gateway may have arguments that JSON cannot hold.
    return len(json.dumps(parts, default=repr, skipkeys=True))
