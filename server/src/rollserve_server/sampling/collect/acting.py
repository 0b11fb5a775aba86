"""An agent in rows: its actions, and what it gets beside observations, which the code that steps rows keeps."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.activity import current_activity
from rollserve_server.agents import VALUE, is_without_choice, legal_values
from rollserve_server.errors import AgentFailedError, EpisodeFailedError
from rollserve_server.sampling.collect.noise import unused_noise
from rollserve_server.sampling.record.infos import InfoKey
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from rollserve_server.agents import ActionMask, Agent, Decision, InfoSpec, LeafMask, PolicyAgents
    from rollserve_server.envs import Leaf, VectorEnvs
    from rollserve_server.sampling.protocol import RecurrentState
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["NUMBER", "Evaluator", "MaskInput", "RecurrentStates", "act", "column_keys", "evaluators_of", "mask_input"]


def act(
    agent: Agent,
    mask: MaskInput | None,
    observations: Sequence[np.ndarray],
    noise: np.ndarray,
    states: Sequence[np.ndarray],
    rows: Callable[[], Sequence[int]],
    located: Callable[[AgentFailedError], EpisodeFailedError],
) -> Decision:
    """Return the agent's actions and infos for M rows, and update its states; see `Agent.act`.

    Args:
        agent: the agent.
        mask: action masks of the rows; None if the agent has none.
        observations: for each leaf of the observation space (M, *O).
        noise: (M, K), random numbers of the rows' actions.
        states: for each of the agent's states (M, *S).
        rows: returns the rows in use; called only after an error. Errors in other rows are ignored.
        located: returns an error of a row with the episode that it was raised in.

    Raises:
        AgentFailedError: the agent raised an error, or its output or mask for a row in use is invalid. The error has
            the row.
    """
    if mask is not None:
        observations = [*observations, mask.column(observations)]
        if mask.failures:
            _raise_first(mask.failures, rows, located)
    activity = current_activity()
    activity.begin_step()
    try:
        decision = agent.act(observations, noise, states)
    except AgentFailedError as error:
        raise located(AgentFailedError(error.text, next(iter(rows()), 0))) from error
    activity.end()
    if failures := agent.failures():
        _raise_first(failures, rows, located)
    return decision


def _raise_first(
    failures: Mapping[int, str],
    rows: Callable[[], Sequence[int]],
    located: Callable[[AgentFailedError], EpisodeFailedError],
) -> None:
    """Raise the error of the first row in use that failed, if one did."""
    for row in rows():
        if row in failures:
            raise located(AgentFailedError(failures[row], row))


class RecurrentStates:
    """An agent's recurrent states of M rows.

    Attributes:
        columns: for each state (M, *S), read and updated by `Agent.act`; empty if the agent has no states.
    """

    def __init__(self, num_rows: int, agent: Agent, previous: Sequence[RecurrentState] = ()) -> None:
        """Begin with the initial states, or go on with each row's previous one where they match; see `take`."""
        self._agent = agent  # whose states are read at each use: members of a population may have their own
        self._num_rows = num_rows
        self.columns = [np.repeat(spec.initial[np.newaxis], num_rows, axis=0) for spec in agent.states]
        for row, state in enumerate(previous if self.columns else ()):
            self.take(row, state)

    def begin(self, rows: int | Sequence[int] | NDArray[np.int64]) -> None:
        """Set the agent's initial states in rows that begin an episode."""
        for column, spec in zip(self.columns, self._agent.states, strict=True):
            column[rows] = spec.initial

    def take(self, row: int, previous: RecurrentState) -> None:
        """Go on with a state, perhaps another agent's, if names, dtypes and shapes match; else begin."""
        specs = self._agent.states
        self.begin(row)
        if {name: (state.dtype, state.shape) for name, state in previous} == {
            spec.name: (spec.initial.dtype, spec.initial.shape) for spec in specs
        }:
            states = dict(previous)
            for column, spec in zip(self.columns, specs, strict=True):
                column[row] = states[spec.name]

    def take_rewards(self, rewards: float | np.ndarray, rows: int | slice = slice(None)) -> None:
        """Keep the rewards of a step of some rows, or of all, for an agent that gets them at the next one."""
        if self._agent.reward_state is not None:
            self.columns[self._agent.reward_state][rows] = rewards

    def named(self, row: int) -> RecurrentState:
        """Return a copy of a row's states, with their names."""
        columns = zip(self._agent.states, self.columns, strict=True)
        return tuple((spec.name, np.array(column[row])) for spec, column in columns)

    def of_row(self, row: int) -> Sequence[np.ndarray]:
        """Return a copy of each state of a row, (*S)."""
        return [column[row].copy() for column in self.columns] if self.columns else ()

    def of_rows(self, rows: NDArray[np.int64]) -> Sequence[np.ndarray]:
        """Return a copy of each state of some rows, (rows, *S)."""
        return [column[rows] for column in self.columns]

    def copies(self) -> list[RecurrentState]:
        """Return a copy of each row's states."""
        if not self.columns:
            return [()] * self._num_rows
        names = [spec.name for spec in self._agent.states]
        copies = [column.copy() for column in self.columns]
        return [tuple(zip(names, (copy[row] for copy in copies), strict=True)) for row in range(self._num_rows)]


