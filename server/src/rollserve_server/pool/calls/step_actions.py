"""The actions that a client sends for a step: checked as a whole, and divided among the workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.agents import FINITE, InfoSpec, first_bad_elements
from rollserve_server.envs import leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.sampling import DrivenActions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["ActionForm", "StepActions", "check_info_size"]

_MAX_INFO_BYTES = 4 << 20
"""Size of the infos of all rows in a step. The request that brings them is no larger."""


def check_info_size(infos: Sequence[InfoSpec], num_rows: int) -> None:
    """Raise InvalidValueError for infos that no request can bring for so many rows."""
    num_bytes = num_rows * sum(info.dtype.itemsize * math.prod(info.shape) for info in infos)
    if num_bytes > _MAX_INFO_BYTES:
        expected = f"infos of at most {_MAX_INFO_BYTES} bytes in all {num_rows} rows"
        raise InvalidValueError.of("agent_infos", expected=expected, got=f"{num_bytes} bytes")


class StepActions(NamedTuple):
    """A client's actions of one step in N rows.

    Attributes:
        step: number of the last step that the client was told of.
        actions: for each leaf of the action space, by name, (N, *A).
        infos: for each info, by name, (N, *I).
        idle: (N,) bool, whether a row makes no step; empty if all rows do.
        rows: (N,), the numbers of the rows; empty for all rows of all workers.
        counts: (N,), how many steps each of them has made; empty for all rows.
    """

    step: int
    actions: Mapping[str, np.ndarray]
    infos: Mapping[str, np.ndarray]
    idle: NDArray[np.bool_]
    rows: NDArray[np.int64]
    counts: NDArray[np.int64]


class ActionForm:
    """The form of a session's actions, and how many rows each worker has."""

    def __init__(self, action_space: Space[Any], infos: Sequence[InfoSpec], num_rows: int, num_workers: int) -> None:
        """Prepare to check actions.

        Args:
            action_space: action space of a row.
            infos: infos that come with the actions.
            num_rows: number of rows of all workers.
            num_workers: number of workers.
        """
        leaves = leaves_of_space(action_space, "actions", texts=False)
        self._actions = [InfoSpec(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves]
        # As for agents, only integers have to be within the bounds.
        self._bounds = [None if leaf.dtype.kind == "f" else leaf_bounds(leaf) for leaf in leaves]
        self._infos = infos
        self._num_rows, self._num_workers = num_rows, num_workers

    def divided(self, given: StepActions) -> list[DrivenActions]:
        """Return the actions of each worker.

        Raises:
            InvalidValueError: a column is missing, or has another form; or an action is not in the action space.
        """
        for field, got in (("rows", given.rows), ("row_step_counts", given.counts)):
            if len(got):
                raise InvalidValueError.of(field, expected="none without min_ready_row_count", got=len(got))
        actions, infos = self._checked(given, self._num_rows)
        if len(given.idle) not in (0, self._num_rows):
            raise InvalidValueError.of("idle", expected=f"{self._num_rows} values, or none", got=len(given.idle))
        size = self._num_rows // self._num_workers
        parts = [slice(start, start + size) for start in range(0, self._num_rows, size)]
        return [
            DrivenActions(
                tuple(each[rows].tobytes() for each in actions),
                tuple(each[rows].tobytes() for each in infos),
                tuple(np.flatnonzero(given.idle[rows]).tolist()),
            )
            for rows in parts
        ]

    def of_rows(
        self, given: StepActions, steps: NDArray[np.int64], shown: NDArray[np.int64]
    ) -> dict[int, DrivenActions]:
        """Return the actions of each worker whose rows act; those of steps that are made already have no effect.

        Args:
            given: the actions.
            steps: (N,), number of steps whose actions each row has got.
            shown: (N,), how many steps of each row the client was told of.

        Raises:
            InvalidValueError: as of `divided`, or rows that do not wait for actions, or a part of a worker's.
        """
        rows, counts, size = given.rows, given.counts, self._num_rows // self._num_workers
        if len(given.idle):
            raise InvalidValueError.of("idle", expected="none with min_ready_row_count", got=len(given.idle))
        if len(counts) != len(rows):
            expected = f"{len(rows)} values, as rows has"
            raise InvalidValueError.of("row_step_counts", expected=expected, got=len(counts))
        are_known = len(rows) and rows.min() >= 0 and rows.max() < self._num_rows
        if not are_known or len(rows) != len(np.unique(rows)):
            expected = f"numbers of different rows, from 0 to {self._num_rows - 1}"
            raise InvalidValueError.of("rows", expected=expected, got=rows.tolist())
        actions, infos = self._checked(given, len(rows))
        wrong = (counts > steps[rows]) | ((counts == steps[rows]) & (shown[rows] != counts))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            expected = f"{shown[rows[first]]}, as was shown of row {rows[first]}"
            raise InvalidValueError.of(f"row_step_counts[{first}]", expected=expected, got=int(counts[first]))
        positions = np.flatnonzero(counts == steps[rows])
        positions = positions[np.argsort(rows[positions])]
        found = {}
        for worker in np.unique(rows[positions] // size).tolist():
            its = positions[rows[positions] // size == worker]
            if len(its) < size:
                first = worker * size
                expected = f"all or none of the rows from {first} to {first + size - 1}, which are stepped at once"
                raise InvalidValueError.of("rows", expected=expected, got=rows[its].tolist())
            parts = (tuple(column[its].tobytes() for column in group) for group in (actions, infos))
            found[worker] = DrivenActions(*parts)
        return found

    def _checked(self, given: StepActions, num_rows: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the columns of actions and infos in their order; raise InvalidValueError for bad ones."""
        actions = list(self._columns("actions", self._actions, given.actions, num_rows))
        infos = list(self._columns("agent_infos", self._infos, given.infos, num_rows))
        for spec, column, bounds in zip(self._actions, actions, self._bounds, strict=True):
            _check(f"actions{_entry(spec)}", column, bounds)
        return actions, infos

    def _columns(
        self, field: str, specs: Sequence[InfoSpec], given: Mapping[str, np.ndarray], num_rows: int
    ) -> Iterator[np.ndarray]:
        """Yield the columns in their order."""
        if given.keys() != {spec.name for spec in specs}:
            expected = " and ".join(repr(spec.name) for spec in specs) or "none"
            got = " and ".join(map(repr, given)) or "none"
            raise InvalidValueError.of(field, expected=f"the tensors {expected}", got=got)
        for spec in specs:
            column, shape = given[spec.name], (num_rows, *spec.shape)
            if (column.dtype, column.shape) != (spec.dtype, shape):
                expected, got = f"{spec.dtype} of shape {shape}", f"{column.dtype} of shape {column.shape}"
                raise InvalidValueError.of(f"{field}{_entry(spec)}", expected=expected, got=got)
            yield column


def _check(field: str, column: np.ndarray, bounds: tuple[np.ndarray, np.ndarray] | None) -> None:
    flat = column.reshape(len(column), -1)
    good = np.isfinite(flat) if bounds is None else (bounds[0] <= flat) & (flat <= bounds[1])
    if not good.all():
        row, value = next(first_bad_elements(flat, good))
        expected = FINITE if bounds is None else "an action in the action space"
        raise InvalidValueError.of(f"{field}[{row}]", expected=expected, got=value)


def _entry(spec: InfoSpec) -> str:
    return f"[{spec.name!r}]"
