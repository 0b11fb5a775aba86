"""Policies written in Python: made by their factories, called, and their results checked. This runs their code."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import numbers
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import threadpoolctl

from rollserve_server.agents.agent import (
    ACTION_MASK,
    FINITE,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    STATE,
    ActionMask,
    InfoSpec,
    PythonPolicy,
    StateSpec,
    action_states,
    reward_state,
)
from rollserve_server.agents.specs import Factory, InstalledFactory, PickledFactory
from rollserve_server.envs import Leaf, leaves_of_space
from rollserve_server.errors import AgentFailedError, InvalidValueError, NotFoundError, describe, listed, show
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason
from rollserve_wire.tensors import dtype_to_proto

if TYPE_CHECKING:
    from gymnasium import Space

__all__ = ["PolicyCalls", "PolicyResult", "entry", "find_installed", "info_spec", "make_policy", "misfit"]

_GROUP = "rollserve.agents"
_METHODS = ("set_parameters", "initial_states", "act")
_INPUTS = (ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD)
_MAX_NOISE_WIDTH = 1 << 16  # noise is drawn for many steps ahead
_T = TypeVar("_T")


def find_installed(name: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of a name, without importing its module.

    Raises:
        NotFoundError: no entry point has this name.
    """
    # Among several with one name, take the one that Python finds first, as with modules.
    entries = {entry.name: entry for entry in reversed(importlib.metadata.entry_points(group=_GROUP))}
    if name not in entries:
        names = f"one of {', '.join(map(repr, sorted(entries)))}" if entries else "an installed agent (there is none)"
        raise NotFoundError.of(
            "name",
            expected=names,
            got=repr(name),
            hint=f"install a package with an entry point in the group {_GROUP!r}",
            reason=Reason.AGENT_NOT_FOUND,
        )
    return entries[name]


def make_policy(
    factory: Factory, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, np.ndarray]
) -> PythonPolicy:
    """Make a policy, and set its parameters.

    Raises:
        NotFoundError: no agent of the name is installed here, or its module cannot be imported.
        InvalidValueError: the pickle cannot be read, or the code refuses its arguments or parameters; the error names
            the field.
    """
    arguments: dict[str, object] = {}
    match factory:
        case InstalledFactory(name, kwargs):
            make, owner, field = _imported(name), name, "kwargs_json"
            arguments = copy.deepcopy(dict(kwargs))
        case PickledFactory(data):
            make, owner, field = _unpickled(data), "the pickled factory", "data"
    policy = _refusing(owner, field, lambda: make(observation_space, action_space, **arguments))
    missing = _refusing(owner, field, lambda: [name for name in _METHODS if not callable(getattr(policy, name, None))])
    if missing:
        text = f"{owner} made a {type(policy).__name__} without a method {missing[0]}, see docs/python-agents.md"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED)
    threadpoolctl.threadpool_limits(1)  # again, for libraries that the code has loaded
    read_only = {name: _read_only(value) for name, value in parameters.items()}
    _refusing("set_parameters", "parameters", lambda: policy.set_parameters(read_only))
    return policy


@functools.cache
def _imported(name: str) -> Callable[..., PythonPolicy]:
    entry = find_installed(name)
    try:
        factory = entry.load()
    except BaseException as error:
        text = f"{name!r} is installed, but {entry.value!r} cannot be imported: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field="name") from error
    if not callable(factory):
        got = f"{name!r}, which names {entry.value!r}, a {type(factory).__name__}"
        raise InvalidValueError.of("name", expected="a factory", got=got, reason=Reason.AGENT_REFUSED)
    return factory  # type: ignore[no-any-return]


def _unpickled(data: bytes) -> Callable[..., PythonPolicy]:
    try:
        factory = pickle.loads(data)  # noqa: S301  # the operator allows it
    except BaseException as error:
        text = f"the pickle cannot be read: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field="data") from error
    if not callable(factory):
        got = f"a pickled {type(factory).__name__}"
        raise InvalidValueError.of("data", expected="a pickled factory", got=got, reason=Reason.AGENT_REFUSED)
    return factory  # type: ignore[no-any-return]


