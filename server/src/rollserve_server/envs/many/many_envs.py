"""Rows of environments with many agents, stepped one by one."""

from __future__ import annotations

import copy
import functools
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.columns import (
    assemble_rows,
    check_observations,
    check_precision,
    check_rewards,
    store_observation,
)
from rollserve_server.envs.determinism import (
    QUICK_SECONDS,
    QUICK_STEPS,
    Trace,
    Traces,
    differences,
    digest,
    numbers_in,
    trace_name,
)
from rollserve_server.envs.leaves import Leaf, any_value, leaves_of_space
from rollserve_server.envs.legal_actions import legal_action, random_value
from rollserve_server.envs.making import close_env
from rollserve_server.envs.many.making import make_turn_env
from rollserve_server.envs.outcomes import ReturnedError, failure_text, infos_of
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_wire.environments import EnvSpec, Reproducibility

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollserve_server.envs.many.turns import AgentTurn

__all__ = ["ManyEnvs"]


class ManyEnvs:
    """M equal environments with P possible agents each. The caller says which rows step, and resets them.

    Observations are in columns of M * P places; agent p of row m has the place m * P + p. Agents with equal leaves of
    their observation spaces share columns.

    Attributes:
        num_rows: M.
        agents: names of the P possible agents.
        observation_spaces, action_spaces: spaces of each agent.
        observation_space, action_space: Dict spaces that have the agents' spaces by their names.
        observation_leaves: leaves of all agents' observation spaces.
        action_leaves: leaves of each agent's action space.
        max_acting: largest number of agents that act in one step of a row.
        global_state_leaf: leaf of the global state's space; None unless the spec asks for the state.
        checks_observations: whether an observation with NaN or outside its space, or a reward that is not finite, is an
            error.
        traces: of the last `classify`.
    """

    def __init__(self, spec: EnvSpec, num_rows: int, callbacks: Sequence[str] = ()) -> None:
        """Make the environments.

        Args:
            spec: environment of all rows.
            num_rows: M.
            callbacks: names of callbacks, which environments with many agents have none of.

        Raises:
            NotFoundError, InvalidValueError: an environment cannot be made, see `make_turn_env`; or there are
                callbacks.
        """
        if callbacks:
            expected = "none on a server with callbacks (--callback), which see one agent only"
            raise InvalidValueError.of("multi_agent", expected=expected, got=repr(spec.multi_agent))
        self.num_rows = num_rows
        self.checks_observations = False
        self.traces: Traces = {}
        self._checks_precision = False
        self._spec = spec
        self._activity = current_activity()
        self._broken: set[int] = set()
        self._envs = [make_turn_env(spec)]
        try:
            self._describe()
            self._envs += [make_turn_env(spec) for _ in range(1, num_rows)]
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        first = self._envs[0]
        self.agents, self.max_acting = first.agents, first.max_acting
        self.observation_spaces, self.action_spaces = first.observation_spaces, first.action_spaces
        spaces = dict(zip(self.agents, self.observation_spaces, strict=True))
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Dict(dict(zip(self.agents, self.action_spaces, strict=True)))
        self.observation_leaves = leaves_of_space(self.observation_space, "observations")
        self._leaves = [leaves_of_space(space, "observations") for space in self.observation_spaces]
        leaves_of_space(self.action_space, "actions", texts=False)  # with the agents' names in errors
        self.action_leaves = [leaves_of_space(space, "actions", texts=False) for space in self.action_spaces]
        self.global_state_leaf = _state_leaf(first.state_space) if self._spec.global_state else None
        forms = [_form(leaves) for leaves in self._leaves]
        of_form = dict(zip(forms, self._leaves, strict=True))
        columns = {form: self._new_columns(leaves) for form, leaves in of_form.items()}
        self._columns = [columns[form] for form in forms]

    def _new_columns(self, leaves: Sequence[Leaf]) -> list[np.ndarray]:
        num_places = self.num_rows * len(self.agents)
        return [np.repeat(any_value(leaf)[np.newaxis], num_places, axis=0) for leaf in leaves]

    @property
    def raw_observation_leaves(self) -> Sequence[Leaf]:
        """Leaves of all agents' observation spaces; there are no transforms."""
        return self.observation_leaves

    @property
    def text_info_bytes(self) -> int:
        """Bytes of each text among the infos; 0 for no texts."""
        return self._spec.text_info_bytes

    @property
    def max_episode_steps(self) -> None:
        """Step limit of the environment: PettingZoo registers none."""
        return

    def observations(self, agent: int) -> Sequence[np.ndarray]:
        """Return the columns (M * P, *O) that have the last observations of an agent, one for each leaf."""
        return self._columns[agent]

    def observation(self, row: int, agent: int) -> list[np.ndarray]:
        """Return a copy of the last observation (*O) of an agent of a row, for each leaf."""
        return [column[row * len(self.agents) + agent].copy() for column in self._columns[agent]]

    def agent_leaves(self, agent: int) -> Sequence[Leaf]:
        """Return the leaves of an agent's observation space."""
        return self._leaves[agent]

    def actions(self, agent: int, columns: Sequence[np.ndarray], num_rows: int) -> list[Any]:
        """Return K actions of an agent's space from (K, *A) for each of its leaves; arrays are views."""
        return assemble_rows(self.action_spaces[agent], iter(columns), num_rows)

    def global_state(self, row: int) -> np.ndarray:
        """Return the global state of a row, (*S), in a new array.

        Raises:
            EnvFailedError: as of `step`; also if the state does not fit its space.
        """
        leaf = self.global_state_leaf
        assert leaf is not None  # noqa: S101  # the spec asks for it
        column = np.empty((1, *leaf.shape), leaf.dtype)
        try:
            found = self._envs[row].state()
            if self._checks_precision:
                check_precision(found, [leaf])
            store_observation(found, [leaf], [column], 0)
        except BaseException as error:
            raise self._failure("state", row, error) from error
        state: np.ndarray = column.reshape(leaf.shape)
        return state

    def check_precision(self) -> None:
        """Make observations of wider floats than their space announces an error from now on, instead of rounding."""
        self._checks_precision = True

    def reset(self, row: int, seed: int) -> Sequence[AgentTurn]:
        """Begin an episode in a row, and return the first turns, whose observations are in the columns.

        Raises:
            EnvFailedError: the environment raised an error or has no agent that acts, an observation does not fit its
                space, or the environment failed before and cannot be made again.
        """
        return self._turns("reset", row, Phase.RESET, functools.partial(self._reset, row, seed))

    def step(self, row: int, actions: Mapping[int, Any]) -> Sequence[AgentTurn]:
        """Make a step of a row, and return the next turns, whose observations are in the columns.

        Args:
            row: index of the row.
            actions: action of each agent that acts, by its position.

        Raises:
            EnvFailedError: as of `reset`. The next `reset` of the row makes a new environment.
        """
        return self._turns("step", row, Phase.STEP, lambda: self._envs[row].step(actions))

    def cut(self, row: int) -> Sequence[AgentTurn]:
        """Return the turns of the agents that wait for theirs where the caller ends an episode.

        Raises:
            EnvFailedError: as of `step`.
        """
        return self._turns("observe", row, Phase.STEP, self._envs[row].cut)

    def fail(self, row: int, text: str) -> EnvFailedError:
        """Return the error of a row whose environment breaks the rules; the next `reset` makes a new one."""
        return self._failure("step", row, ReturnedError(text))

    def classify(self) -> Reproducibility:
        """Return the reproducibility class, by a quick check of up to two rows."""
        until = time.perf_counter() + QUICK_SECONDS
        try:
            first = self.trace(0, QUICK_STEPS, until)
            self.traces = {trace_name(self._spec): digest(first)}
            for row in (0, min(1, self.num_rows - 1)):
                found = differences(first, self.trace(0, QUICK_STEPS, until, row))
                if any(difference.counts for difference in found):
                    return Reproducibility.WORKER
        except EnvFailedError:  # sampling reports what is wrong
            return Reproducibility.EPISODE
        return Reproducibility.EPISODE

    def trace(self, seed: int, max_steps: int, until: float, row: int = 0) -> Trace:
        """Run an episode with random actions, legal ones if an agent shows a mask.

        Raises:
            EnvFailedError: the environment failed.
        """
        spaces = [copy.deepcopy(space) for space in self.action_spaces]
        for position, space in enumerate(spaces):
            space.seed(seed + position)
        turns = self.reset(row, seed)
        steps = [self._numbers(turns, "episode_infos")]
        for _ in range(max_steps):
            self._activity.count += 1  # shows that the environment does not hang
            acting = [turn for turn in turns if not turn.ended]
            if not acting:
                break
            actions = {}
            for turn in acting:
                space = spaces[turn.agent]
                actions[turn.agent] = legal_action(space, random_value(space), turn.observation, turn.info)
            turns = self.step(row, actions)
            steps.append(self._numbers(turns, "environment_infos"))
            if time.perf_counter() > until:
                break
        return Trace(seed, steps)

    def close(self) -> None:
        """Close the environments."""
        for row, env in enumerate(self._envs):
            if row not in self._broken:
                close_env(env)

    def _reset(self, row: int, seed: int) -> Sequence[AgentTurn]:
        if row in self._broken:
            self._envs[row] = make_turn_env(self._spec)
            self._broken.discard(row)
            self._activity.begin(Phase.RESET, row)
        # Copy the options, because environments may change their arguments.
        options = copy.deepcopy(dict(self._spec.reset_options)) if self._spec.reset_options else None
        turns = self._envs[row].reset(seed, options)
        if all(turn.ended for turn in turns):
            raise ReturnedError("agents: expected one that acts after a reset, got none")
        return turns

    def _turns(self, what: str, row: int, phase: Phase, make: Callable[[], Sequence[AgentTurn]]) -> Sequence[AgentTurn]:
        """Return what `make` does, with observations in the columns and infos that are nobody else's."""
        self._activity.begin(phase, row)
        try:
            turns = [turn._replace(info=infos_of(turn.info)) if turn.info else turn for turn in make()]
            latest: dict[int, int] = {}
            for number, turn in enumerate(turns):
                if turn.agent in latest:
                    earlier = latest[turn.agent]
                    turns[earlier] = turns[earlier]._replace(columns=self.observation(row, turn.agent))
                latest[turn.agent] = number
                self._store(row, turn)
        except BaseException as error:
            raise self._failure(what, row, error) from error
        self._activity.end()
        return turns

    def _store(self, row: int, turn: AgentTurn) -> None:
        leaves, columns = self._leaves[turn.agent], self._columns[turn.agent]
        place = row * len(self.agents) + turn.agent
        try:
            if self._checks_precision:
                check_precision(turn.observation, leaves)
            store_observation(turn.observation, leaves, columns, place)
            if self.checks_observations:
                check_observations(leaves, columns, (place,))
                check_rewards([turn.reward], (0,))
        except ValueError as error:
            raise ReturnedError(f"agent {self.agents[turn.agent]!r}: {error}") from None

    def _failure(self, what: str, row: int, error: BaseException) -> EnvFailedError:
        """Return the error for the caller, and close the environment, which a new one will replace."""
        if row not in self._broken:
            close_env(self._envs[row])
            self._broken.add(row)
        return EnvFailedError(failure_text(self._spec.id, what, error), row)

    def _numbers(self, turns: Sequence[AgentTurn], infos: str) -> Mapping[str, np.ndarray]:
        values: dict[str, dict[str, Any]] = {"observations": {}, "rewards": {}, "flags": {}, infos: {}}
        for turn in turns:
            agent = self.agents[turn.agent]
            values["observations"][agent], values["rewards"][agent] = turn.observation, turn.reward
            values["flags"][agent], values[infos][agent] = (turn.terminated, turn.truncated), turn.info
        return numbers_in(values)


def _state_leaf(space: Any) -> Leaf:
    """Return the leaf of a global state, which has to be a single array."""
    leaves = leaves_of_space(space, "global_state", texts=False)
    if len(leaves) != 1 or leaves[0].path:
        expected = "false for an environment whose global state is no single array"
        raise InvalidValueError.of("global_state", expected=expected, got=f"true, for {space}")
    return leaves[0]


def _form(leaves: Sequence[Leaf]) -> Any:
    """Return what the columns of leaves depend on."""
    return tuple((leaf.name, leaf.dtype.str, leaf.shape, any_value(leaf).tobytes()) for leaf in leaves)
