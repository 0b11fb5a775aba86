"""The actions that a client sends for a step: checked as a whole, and divided among the workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.agents import FINITE, InfoSpec, first_bad_elements, kinds_of
from rollserve_server.envs import leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed, within
from rollserve_server.sampling import DrivenActions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_server.sampling import EnvDescription, External

__all__ = ["ActionForm", "StepActions", "check_info_size", "driven_agents"]

_MAX_INFO_BYTES = 4 << 20
"""Size of the infos of all rows in a step. The request that brings them is no larger."""


def check_info_size(external: External, num_rows: int) -> None:
    """Raise InvalidValueError for infos that no request can bring for so many rows and agents."""
    num_bytes = sum(info.dtype.itemsize * math.prod(info.shape) for info in external.infos)
    num_bytes *= num_rows * max(len(external.agents), 1)
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
        agents: where there are many agents, the actions and infos of each kind of them, (A, …), in place of the others.
        policy_version: version of the client's policy; None for the one of the actions before.
    """

    step: int
    actions: Mapping[str, np.ndarray]
    infos: Mapping[str, np.ndarray]
    idle: NDArray[np.bool_]
    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    agents: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]] = ()
    policy_version: int | None = None


def driven_agents(external: External, description: EnvDescription) -> External:
    """Return a client's acting with the names of all agents that it acts for.

    Raises:
        InvalidValueError: a name that no agent has, or that is there twice.
    """
    if not external.agents:
        return external._replace(agents=description.agents)
    for position, agent in enumerate(external.agents):
        field = f"agents[{position}]"
        if agent not in description.agents:
            expected = (
                f"one of the agents {listed(description.agents)}" if description.agents else "none with one agent"
            )
            raise InvalidValueError.of(field, expected=expected, got=repr(agent))
        if agent in external.agents[:position]:
            raise InvalidValueError.of(field, expected="each agent once", got=f"{agent!r} again")
    return external


class ActionForm:
    """The form of a session's actions."""

    def __init__(self, external: External, description: EnvDescription) -> None:
        """Prepare to check a client's actions in an environment."""
        spaces: tuple[Any, Any] = (description.observation_space, description.action_space)
        kinds = kinds_of(external.agents, description.agents, spaces).values()
        self._is_single = not description.agents
        of_kinds: list[Any] = [spaces[1]] if self._is_single else [spaces[1][kind[0]] for kind in kinds]
        self._kinds = [_KindForm(space, external.infos) for space in of_kinds]

    def divided(self, given: StepActions, wanted: Sequence[Sequence[int]]) -> list[DrivenActions]:
        """Return the actions of each worker.

        Args:
            given: actions of all workers.
            wanted: for each worker the number of actions that it wants of each kind.

        Raises:
            InvalidValueError: a column is missing, or has another form; or an action is not in the action space.
        """
        for field, numbers in (("rows", given.rows), ("row_step_counts", given.counts)):
            if len(numbers):
                raise InvalidValueError.of(field, expected="none without min_ready_row_count", got=len(numbers))
        totals = [sum(counts) for counts in zip(*wanted, strict=True)]
        if self._is_single:
            kinds = [self._kinds[0].columns(given.actions, given.infos, totals[0])]
            if len(given.idle) not in (0, totals[0]):
                raise InvalidValueError.of("idle", expected=f"{totals[0]} values, or none", got=len(given.idle))
        else:
            if len(given.agents) != len(totals) or len(given.idle):
                expected = f"actions of {len(totals)} kinds of agents, and no idle rows"
                got = f"{len(given.agents)} kinds, and {len(given.idle)} values of idle"
                raise InvalidValueError.of("agents", expected=expected, got=got)
            kinds = []
            for position, (form, its, total) in enumerate(zip(self._kinds, given.agents, totals, strict=True)):
                with within(f"agents[{position}]"):
                    kinds.append(form.columns(*its, total) if total or its != ({}, {}) else form.nothing)
        stops = np.cumsum(wanted, axis=0)
        return [
            DrivenActions(
                tuple(
                    each[rows].tobytes() for (actions, _), rows in zip(kinds, parts, strict=True) for each in actions
                ),
                tuple(each[rows].tobytes() for (_, infos), rows in zip(kinds, parts, strict=True) for each in infos),
                tuple(np.flatnonzero(given.idle[parts[0]]).tolist()),
            )
            for parts in (list(map(slice, ends - counts, ends)) for ends, counts in zip(stops, wanted, strict=True))
        ]

    def of_rows(
        self, given: StepActions, steps: NDArray[np.int64], shown: NDArray[np.int64], size: int
    ) -> dict[int, DrivenActions]:
        """Return the actions of each worker whose rows act; those of steps that are made already have no effect.

        Args:
            given: the actions.
            steps: for each worker, the number of steps whose actions its rows have got.
            shown: for each worker, how many of their steps the client was told of.
            size: number of rows of a worker.

        Raises:
            InvalidValueError: as of `divided`, or rows that do not wait for actions, or a part of a worker's.
        """
        rows, counts = given.rows, given.counts
        if len(given.idle):
            raise InvalidValueError.of("idle", expected="none with min_ready_row_count", got=len(given.idle))
        if len(counts) != len(rows):
            expected = f"{len(rows)} values, as rows has"
            raise InvalidValueError.of("row_step_counts", expected=expected, got=len(counts))
        num_rows = len(steps) * size
        are_known = len(rows) and rows.min() >= 0 and rows.max() < num_rows
        if not are_known or len(rows) != len(np.unique(rows)):
            expected = f"numbers of different rows, from 0 to {num_rows - 1}"
            raise InvalidValueError.of("rows", expected=expected, got=rows.tolist())
        actions, infos = self._kinds[0].columns(given.actions, given.infos, len(rows))
        workers = rows // size
        wrong = (counts > steps[workers]) | ((counts == steps[workers]) & (shown[workers] != counts))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            expected = f"{shown[workers[first]]}, as was shown of row {rows[first]}"
            raise InvalidValueError.of(f"row_step_counts[{first}]", expected=expected, got=int(counts[first]))
        positions = np.flatnonzero(counts == steps[workers])
        positions = positions[np.argsort(rows[positions])]
        found = {}
        for worker in np.unique(workers[positions]).tolist():
            its = positions[workers[positions] == worker]
            if len(its) < size:
                first = worker * size
                expected = f"all or none of the rows from {first} to {first + size - 1}, which step together"
                raise InvalidValueError.of("rows", expected=expected, got=rows[its].tolist())
            parts = (tuple(column[its].tobytes() for column in group) for group in (actions, infos))
            found[worker] = DrivenActions(*parts)
        return found


