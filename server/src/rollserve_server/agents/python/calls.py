"""Calls of an agent's Python code, and whether what it gives has the form that it should have."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve import Reason
from rollserve._codec.tensors import dtype_to_proto
from rollserve_server.agents.agent import InfoSpec, StateSpec
from rollserve_server.agents.onnx.states import STATE
from rollserve_server.agents.parameters import listed
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, InvalidValueError, describe, show

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents.python.policy import PythonPolicy
    from rollserve_server.envs import Leaf

__all__ = ["PolicyCalls", "PolicyResult", "described_info", "part_of"]

_MOST_NOISE = 1 << 16
"""Numbers for each action: they are drawn for many steps ahead."""


class PolicyResult(NamedTuple):
    """What a policy has given for M rows, as it came.

    Attributes:
        actions: for each leaf of the action space (M, *A).
        infos: by name (M, ...).
        states: for each state (M, *S).
    """

    actions: Sequence[np.ndarray]
    infos: Mapping[str, np.ndarray]
    states: Sequence[np.ndarray]


class PolicyCalls:
    """Calls a policy with arrays for leaves and states, as the server has them.

    Attributes:
        noise_width: how many random numbers one action takes.
        states: what it remembers of each row.
    """

    def __init__(self, policy: PythonPolicy, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Asks the policy what it takes.

        Raises:
            InvalidValueError: that makes no sense.
        """
        self._policy = policy
        self._observation_leaves = leaves_of_space(observation_space)
        self._action_leaves = leaves_of_space(action_space)
        try:
            with _failing("noise_width"):
                self.noise_width = _noise_width(getattr(policy, "noise_width", 0))
            with _failing("initial_states"):
                self.states = tuple(_states(policy))
        except AgentFailedError as error:
            raise InvalidValueError(error.text, reason=Reason.AGENT_REFUSED) from error

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray]) -> PolicyResult:
        """What the policy gives for M rows.

        Args:
            observations: for each leaf of the observation space (M, *O).
            noise: (M, K) float64.
            states: for each of `states` (M, *S).

        Raises:
            AgentFailedError: it raises an error, or gives something of another form.
        """
        given = dict(zip((state.name for state in self.states), states, strict=True))
        observed = _joined(self._observation_leaves, observations)
        with _failing("act"):
            return self._read(self._policy.act(observed, noise, given), len(noise))

    def _read(self, came: object, num_rows: int) -> PolicyResult:
        if not isinstance(came, tuple) or len(came) != 3:
            expected = "a tuple of actions, infos and states was expected"
            raise AgentFailedError(f"act gave a {type(came).__name__}, {expected}")
        actions, infos, next_states = came
        if not isinstance(infos, Mapping):
            raise AgentFailedError(f"infos: {type(infos).__name__} came, a mapping by name was expected")
        names = [state.name for state in self.states]
        parts = _split("actions", actions, self._action_leaves)
        return PolicyResult(
            [_action(leaf, part, num_rows) for leaf, part in zip(self._action_leaves, parts, strict=True)],
            {name: _column(part_of("infos", name), value, num_rows) for name, value in infos.items()},
            [
                _next_state(state, value, num_rows)
                for state, value in zip(self.states, _by_name("states", next_states, names), strict=True)
            ],
        )


def part_of(what: str, name: str) -> str:
    """What an array of several is called in errors."""
    return f"{what}[{name!r}]" if name else what


def described_info(name: object, column: np.ndarray) -> InfoSpec:
    """What an info is, of which this is a column.

    Raises:
        AgentFailedError: its name or dtype has no place on the wire.
    """
    return InfoSpec(_name("infos", name), _dtype(part_of("infos", str(name)), column), column.shape[1:])


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Makes what the agent's code raises errors of the agent, also while what it gave is looked at."""
    try:
        yield
    except AgentFailedError:
        raise
    # Whatever it is, SystemExit among others: the worker goes on.
    except BaseException as error:
        raise AgentFailedError(f"{what} raised {describe(error)}") from error


