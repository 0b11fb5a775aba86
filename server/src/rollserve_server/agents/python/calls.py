"""Calls of a policy, with errors for whatever it raises or returns wrongly."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_server.agents.agent import ACTION_MASK, StateSpec
from rollserve_server.agents.finiteness import FINITE
from rollserve_server.agents.previous import PREVIOUS_ACTION, PREVIOUS_REWARD, action_states, reward_state
from rollserve_server.agents.python.arrays import (
    action_column,
    array_of,
    column_of,
    entry,
    misfit,
    name_of,
    values_of,
    wire_dtype,
)
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, InvalidValueError, describe, listed, show
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.python_policy import PythonPolicy
    from rollserve_server.envs import Leaf

__all__ = ["PolicyCalls", "PolicyResult"]

_INPUTS = (ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD)
_MAX_NOISE_WIDTH = 1 << 16  # noise is drawn for many steps ahead


class PolicyResult(NamedTuple):
    """The result of a policy for M rows, of the policy's own dtypes.

    Attributes:
        actions: an array (M, *A) for each leaf of the action space.
        infos: arrays (M, ...) by name.
        states: an array (M, *S) for each state.
    """

    actions: Sequence[np.ndarray]
    infos: Mapping[str, np.ndarray]
    states: Sequence[np.ndarray]


class PolicyCalls:
    """A policy called with arrays for leaves and states.

    Attributes:
        noise_width: K, random numbers per action.
        states: arrays of the recurrent state: the policy's own, then the action and the reward before, if it asks for
            them.
        num_own_states: number of the policy's own.
        inputs: names of what the policy asks for beside the observation.
    """

    def __init__(
        self,
        policy: PythonPolicy,
        observation_space: Space[Any],
        action_space: Space[Any],
        mask: ActionMask | None,
    ) -> None:
        """Read noise width, inputs and initial states from the policy.

        Raises:
            InvalidValueError: one of them is invalid.
        """
        self._policy = policy
        self._observation_leaves = leaves_of_space(observation_space)
        self._action_leaves = leaves_of_space(action_space)
        try:
            with _failing("noise_width"):
                self.noise_width = _noise_width(getattr(policy, "noise_width", 0))
            with _failing("agent_inputs"):
                self.inputs = _inputs(policy, mask)
            with _failing("initial_states"):
                own_states = tuple(_states(policy))
            previous = self._previous_states()
            if taken := {state.name for state in own_states} & {state.name for state in previous}:
                hint = "the policy asks for the values of the step before by that name"
                raise misfit("initial_states", expected="states of other names", got=listed(taken), hint=hint)
        except AgentFailedError as error:
            raise InvalidValueError(error.text, reason=Reason.AGENT_REFUSED) from error
        self.states, self.num_own_states = (*own_states, *previous), len(own_states)

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray]) -> PolicyResult:
        """Call the policy for M rows.

        Args:
            observations: as `Agent.act` takes them.
            noise: (M, K) float64.
            states: an array (M, *S) for each of `states`.

        Raises:
            AgentFailedError: the policy raises an error, or its result has another form.
        """
        states_by_name = {state.name: column for state, column in zip(self._own_states, states, strict=False)}
        observed = _joined(self._observation_leaves, observations)
        others = (self._others(observations, states[self.num_own_states :]),) if self.inputs else ()
        with _failing("act"):
            return self._checked(self._policy.act(observed, noise, states_by_name, *others), len(noise))

    @property
    def _own_states(self) -> Sequence[StateSpec]:
        return self.states[: self.num_own_states]

    def _previous_states(self) -> list[StateSpec]:
        """Return the states for the action and the reward before."""
        actions = action_states(self._action_leaves) if PREVIOUS_ACTION in self.inputs else []
        return [*actions, *([reward_state()] if PREVIOUS_REWARD in self.inputs else [])]

    def _others(self, observations: Sequence[np.ndarray], previous: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Return what the policy asks for beside the observation, by name."""
        others: dict[str, Any] = {}
        if ACTION_MASK in self.inputs:
            others[ACTION_MASK] = observations[-1]
        if PREVIOUS_ACTION in self.inputs:
            others[PREVIOUS_ACTION] = _joined(self._action_leaves, previous)
        if PREVIOUS_REWARD in self.inputs:
            others[PREVIOUS_REWARD] = previous[-1]
        return others

    def _checked(self, result: object, num_rows: int) -> PolicyResult:
        if not isinstance(result, tuple) or len(result) != 3:
            raise misfit("act", expected="a tuple of actions, infos and states", got=type(result).__name__)
        actions, infos, next_states = result
        if not isinstance(infos, Mapping):
            raise misfit("infos", expected="a mapping by name", got=type(infos).__name__)
        names = [state.name for state in self._own_states]
        parts = _split("actions", actions, self._action_leaves)
        return PolicyResult(
            [action_column(leaf, part, num_rows) for leaf, part in zip(self._action_leaves, parts, strict=True)],
            {name: column_of(entry("infos", name), value, num_rows) for name, value in infos.items()},
            [
                _next_state(state, value, num_rows)
                for state, value in zip(self._own_states, values_of("states", next_states, names), strict=True)
            ],
        )


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Turn errors of the policy into AgentFailedError, including those raised while its results are checked."""
    try:
        yield
    except AgentFailedError:
        raise
    # The worker survives any exception, including SystemExit.
    except BaseException as error:
        raise AgentFailedError(f"{what} raised {describe(error)}") from error


def _noise_width(width: object) -> int:
    if not isinstance(width, numbers.Integral) or not 0 <= int(width) <= _MAX_NOISE_WIDTH:
        raise misfit("noise_width", expected=f"an integer from 0 to {_MAX_NOISE_WIDTH}", got=show(width))
    return int(width)


def _inputs(policy: PythonPolicy, mask: ActionMask | None) -> tuple[str, ...]:
    """Return the names of what the policy asks for beside the observation."""
    names = getattr(policy, "agent_inputs", ())
    if not isinstance(names, tuple | list) or any(name not in _INPUTS for name in names):
        raise misfit("agent_inputs", expected=f"a list of names among {listed(_INPUTS)}", got=show(names))
    if ACTION_MASK in names and mask is None:
        hint = "the agent's field `action_mask` says where the mask comes from"
        raise misfit("agent_inputs", expected="no action mask, because the agent has none", got=show(names), hint=hint)
    return tuple(sorted(set(names)))


def _states(policy: PythonPolicy) -> list[StateSpec]:
    initial_states = policy.initial_states()
    if not isinstance(initial_states, Mapping):
        raise misfit("initial_states", expected="a mapping by name", got=type(initial_states).__name__)
    states = []
    for name, value in initial_states.items():
        what = entry("initial_states", name_of("initial_states", name))
        initial = array_of(what, value)
        states.append(StateSpec(name, initial.astype(wire_dtype(what, initial))))
        if not np.isfinite(initial).all():
            raise misfit(what, expected=FINITE, got=initial[~np.isfinite(initial)].flat[0])
    return states


def _next_state(state: StateSpec, value: object, num_rows: int) -> np.ndarray:
    what = entry("states", state.name)
    column = column_of(what, value, num_rows, state.initial.shape)
    if not np.can_cast(column.dtype, state.initial.dtype, "same_kind"):
        raise misfit(what, expected=state.initial.dtype, got=f"dtype {column.dtype}")
    return column


def _joined(leaves: Sequence[Leaf], columns: Sequence[np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    """Return observations in the form that policies get: one array, or a mapping by leaf name."""
    if len(leaves) == 1 and not leaves[0].name:
        return columns[0]
    return {leaf.name: column for leaf, column in zip(leaves, columns, strict=False)}


def _split(what: str, value: object, leaves: Sequence[Leaf]) -> Sequence[object]:
    """Return the leaves of actions in the form that policies return: one array, or a mapping by leaf name."""
    if len(leaves) == 1 and not leaves[0].name:
        return [value]
    return values_of(what, value, [leaf.name for leaf in leaves])
