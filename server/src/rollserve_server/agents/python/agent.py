"""Python agents as workers run them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.action_masks import action_mask_of, masked_actions
from rollserve_server.agents.agent import (
    FINITE,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    ActionMask,
    Agent,
    Decision,
    InfoSpec,
    first_bad_elements,
)
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.python.policy import PolicyCalls, PolicyResult, entry, make_policy, misfit
from rollserve_server.envs import leaf_bounds, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.specs import PythonSpec

__all__ = ["PythonAgent", "load_python"]

_AS_PROBED = "the agent's form was found when it was sent"

_Bounds = tuple[np.ndarray, np.ndarray]


def load_python(spec: PythonSpec) -> PythonSpec:
    """Return the agent with its policy, made in this process.

    Raises:
        NotFoundError: the agent's code is not installed here.
        InvalidValueError: the code refuses the parameters, or differs from the code that was probed.
    """
    policy = make_policy(spec.factory, spec.observation_space, spec.action_space, spec.parameters)
    mask = action_mask_of(spec.inputs.action_mask, spec.observation_space, spec.action_space)
    calls = PolicyCalls(policy, spec.observation_space, spec.action_space, mask)
    states = tuple(InfoSpec(state.name, state.initial.dtype, state.initial.shape) for state in calls.states)
    form = spec.form
    expected, got = (form.noise_width, form.inputs, form.states), (calls.noise_width, calls.inputs, states)
    if got != expected:
        text = f"noise width, inputs and states: {mismatch(expected, got, _AS_PROBED)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED)
    return dataclasses.replace(spec, policy=policy)


class PythonAgent(Agent):
    """An agent that calls a policy in Python."""

    def __init__(
        self,
        spec: PythonSpec,
        num_rows: int,
        *,
        mask: ActionMask | None = None,
        together: bool = False,
        exploration: Exploration = DEFAULT_EXPLORATION,
    ) -> None:
        """Prepare calls of an agent that was probed.

        Args:
            spec: agent.
            num_rows: number of rows that act together.
            mask: action mask; None without one.
            together: whether the rows are always the same; see `build_agent`.
            exploration: how freely the agent acts.

        Raises:
            NotFoundError, InvalidValueError: the agent was not loaded, and cannot be; see `load_python`.
        """
        policy = spec.policy or load_python(spec).policy
        assert policy is not None  # noqa: S101
        self._calls = PolicyCalls(policy, spec.observation_space, spec.action_space, mask)
        self.mask = mask
        self.noise_width = self._calls.noise_width
        self.states = self._calls.states
        self._num_own_states = self._calls.num_own_states
        if PREVIOUS_REWARD in self._calls.inputs:
            self.reward_state = len(self.states) - 1
        self._has_previous_action = PREVIOUS_ACTION in self._calls.inputs
        self.infos = spec.form.infos if mask is None else (*spec.form.infos, *mask.infos)
        self._deterministic = exploration.deterministic
        self._batches = _batches(num_rows, *((1, num_rows) if together else spec.form.batching))
        leaves = leaves_of_space(spec.action_space)
        self._action_names = [entry("actions", leaf.name) for leaf in leaves]
        self._actions = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
        # As with other agents, only integers have to be within the bounds.
        self._bounds = [leaf_bounds(leaf) if leaf.dtype.kind != "f" else None for leaf in leaves]
        self._infos = {info.name: np.zeros((num_rows, *info.shape), info.dtype) for info in spec.form.infos}
        self._failures: dict[int, str] = {}

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw standard normal numbers."""
        noise[:] = generator.standard_normal(noise.shape)

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Call the policy, with as many rows at a time as it was probed with.

        Raises:
            AgentFailedError: the policy fails, or its results have another form than when it was probed.
        """
        self._failures = {}
        if self._deterministic:
            noise = np.zeros_like(noise)
        for rows, num_rows in self._batches:
            result = self._calls.act(
                [column[rows] for column in observations], noise[rows], [column[rows] for column in states]
            )
            self._store(result, slice(int(rows[0]), int(rows[0]) + num_rows), states)
        if self._has_previous_action:
            for state, action in zip(states[self._num_own_states :], self._actions, strict=False):
                state[...] = action
        if self.mask is None:
            return self._actions, self._infos
        legal = observations[-1]
        for row, text in masked_actions(self.mask, legal, self._actions).items():
            self._failures.setdefault(row, text)
        return self._actions, {**self._infos, **self.mask.recorded(legal)}

    def failures(self) -> Mapping[int, str]:
        """Return the rows with invalid actions, infos or states."""
        return self._failures

    def _store(self, result: PolicyResult, rows: slice, states: Sequence[np.ndarray]) -> None:
        """Store the results for some rows; the result may have more rows after these, which are padding."""
        for name, column, target, bounds in zip(
            self._action_names, result.actions, self._actions, self._bounds, strict=True
        ):
            if bounds is None:
                self._store_numbers(name, column, target, rows)
            else:
                self._store_integers(name, column, target, rows, bounds)
        if result.infos.keys() != self._infos.keys():
            raise misfit("infos", expected=listed(self._infos), got=listed(result.infos), hint=_AS_PROBED)
        for name, target in self._infos.items():
            column, what = result.infos[name], entry("infos", name)
            if column.shape[1:] != target.shape[1:] or not np.can_cast(column.dtype, target.dtype, "same_kind"):
                expected, got = (f"{each.dtype} of shape {each.shape[1:]}" for each in (target, column))
                raise misfit(what, expected=expected, got=got, hint=_AS_PROBED)
            self._store_numbers(what, column, target, rows, may_be_infinite=True)
        for state, column, target in zip(self.states, result.states, states, strict=False):
            self._store_numbers(entry("states", state.name), column, target, rows)

    def _store_numbers(
        self, what: str, column: np.ndarray, target: np.ndarray, rows: slice, *, may_be_infinite: bool = False
    ) -> None:
        """Store a column, and record rows whose numbers are invalid."""
        target = target[rows]
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            np.copyto(target, column[: len(target)], casting="same_kind")
        good = ~np.isnan(target) if may_be_infinite else np.isfinite(target)
        self._record_failures(what, target, good, rows, "a number" if may_be_infinite else FINITE)

    def _store_integers(self, what: str, column: np.ndarray, target: np.ndarray, rows: slice, bounds: _Bounds) -> None:
        """Store a column of integer actions, and record rows that are outside the bounds."""
        target = target[rows]
        column = column[: len(target)]
        flat = column.reshape(len(column), -1)
        low, high = bounds
        good = ((low <= flat) & (flat <= high)).reshape(column.shape)
        self._record_failures(what, column, good, rows, "an action in the action space")
        if not good.all():  # rows that do not count may still be stepped
            column = np.clip(flat, low, high).reshape(column.shape)
        np.copyto(target, column, casting="unsafe")

    def _record_failures(self, what: str, column: np.ndarray, good: np.ndarray, rows: slice, expected: str) -> None:
        if good.all():
            return
        for row, value in first_bad_elements(column.reshape(len(column), -1), good.reshape(len(column), -1)):
            self._failures.setdefault(rows.start + row, f"{what}: {mismatch(expected, value)}")


def _batches(num_rows: int, multiple: int, max_rows: int) -> list[tuple[np.ndarray, int]]:
    """Return the rows of each call of the policy, and how many of them count: the last row repeats up to a multiple."""
    batches = []
    for start in range(0, num_rows, max_rows):
        count = min(max_rows, num_rows - start)
        end = start + -(-count // multiple) * multiple
        batches.append((np.minimum(np.arange(start, end), num_rows - 1), count))
    return batches