def _refusing(owner: str, field: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except BaseException as error:
        text = f"refused by {owner}: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field=field) from error


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


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
            [_action_column(leaf, part, num_rows) for leaf, part in zip(self._action_leaves, parts, strict=True)],
            {name: _column_of(entry("infos", name), value, num_rows) for name, value in infos.items()},
            [
                _next_state(state, value, num_rows)
                for state, value in zip(self._own_states, _values_of("states", next_states, names), strict=True)
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
        what = entry("initial_states", _name_of("initial_states", name))
        initial = _array_of(what, value)
        states.append(StateSpec(name, initial.astype(_wire_dtype(what, initial))))
        if not np.isfinite(initial).all():
            raise misfit(what, expected=FINITE, got=initial[~np.isfinite(initial)].flat[0])
    return states


def _next_state(state: StateSpec, value: object, num_rows: int) -> np.ndarray:
    what = entry("states", state.name)
    column = _column_of(what, value, num_rows, state.initial.shape)
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
    return _values_of(what, value, [leaf.name for leaf in leaves])


def misfit(what: str, *, expected: object, got: object, hint: str = "") -> AgentFailedError:
    """Return the error for a result of a policy that is not as expected."""
    return AgentFailedError(f"{what}: {mismatch(expected, got, hint)}")


def entry(what: str, name: str) -> str:
    """Return the path of an array in errors: `what['name']`, or `what` if it has no name."""
    return f"{what}[{name!r}]" if name else what


def _values_of(what: str, values: object, names: Collection[str]) -> list[object]:
    """Return the values of a mapping in the order of the names.

    Raises:
        AgentFailedError: `values` is no mapping, or has other names.
    """
    if not isinstance(values, Mapping):
        raise misfit(what, expected=f"a mapping with {listed(names)}", got=type(values).__name__)
    if set(values) != set(names):
        raise misfit(what, expected=listed(names), got=listed([str(name) for name in values]))
    return [values[name] for name in names]


def _action_column(leaf: Leaf, value: object, num_rows: int) -> np.ndarray:
    """Return a leaf's column of M actions.

    Raises:
        AgentFailedError: shape or dtype do not fit the leaf.
    """
    what = entry("actions", leaf.name)
    column = _column_of(what, value, num_rows, leaf.shape)
    # Integers of any dtype pass: the agent checks that they are in the space.
    integral = column.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    if not integral and not np.can_cast(column.dtype, leaf.dtype, "same_kind"):
        raise misfit(what, expected=leaf.dtype, got=f"dtype {column.dtype}")
    return column


def _column_of(what: str, value: object, num_rows: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a column of M rows, each of a given shape or, without one, of any.

    Raises:
        AgentFailedError: the value is no such column.
    """
    column = _array_of(what, value)
    expected = (num_rows, *(column.shape[1:] if shape is None else shape))
    if column.shape != expected:
        raise misfit(what, expected=f"shape {expected}", got=f"shape {column.shape}")
    return column


def _array_of(what: str, value: object) -> np.ndarray:
    """Return the value as an array.

    Raises:
        AgentFailedError: the value is no array of numbers or booleans.
    """
    try:
        array = np.asarray(value)
    except BaseException as error:
        raise misfit(what, expected="an array", got=describe(error)) from error
    if array.dtype.kind not in "biuf":
        raise misfit(what, expected="numbers", got=f"dtype {array.dtype}")
    return array


def _wire_dtype(what: str, array: np.ndarray) -> np.dtype:
    """Return the array's dtype in native byte order.

    Raises:
        AgentFailedError: messages cannot hold the dtype.
    """
    try:
        dtype_to_proto(array.dtype)
    except ValueError as error:
        raise AgentFailedError(f"{what}: {error}") from None
    return array.dtype.newbyteorder("=")


def info_spec(name: object, column: np.ndarray) -> InfoSpec:
    """Return the spec of an info with this column.

    Raises:
        AgentFailedError: messages cannot hold its name or dtype.
    """
    return InfoSpec(_name_of("infos", name), _wire_dtype(entry("infos", str(name)), column), column.shape[1:])


def _name_of(what: str, name: object) -> str:
    """Return the name of an info or state.

    Raises:
        AgentFailedError: messages cannot hold the name, or it is reserved.
    """
    if not isinstance(name, str) or not name or name != name.encode(errors="replace").decode():
        raise misfit(what, expected="names that are Unicode text", got=f"the name {show(name, ascii)}")
    if name.startswith(("_", STATE)):
        expected = f"names that begin with neither '_' (masks) nor {STATE!r} (states of each step)"
        raise misfit(what, expected=expected, got=f"the name {show(name)}")
    return name