class _KindForm:
    """The form of the actions of one kind of agents.

    Attributes:
        nothing: columns without actions.
    """

    def __init__(self, action_space: Space[Any], infos: Sequence[InfoSpec]) -> None:
        leaves = leaves_of_space(action_space, "actions", texts=False)
        self._actions = [InfoSpec(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves]
        # As for agents, only integers have to be within the bounds.
        self._bounds = [None if leaf.dtype.kind == "f" else leaf_bounds(leaf) for leaf in leaves]
        self._infos = infos
        self.nothing = [[np.empty((0, *spec.shape), spec.dtype) for spec in specs] for specs in (self._actions, infos)]

    def columns(
        self, given: Mapping[str, np.ndarray], given_infos: Mapping[str, np.ndarray], num_rows: int
    ) -> list[list[np.ndarray]]:
        """Return the columns of actions and of infos, in their order; raise InvalidValueError as `ActionForm`."""
        actions = list(_columns("actions", self._actions, given, num_rows))
        infos = list(_columns("agent_infos", self._infos, given_infos, num_rows))
        for spec, column, bounds in zip(self._actions, actions, self._bounds, strict=True):
            _check(f"actions{_entry(spec)}", column, bounds)
        return [actions, infos]


def _columns(
    field: str, specs: Sequence[InfoSpec], given: Mapping[str, np.ndarray], num_rows: int
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
    """Raise InvalidValueError if an action is not in its space, or not finite."""
    flat = column.reshape(len(column), math.prod(column.shape[1:]))
    good = np.isfinite(flat) if bounds is None else (bounds[0] <= flat) & (flat <= bounds[1])
    if not good.all():
        row, value = next(first_bad_elements(flat, good))
        expected = FINITE if bounds is None else "an action in the action space"
        raise InvalidValueError.of(f"{field}[{row}]", expected=expected, got=value)


def _entry(spec: InfoSpec) -> str:
    return f"[{spec.name!r}]"