NUMBER = InfoKey("", np.dtype(np.float64), ())
"""Leaf of a column that has one number in each row."""


def column_keys(
    agent: Agent,
    reader: InfoReader,
    observation_leaves: Sequence[Leaf],
    action_leaves: Sequence[Leaf],
    outcomes: Iterable[tuple[str, Sequence[Leaf | InfoKey]]] = (("rewards", (NUMBER,)),),
) -> Iterator[ColumnKey]:
    """Yield the keys of the columns that every step has; one reader gives equal columns of two agents one key.

    Args:
        agent: the agent.
        reader: makes the keys.
        observation_leaves: leaves of the observations.
        action_leaves: leaves of the agent's actions.
        outcomes: columns that follow from the actions, and their leaves.
    """
    groups: list[tuple[str, Sequence[Leaf | InfoKey | InfoSpec]]] = [
        ("observations", observation_leaves),
        ("actions", action_leaves),
        *outcomes,
        ("agent_infos", agent.infos),
    ]
    for group, leaves in groups:
        for leaf in leaves:
            yield group, reader.key(leaf.name, leaf.dtype, leaf.shape)
    for name, initial in agent.states:
        yield "states", reader.key(name, initial.dtype, initial.shape)


def mask_input(agent: Agent, num_rows: int) -> MaskInput | None:
    """Return the masks of an agent's rows; None if the agent has none."""
    return None if agent.mask is None else MaskInput(agent.mask, num_rows)


