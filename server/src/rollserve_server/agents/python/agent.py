"""Agents in Python, as workers have them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rollserve import Reason
from rollserve_server.agents.agent import InfoSpec
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS
from rollserve_server.agents.fixed import leaf_bounds
from rollserve_server.agents.parameters import listed
from rollserve_server.agents.python.calls import PolicyCalls, part_of
from rollserve_server.agents.python.loading import make_policy
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.python.calls import PolicyResult
    from rollserve_server.agents.python.policy import PythonPolicy
    from rollserve_server.agents.python.specs import PythonSpec

__all__ = ["PythonAgent", "load_python"]

_Bounds = tuple[np.ndarray, np.ndarray]


def load_python(spec: PythonSpec) -> PythonSpec:
    """The agent with its policy made, in this process.

    Raises:
        NotFoundError: its code is not installed here.
        InvalidValueError: its code refuses its parameters, or is another one than where it was tried.
    """
    policy = make_policy(spec.factory, spec.observation_space, spec.action_space, spec.parameters)
    calls = _calls(spec, policy)
    states = tuple(InfoSpec(state.name, state.initial.dtype, state.initial.shape) for state in calls.states)
    came, expected = (calls.noise_width, states), (spec.form.noise_width, spec.form.states)
    if came != expected:
        text = f"noise and states {came} came, {expected} was expected: so was it where it was tried"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED)
    return dataclasses.replace(spec, policy=policy)


class PythonAgent:
    """A policy in Python; see `protos/rollserve/v1/agent.proto`."""

    factors: np.ndarray | None = None

    def __init__(
        self,
        spec: PythonSpec,
        num_rows: int,
        *,
        together: bool = False,
        exploration: Exploration = AS_THE_AGENT_SAYS,
    ) -> None:
        """Takes an agent that has been tried; for `together` see `build_agent`.

        Raises:
            NotFoundError, InvalidValueError: see `load_python`.
        """
        policy = spec.policy or load_python(spec).policy
        assert policy is not None  # noqa: S101
        self._calls = _calls(spec, policy)
        self.noise_width = self._calls.noise_width
        self.states = self._calls.states
        self.infos = spec.form.infos
        self._deterministic = exploration.deterministic
        self._parts = _parts(num_rows, *((1, num_rows) if together else spec.form.batching))
        leaves = leaves_of_space(spec.action_space)
        self._action_names = [part_of("actions", leaf.name) for leaf in leaves]
        self._actions = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
        # Floats may be beyond theirs, as those of other agents.
        self._bounds = [leaf_bounds(leaf) if leaf.dtype.kind != "f" else None for leaf in leaves]
        self._infos = {info.name: np.zeros((num_rows, *info.shape), info.dtype) for info in self.infos}
        self._failures: dict[int, str] = {}

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Standard normal numbers."""
        noise[:] = generator.standard_normal(noise.shape)

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent.

        Raises:
            AgentFailedError: the policy fails, or gives something of another form than when it was tried.
        """
        self._failures = {}
        if self._deterministic:
            noise = np.zeros_like(noise)
        for rows, num_rows in self._parts:
            result = self._calls.act(
                [column[rows] for column in observations], noise[rows], [column[rows] for column in states]
            )
            self._take(result, slice(int(rows[0]), int(rows[0]) + num_rows), states)
        return self._actions, self._infos

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return self._failures

    def _take(self, result: PolicyResult, rows: slice, states: Sequence[np.ndarray]) -> None:
        """Takes in what has come for some rows, and perhaps for more after them that nobody wants."""
        for name, column, target, bounds in zip(
            self._action_names, result.actions, self._actions, self._bounds, strict=True
        ):
            if bounds is None:
                self._store(name, column, target, rows)
            else:
                self._store_within(name, column, target, rows, bounds)
        if result.infos.keys() != self._infos.keys():
            came, expected = listed(result.infos), listed(self._infos)
            raise AgentFailedError(f"infos: {came} came, {expected} was expected, as when it was tried")
        for name, target in self._infos.items():
            column, what = result.infos[name], part_of("infos", name)
            if column.shape[1:] != target.shape[1:] or not np.can_cast(column.dtype, target.dtype, "same_kind"):
                came = f"{column.dtype} of shape {column.shape[1:]} came"
                expected = f"{target.dtype} of shape {target.shape[1:]} was expected"
                raise AgentFailedError(f"{what}: {came}, {expected}, as when it was tried")
            self._store(what, column, target, rows, may_be_infinite=True)
        for state, column, target in zip(self.states, result.states, states, strict=True):
            self._store(part_of("states", state.name), column, target, rows)

    def _store(
        self, what: str, column: np.ndarray, target: np.ndarray, rows: slice, *, may_be_infinite: bool = False
    ) -> None:
        """Writes numbers where they belong, and takes down in which rows they are of no use."""
        target = target[rows]
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            np.copyto(target, column[: len(target)], casting="same_kind")
        good = ~np.isnan(target) if may_be_infinite else np.isfinite(target)
        self._note(what, target, good, rows, "a number" if may_be_infinite else "a finite number")

    def _store_within(self, what: str, column: np.ndarray, target: np.ndarray, rows: slice, bounds: _Bounds) -> None:
        """The same for actions that are integers."""
        target = target[rows]
        column = column[: len(target)]
        flat = column.reshape(len(column), -1)
        low, high = bounds
        good = ((low <= flat) & (flat <= high)).reshape(column.shape)
        self._note(what, column, good, rows, "one in the action space")
        if not good.all():  # rows that do not count may still be stepped
            column = np.clip(flat, low, high).reshape(column.shape)
        np.copyto(target, column, casting="unsafe")

    def _note(self, what: str, column: np.ndarray, good: np.ndarray, rows: slice, expected: str) -> None:
        """Takes down the first element of each row that is not good."""
        if good.all():
            return
        values, bad = column.reshape(len(column), -1), ~good.reshape(len(column), -1)
        for row in np.flatnonzero(bad.any(axis=1)).tolist():
            text = f"{what}: {values[row][bad[row]][0]} came, {expected} was expected"
            self._failures.setdefault(rows.start + row, text)


def _calls(spec: PythonSpec, policy: PythonPolicy) -> PolicyCalls:
    return PolicyCalls(policy, spec.observation_space, spec.action_space)


def _parts(num_rows: int, multiple: int, most: int) -> list[tuple[np.ndarray, int]]:
    """The rows of each call, and how many of them count: the last is repeated up to a multiple."""
    parts = []
    for start in range(0, num_rows, most):
        count = min(most, num_rows - start)
        end = start + -(-count // multiple) * multiple
        parts.append((np.minimum(np.arange(start, end), num_rows - 1), count))
    return parts
