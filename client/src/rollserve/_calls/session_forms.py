"""What steps and actions of sessions look like: with one agent in each row, together or apart, and with many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rollserve.driven_step import DrivenStep, read_driven_step, rows_of_step
from rollserve.multi_agent_step import MultiAgentStep, read_multi_agent_step
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.spaces import Dict, dtype_and_shape, named_leaves
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import typing_extensions
    from numpy.typing import NDArray

    from rollserve.multi_agent_step import Kind
    from rollserve_wire.spaces import Space

    # `typing.TypeVar` has defaults since Python 3.13, and the package that has them before is no requirement.
    Step = typing_extensions.TypeVar("Step", bound=DrivenStep | MultiAgentStep, default=DrivenStep)
else:
    Step = TypeVar("Step")

__all__ = ["AgentForm", "ManyForm", "ReadyForm", "SessionForm", "Step"]

_Form = Mapping[str, tuple[np.dtype, tuple[int, ...]]]
"""Dtype and shape of a row, by name."""


class SessionForm(ABC, Generic[Step]):
    """Reads steps, and writes actions.

    Attributes:
        num_unrecorded: number of steps that rows were asked to make, without those that rounds have brought.
    """

    def __init__(self, infos: Mapping[str, np.ndarray]) -> None:
        """Begin before the first step, given arrays (0, *I) of the infos that come with actions."""
        self.num_unrecorded = 0
        self._infos: _Form = {name: (array.dtype, array.shape[1:]) for name, array in infos.items()}
        self._number = -1  # of the last step

    @abstractmethod
    def begin(self, num_rows: int, agents: Sequence[str], action_space: Space, row_steps: int) -> None:
        """Take what is known once the session has begun: also how many steps of each row earlier rounds had."""

    def record(self, num_steps: int) -> None:
        """Count the steps of a round."""
        self.num_unrecorded = max(self.num_unrecorded - num_steps, 0)  # another client may have asked for some of them

    def news(self, data: memoryview) -> Step | None:
        """Return what is new in a serialized step: a session that was taken up again may show one twice.

        Raises:
            ValueError, UnusualError, IndexError, KeyError: it is malformed.
        """
        step = self._read(data)
        before, self._number = self._number, max(self._number, step.number)
        return step if step.number > before else None

    def has_followed(self, actions: pb.DrivenActions) -> bool:
        """Whether a step has followed all of these actions."""
        return actions.step < self._number

    @abstractmethod
    def _read(self, data: memoryview) -> Step:
        """Return a serialized step; raise as `news`."""

    @abstractmethod
    def actions(
        self, step: Any, actions: Any, rows: object, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DrivenActions:
        """Return the message with actions that follow a step; raise InvalidArgumentError if they have another form."""


class AgentForm(SessionForm[DrivenStep]):
    """Steps and actions of rows with one agent."""

    def begin(self, num_rows: int, agents: Sequence[str], action_space: Space, row_steps: int) -> None:
        self._num_rows, self._actions = num_rows, _form_of(action_space)

    def _read(self, data: memoryview) -> DrivenStep:
        return read_driven_step(data)

    def actions(
        self, step: Any, actions: Any, rows: object, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DrivenActions:
        if rows is not None:
            raise InvalidArgumentError.of("rows", expected="none, unless min_ready is given", got=rows)
        message = self._actions_of(step, actions, agent_infos, self._num_rows)
        if idle is not None:
            message.idle.extend(idle.tolist())
            self.num_unrecorded -= int(idle.sum())
        return message

    def _actions_of(self, step: DrivenStep, actions: Any, infos: Mapping[str, Any], num_rows: int) -> pb.DrivenActions:
        """Return the message with the actions of so many rows."""
        columns = _columns("actions", leaves_of(actions), self._actions, num_rows)
        sent = _columns("agent_infos", infos, self._infos, num_rows)
        self.num_unrecorded += num_rows
        return pb.DrivenActions(
            step=step.number, actions=named_tensors_to_proto(columns), agent_infos=named_tensors_to_proto(sent)
        )


class ReadyForm(AgentForm):
    """Steps and actions of rows with one agent that do not wait for each other."""

    def begin(self, num_rows: int, agents: Sequence[str], action_space: Space, row_steps: int) -> None:
        super().begin(num_rows, agents, action_space, row_steps)
        self._row_steps = np.full(num_rows, -1)  # how many steps each row has made

    def news(self, data: memoryview) -> DrivenStep | None:
        step = self._read(data)
        is_new = step.row_steps > self._row_steps[step.rows]
        self._row_steps[step.rows] = np.maximum(step.row_steps, self._row_steps[step.rows])
        if not is_new.any():
            return None
        return step if is_new.all() else rows_of_step(step, is_new)

    def has_followed(self, actions: pb.DrivenActions) -> bool:
        return bool((np.array(actions.row_step_counts) < self._row_steps[np.array(actions.rows)]).all())

    def actions(
        self, step: Any, actions: Any, rows: object, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DrivenActions:
        its = step.rows if rows is None else self._checked(np.asarray(rows))
        message = self._actions_of(step, actions, agent_infos, len(its))
        message.rows.extend(its.tolist())
        message.row_step_counts.extend(self._row_steps[its].tolist())
        return message

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        """Return rows that act; raise InvalidArgumentError for others than there are."""
        if rows.dtype.kind not in "iu" or rows.ndim != 1 or not ((rows >= 0) & (rows < self._num_rows)).all():
            raise InvalidArgumentError.of("rows", expected=f"numbers from 0 to {self._num_rows - 1}", got=rows)
        return rows


class ManyForm(SessionForm[MultiAgentStep]):
    """Steps and actions of rows with many agents."""

    def begin(self, num_rows: int, agents: Sequence[str], action_space: Space, row_steps: int) -> None:
        self._num_rows, self._agents = num_rows, agents
        self.num_unrecorded = -row_steps * num_rows  # steps have their numbers, also those that nobody asked for here
        assert isinstance(action_space, Dict)  # noqa: S101  # as environments with many agents have
        self._actions = {agent: _form_of(action_space[agent]) for agent in agents}
        self._kinds: list[Kind] = []

    def _read(self, data: memoryview) -> MultiAgentStep:
        step, self._kinds = read_multi_agent_step(data, self._agents)
        self.num_unrecorded += max(step.number - max(self._number, 0), 0) * self._num_rows
        return step

    def record(self, num_steps: int) -> None:
        self.num_unrecorded -= num_steps

    def actions(
        self, step: Any, actions: Any, rows: object, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DrivenActions:
        for field, given in (("rows", rows), ("idle", idle)):
            if given is not None:
                raise InvalidArgumentError.of(field, expected="none with many agents", got="some")
        acting = step.turns.keys()
        for field, given in (("actions", actions), ("agent_infos", agent_infos)):
            is_wanted = field == "actions" or self._infos
            if not isinstance(given, Mapping) or given.keys() != (acting if is_wanted else set()):
                expected = f"a mapping with the agents {list(acting) if is_wanted else []}"
                got = list(given) if isinstance(given, Mapping) else type(given).__name__
                raise InvalidArgumentError.of(field, expected=expected, got=got)
        infos = agent_infos if self._infos else {agent: {} for agent in acting}
        return pb.DrivenActions(step=step.number, agents=[self._of_kind(kind, actions, infos) for kind in self._kinds])

    def _of_kind(self, kind: Kind, actions: Mapping[str, Any], infos: Mapping[str, Any]) -> pb.AgentActions:
        """Return the actions and infos of the agents of a kind."""
        parts: list[tuple[NDArray[np.bool_], Mapping[str, np.ndarray], Mapping[str, np.ndarray]]] = []
        for position in np.unique(kind.agents).tolist():
            name, its = self._agents[position], kind.agents == position
            num_rows = int(its.sum())
            columns = _columns(f"actions[{name!r}]", leaves_of(actions[name]), self._actions[name], num_rows)
            parts.append((its, columns, _columns(f"agent_infos[{name!r}]", infos[name], self._infos, num_rows)))
        return pb.AgentActions(
            actions=named_tensors_to_proto(_merged([(its, columns) for its, columns, _ in parts])),
            agent_infos=named_tensors_to_proto(_merged([(its, infos) for its, _, infos in parts])),
        )


def _form_of(space: Space) -> _Form:
    return {name: dtype_and_shape(leaf) for name, leaf in named_leaves(space).items()}


def _merged(parts: Sequence[tuple[NDArray[np.bool_], Mapping[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Return columns of all agents of a kind, given which rows of them each agent has."""
    merged: dict[str, np.ndarray] = {}
    for its, columns in parts:
        for name, column in columns.items():
            whole = merged.setdefault(name, np.empty((len(its), *column.shape[1:]), column.dtype))
            whole[its] = column
    return merged


def _columns(field: str, given: Mapping[str, Any], forms: _Form, num_rows: int) -> dict[str, np.ndarray]:
    """Return columns of actions or infos in their dtypes; raise InvalidArgumentError if they have another form."""
    if given.keys() != forms.keys():
        what = "infos" if field.startswith("agent_infos") else "leaves"
        raise InvalidArgumentError.of(field, expected=f"the {what} {list(forms)}", got=list(given))
    return {name: _column(field, name, given[name], *form, num_rows) for name, form in forms.items()}


def _column(field: str, name: str, given: object, dtype: np.dtype, shape: tuple[int, ...], num_rows: int) -> np.ndarray:
    array, expected_shape = np.asarray(given), (num_rows, *shape)
    what = f"{field}[{name!r}]" if name else field
    if array.shape != expected_shape:
        raise InvalidArgumentError.of(what, expected=f"shape {expected_shape}", got=f"shape {array.shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgumentError.of(what, expected=f"dtype {dtype}", got=f"dtype {array.dtype}")
    return array.astype(dtype, copy=False)