def _noise_width(width: object) -> int:
    if not isinstance(width, numbers.Integral) or not 0 <= int(width) <= _MOST_NOISE:
        raise AgentFailedError(f"noise_width: {show(width)} came, an integer from 0 to {_MOST_NOISE} was expected")
    return int(width)


def _states(policy: PythonPolicy) -> list[StateSpec]:
    came = policy.initial_states()
    if not isinstance(came, Mapping):
        raise AgentFailedError(f"initial_states gave a {type(came).__name__}, a mapping by name was expected")
    states = []
    for name, value in came.items():
        what = part_of("initial_states", _name("initial_states", name))
        initial = _array(what, value)
        states.append(StateSpec(name, initial.astype(_dtype(what, initial))))
        if not np.isfinite(initial).all():
            bad = initial[~np.isfinite(initial)].flat[0]
            raise AgentFailedError(f"{what}: {bad} came, a finite number was expected")
    return states


def _joined(leaves: Sequence[Leaf], columns: Sequence[np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    """The parts of observations as a policy gets them."""
    if len(leaves) == 1 and not leaves[0].name:
        return columns[0]
    return {leaf.name: column for leaf, column in zip(leaves, columns, strict=True)}


def _split(what: str, value: object, leaves: Sequence[Leaf]) -> Sequence[object]:
    """The parts of actions as a policy gives them."""
    if len(leaves) == 1 and not leaves[0].name:
        return [value]
    return _by_name(what, value, [leaf.name for leaf in leaves])


def _by_name(what: str, values: object, names: Collection[str]) -> list[object]:
    if not isinstance(values, Mapping):
        raise AgentFailedError(f"{what}: {type(values).__name__} came, a mapping with {listed(names)} was expected")
    if set(values) != set(names):
        came = listed([str(name) for name in values])
        raise AgentFailedError(f"{what}: {came} came, {listed(names)} was expected")
    return [values[name] for name in names]


def _action(leaf: Leaf, value: object, num_rows: int) -> np.ndarray:
    what = part_of("actions", leaf.name)
    column = _column(what, value, num_rows, leaf.shape)
    # Integers of any type are taken: whether they are in the space is looked at anyway.
    integral = column.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    if not integral and not np.can_cast(column.dtype, leaf.dtype, "same_kind"):
        raise AgentFailedError(f"{what}: dtype {column.dtype} came, {leaf.dtype} was expected")
    return column


def _next_state(state: StateSpec, value: object, num_rows: int) -> np.ndarray:
    what = part_of("states", state.name)
    column = _column(what, value, num_rows, state.initial.shape)
    if not np.can_cast(column.dtype, state.initial.dtype, "same_kind"):
        raise AgentFailedError(f"{what}: dtype {column.dtype} came, {state.initial.dtype} was expected")
    return column


def _column(what: str, value: object, num_rows: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A column of M rows, each of a shape, or of any."""
    column = _array(what, value)
    expected = (num_rows, *(column.shape[1:] if shape is None else shape))
    if column.shape != expected:
        raise AgentFailedError(f"{what}: shape {column.shape} came, {expected} was expected")
    return column


def _array(what: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except BaseException as error:
        raise AgentFailedError(f"{what}: no array can be made of it: {describe(error)}") from error
    if array.dtype.kind not in "biuf":
        raise AgentFailedError(f"{what}: dtype {array.dtype} came, one of numbers was expected")
    return array


def _dtype(what: str, array: np.ndarray) -> np.dtype:
    try:
        dtype_to_proto(array.dtype)
    except ValueError as error:
        raise AgentFailedError(f"{what}: {error}") from None
    return array.dtype.newbyteorder("=")


def _name(what: str, name: object) -> str:
    if not isinstance(name, str) or not name or name != name.encode(errors="replace").decode():
        raise AgentFailedError(f"{what}: the name {show(name, ascii)} came, a text was expected")
    if name.startswith(("_", STATE)):
        text = f"those that begin with '_' or {STATE!r} are taken: by masks, and by states of each step"
        raise AgentFailedError(f"{what}: the name {name!r} came, but {text}")
    return name