class MaskInput:
    """The action masks of the present observations of M rows.

    Attributes:
        failures: what is wrong with the masks at the last `column`, by row.
    """

    def __init__(self, mask: ActionMask, num_rows: int) -> None:
        """Begin without masks."""
        self.failures: Mapping[int, str] = {}
        self._mask = mask
        self._legal = np.zeros((num_rows, mask.size), np.bool_)
        # Which rows have shown a mask, and what is wrong with masks, by row.
        self._is_shown = np.zeros(num_rows, np.bool_)
        self._unread: dict[int, str] = {}
        self._name = "/".join(mask.info)

    def column(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        """Return the legal actions (M, S) bool; rows without a valid mask have only legal ones, and `failures`."""
        if self._mask.sources:
            self._clear()
            for leaf, source in zip(self._mask.leaves, self._mask.sources, strict=True):
                self._read_column(leaf, observations[source])
        empty = is_without_choice(self._legal, self._mask)
        if not empty.any():
            if self.failures:
                self.failures = {}
            return self._legal
        self.failures = {row: f"action mask: {self._text(row)}" for row in np.flatnonzero(empty).tolist()}
        legal = self._legal.copy()
        legal[empty] = True
        return legal

    def read_rows(self, infos: Iterable[tuple[int, Mapping[Any, Any]]]) -> None:
        """Take the masks from the infos of a step; rows that are missing have none."""
        if self._mask.sources:
            return
        self._clear()
        for row, info in infos:
            self.read_row(row, info)

    def read_row(self, row: int, info: Mapping[Any, Any]) -> None:
        """Take a row's mask from an info of its environment."""
        if self._mask.sources:
            return
        self._is_shown[row] = True
        self._unread.pop(row, None)
        for leaf in self._mask.leaves:
            if text := self._read_leaf(leaf, row, info):
                self._refuse(row, text)
                return

    def read_vector(self, envs: VectorEnvs, infos: Mapping[str, Any]) -> None:
        """Take the masks of all rows from the infos of a vector environment's reset or step."""
        if self._mask.sources:
            return
        self._clear()
        shown = [envs.shown_info(infos, (*self._mask.info, *map(str, leaf.path))) for leaf in self._mask.leaves]
        if all(isinstance(column, np.ndarray) and column.dtype.kind in "biuf" for column, _ in shown):
            for leaf, (column, present) in zip(self._mask.leaves, shown, strict=True):
                self._read_column(leaf, column, present)
            return
        self.read_rows(envs.shown_infos(infos, self._mask.info[0]))

    def read_recorded(self, infos: Sequence[tuple[np.ndarray, NDArray[np.bool_]] | None]) -> None:
        """Take the masks of all rows from recorded infos; values of leaves that have none are all legal.

        Args:
            infos: for each leaf of the mask, infos (M, *I) and the rows that have one, (M,); None if no row has one.
        """
        self._clear()
        for leaf, recorded in zip(self._mask.leaves, infos, strict=True):
            legal = self._legal[:, leaf.columns]
            good = np.zeros(len(legal), np.bool_)
            if recorded is not None and math.prod(recorded[0].shape[1:]) == leaf.num_shown:
                values, present = recorded
                good = legal_values(leaf, values.reshape(len(legal), -1), legal) & present
            legal[~good] = True

    def _clear(self) -> None:
        # A new array, because the last one is an info that may not be written yet.
        self._legal = np.zeros_like(self._legal)
        self._is_shown[:] = False
        self._unread = {}

    def _refuse(self, row: int, text: str) -> None:
        """Leave a row without legal actions, with the reason."""
        self._legal[row] = False
        self._unread.setdefault(row, text)

    def _read_leaf(self, leaf: LeafMask, row: int, info: Mapping[Any, Any]) -> str:
        """Take a leaf's mask of one row; return what is wrong with it, if anything."""
        legal = self._legal[row : row + 1, leaf.columns]
        value: Any = info
        try:
            for name in (*self._mask.info, *leaf.path):
                value = value[name]
        except (KeyError, TypeError, IndexError):
            return self._missing(leaf)
        if value is None and leaf.path:  # as `sample(mask)` of gymnasium's Dict and Tuple spaces takes it
            legal[...] = True
            return ""
        try:
            array = _flat(value)
        # Reading a value runs the environment's code, which may raise anything.
        except BaseException:
            return mismatch(f"an array of {leaf.num_shown} {_numbers(leaf)}{_of(leaf)}", type(value).__name__)
        if leaf.is_binary:
            array = array.ravel()
        if array.shape != (leaf.num_shown,) or array.dtype.kind not in "biuf":
            return mismatch(_expected_shape(leaf), f"{array.dtype} of shape {array.shape}")
        is_valid = legal_values(leaf, array[np.newaxis], legal)[0]
        return "" if is_valid else mismatch(f"{_numbers(leaf)}{_of(leaf)}", _first_other(leaf, array))

    def _read_column(self, leaf: LeafMask, column: np.ndarray, present: NDArray[np.bool_] | None = None) -> None:
        """Take a leaf's mask of the rows that are present (M,), or of all, from a column (M, *numbers)."""
        rows = np.ones(len(column), np.bool_) if present is None else present
        if leaf.is_binary:
            column = column.reshape(len(column), -1)
        if column.shape[1:] != (leaf.num_shown,):
            text = mismatch(_expected_shape(leaf), f"{column.dtype} of shape {column.shape[1:]}")
            for row in np.flatnonzero(rows).tolist():
                self._refuse(row, text)
            return
        self._is_shown |= rows
        good = legal_values(leaf, column, self._legal[:, leaf.columns]) & rows
        for row in np.flatnonzero(~good).tolist():
            text = mismatch(f"{_numbers(leaf)}{_of(leaf)}", _first_other(leaf, column[row]))
            self._refuse(row, text if rows[row] else self._missing(leaf))

    def _text(self, row: int) -> str:
        """Return what is wrong with a row's mask, which leaves no choice."""
        if row in self._unread:
            return self._unread[row]
        if not self._is_shown[row]:
            return self._missing(self._mask.leaves[0])
        num_elements = sum(len(leaf.counts) for leaf in self._mask.leaves)
        part = "action" if num_elements == 1 else "value of each element"
        return mismatch(f"at least one legal {part}", self._legal[row].astype(np.int8))

    def _missing(self, leaf: LeafMask) -> str:
        entry = f" with an entry {leaf.name!r}" if leaf.name else ""
        return mismatch(f"an info {self._name!r}{entry} with each observation of the environment", "none")


def _flat(value: Any) -> np.ndarray:
    """Return a mask as one array, from an array for each element if it is a list or tuple of such."""
    if isinstance(value, list | tuple) and value and not np.isscalar(value[0]):
        return np.concatenate([np.ravel(part) for part in value])
    return np.asarray(value)


def _numbers(leaf: LeafMask) -> str:
    return "zeros, ones and twos" if leaf.is_binary else "zeros and ones"


def _of(leaf: LeafMask) -> str:
    return f" for {leaf.name!r}" if leaf.name else ""


def _expected_shape(leaf: LeafMask) -> str:
    return f"numbers of shape {(leaf.num_shown,)}{_of(leaf)}"


def _first_other(leaf: LeafMask, shown: np.ndarray) -> Any:
    """Return the first number of a mask that masks do not have, or else their dtype."""
    others = shown[~np.isin(shown, (0, 1, 2) if leaf.is_binary else (0, 1))]
    return others[0] if len(others) else shown.dtype


class Evaluator:
    """Evaluates observations: what an agent's info `value` would be if it acted on them, whatever its noise is.

    Attributes:
        mask_infos: names of the environment's infos that have the action mask, one for each leaf with a mask; empty if
            there is none, or if it is part of the observations.
    """

    def __init__(self, agent: Agent, num_rows: int) -> None:
        """Evaluate with an agent that was built for `num_rows` rows that do not act together."""
        self._agent = agent
        self._num_rows = num_rows
        self._mask = mask_input(agent, num_rows)
        self.mask_infos: tuple[str, ...] = ()
        if agent.mask is not None and not agent.mask.sources:
            self.mask_infos = tuple("/".join(map(str, (*agent.mask.info, *leaf.path))) for leaf in agent.mask.leaves)
        (self._dtype,) = (info.dtype for info in agent.infos if info.name == VALUE.name)
        self._noise = unused_noise(num_rows, agent)

    def __call__(
        self,
        observations: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        episode_indices: Sequence[int],
        masks: Sequence[tuple[np.ndarray, NDArray[np.bool_]] | None] = (),
    ) -> np.ndarray:
        """Return the values (S,) of observations.

        Args:
            observations: for each leaf of the observation space (S, *O).
            states: for each of the agent's recurrent states (S, *H), the state before it would act.
            episode_indices: index of the episode that each observation belongs to.
            masks: for each of `mask_infos`, the infos that came with the observations (S, *I), and which are there
                (S,); None if none is. Where there is none, or an empty one, as at the end of an episode, all values are
                legal.

        Raises:
            AgentFailedError: the agent raised an error, or its output for an observation is invalid. The error names
                the episode.
        """
        num_values = len(episode_indices)
        values = np.empty(num_values, self._dtype)
        for start in range(0, num_values, self._num_rows):
            count = min(self._num_rows, num_values - start)
            rows = start + np.minimum(np.arange(self._num_rows), count - 1)  # the last one is repeated

            def located(error: AgentFailedError, first: int = start) -> AgentFailedError:
                index = episode_indices[first + error.row]
                return AgentFailedError(f"the value after a segment of episode {index}: {error.message}", 0, index)

            columns = [column[rows] for column in observations]
            if self._mask is not None:
                if masks:
                    self._mask.read_recorded([each and (each[0][rows], each[1][rows]) for each in masks])
                columns.append(self._mask.column(columns))
            _, infos = act(
                self._agent,
                None,
                columns,
                self._noise,
                [column[rows] for column in states],
                functools.partial(range, count),
                located,
            )
            values[start : start + count] = infos[VALUE.name][:count]
        return values


def evaluators_of(agents: PolicyAgents) -> Callable[[str, int], Evaluator]:
    """Return a function that returns the evaluator of a policy's version, made once it is needed."""

    @functools.cache
    def evaluator_of(name: str, version: int) -> Evaluator:
        policy = agents.policies[agents.names.index((name, version))]
        return Evaluator(policy.agent, policy.num_places)

    return evaluator_of
