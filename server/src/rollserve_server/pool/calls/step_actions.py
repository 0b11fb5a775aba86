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
    """A client's actions of one step in all N rows.

    Attributes:
        step: number of the step, counted from the beginning of the session.
        actions: for each leaf of the action space, by name, (N, *A).
        infos: for each info, by name, (N, *I).
        idle: (N,) bool, whether a row makes no step; empty if all rows do.
    """

    step: int
    actions: Mapping[str, np.ndarray]
    infos: Mapping[str, np.ndarray]
    idle: NDArray[np.bool_]


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
        actions = list(self._columns("actions", self._actions, given.actions))
        infos = list(self._columns("agent_infos", self._infos, given.infos))
        for spec, column, bounds in zip(self._actions, actions, self._bounds, strict=True):
            self._check(f"actions{_entry(spec)}", column, bounds)
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

    def _columns(self, field: str, specs: Sequence[InfoSpec], given: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the columns in their order."""
        if given.keys() != {spec.name for spec in specs}:
            expected = " and ".join(repr(spec.name) for spec in specs) or "none"
            got = " and ".join(map(repr, given)) or "none"
            raise InvalidValueError.of(field, expected=f"the tensors {expected}", got=got)
        for spec in specs:
            column, shape = given[spec.name], (self._num_rows, *spec.shape)
            if (column.dtype, column.shape) != (spec.dtype, shape):
                expected, got = f"{spec.dtype} of shape {shape}", f"{column.dtype} of shape {column.shape}"
                raise InvalidValueError.of(f"{field}{_entry(spec)}", expected=expected, got=got)
            yield column

    def _check(self, field: str, column: np.ndarray, bounds: tuple[np.ndarray, np.ndarray] | None) -> None:
        flat = column.reshape(self._num_rows, -1)
        good = np.isfinite(flat) if bounds is None else (bounds[0] <= flat) & (flat <= bounds[1])
        if not good.all():
            row, value = next(first_bad_elements(flat, good))
            expected = FINITE if bounds is None else "an action in the action space"
            raise InvalidValueError.of(f"{field}[{row}]", expected=expected, got=value)


def _entry(spec: InfoSpec) -> str:
    return f"[{spec.name!r}]"
