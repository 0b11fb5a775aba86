"""ONNX models as workers run them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.action_masks import masked_values
from rollserve_server.agents.agent import (
    ACTION_MASK,
    FINITE,
    NEXT_STATE,
    PREVIOUS_REWARD,
    STATE,
    VALUE,
    ActionMask,
    Agent,
    Decision,
    InfoSpec,
    StateSpec,
    action_states,
    first_bad_elements,
    is_previous,
    leaf_role,
    reward_state,
)
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.onnx.ports import NOISE, onnx_head
from rollserve_server.envs import Leaf, leaf_bounds, leaves_of_space
from rollserve_server.errors import AgentFailedError, show
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.onnx.session import Runner
    from rollserve_server.agents.specs import OnnxSpec, Port, Shapes

__all__ = ["OnnxAgent"]

_Bounds = tuple[np.ndarray, np.ndarray]


class OnnxAgent(Agent):
    """A model and a head."""

    def __init__(
        self,
        spec: OnnxSpec,
        action_space: Space[Any],
        num_rows: int,
        *,
        mask: ActionMask | None = None,
        together: bool = False,
        exploration: Exploration = DEFAULT_EXPLORATION,
    ) -> None:
        """Make a session for a model that was checked.

        Args:
            spec: model.
            action_space: action space of one row.
            num_rows: number of rows that act together.
            mask: action mask; None without one.
            together: whether the rows are always the same; see `build_agent`.
            exploration: how freely the agent acts.

        Raises:
            AgentFailedError: ONNX Runtime refuses the model on this machine.
        """
        self._runner = _make_runner(spec, num_rows, together=together)
        inputs, outputs = self._runner.inputs, self._runner.outputs
        state_ports = [port for port in spec.inputs if port.role.startswith(STATE)]
        own_states = [
            StateSpec(port.role.removeprefix(STATE), np.zeros(port.shape, port.dtype)) for port in state_ports
        ]
        self._keep_previous(inputs, spec.inputs, leaves_of_space(action_space), own_states)
        self._memory = [
            (inputs[port.name], outputs[spec.outputs[f"{NEXT_STATE}{state.name}"].name])
            for port, state in zip(state_ports, own_states, strict=True)
        ]
        ports = [port for port in spec.inputs if not (port.role.startswith(STATE) or is_previous(port.role))]
        self._inputs = [
            (inputs[port.name], position) for port, position in zip(ports, _positions(ports, mask), strict=True)
        ]
        self.mask = mask
        self._head = onnx_head(spec, spec.outputs, action_space, exploration, mask)
        leaf_heads = spec.leaf_heads.items()
        self._categorical = {f"logits/{leaf}" for leaf, (kind, _) in leaf_heads if kind == "categorical"} or {"logits"}
        # By the roles of their actions and their logits.
        self._leaf_masks = {
            leaf_role(name, leaf): leaf
            for leaf in (() if mask is None else mask.leaves)
            for name in ("action", "logits")
        }
        self._legal: np.ndarray | None = None  # of the last step
        self._deterministic = exploration.deterministic
        self._head_outputs = [
            (outputs[spec.outputs[column.name].name].reshape(num_rows, -1), column.dtype)
            for column in self._head.inputs
        ]
        self._checked = _checked_outputs(spec, outputs, action_space)
        self._info_outputs = {role: outputs[spec.outputs[role].name] for role in spec.infos}
        infos = [InfoSpec(role, column.dtype, column.shape[1:]) for role, column in self._info_outputs.items()]
        self._value = outputs[spec.outputs[VALUE.name].name].reshape(-1) if VALUE.name in spec.outputs else None
        self.infos = (*self._head.infos, *infos, *(() if self._value is None else (VALUE,)))
        self.factors = self._head.factors
        self._head_noise_width = self._head.noise_width
        model_noise_width = sum(port.shape[0] for port in spec.inputs if port.role == NOISE)
        self.noise_width = self._head_noise_width + model_noise_width

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise, then standard normal numbers for the model."""
        split = self._head_noise_width
        head_noise = np.empty((len(noise), split))
        self._head.draw_noise(generator, head_noise)
        noise[:, :split] = head_noise
        noise[:, split:] = generator.standard_normal((len(noise), noise.shape[1] - split))

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Run the model and the head.

        Raises:
            AgentFailedError: the model fails.
        """
        split = self._head_noise_width
        model_noise = noise[:, split:]
        if self._deterministic:
            model_noise = np.zeros_like(model_noise)
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            values = (*observations, model_noise)
            for column, position in self._inputs:
                np.copyto(column, values[position], casting="same_kind")
        for (column, _), state in zip(self._memory, states, strict=False):
            column[...] = state
        for column, position in self._previous_inputs:
            np.copyto(column, states[position], casting="same_kind")
        try:
            self._runner.run()
        except BaseException as error:
            raise AgentFailedError(f"the model fails: {show(error, str)}") from error
        for (_, column), state in zip(self._memory, states, strict=False):
            state[...] = column
        outputs = [column.astype(dtype, copy=False) for column, dtype in self._head_outputs]
        if self.mask is not None:
            self._legal = observations[-1]
            outputs.append(self._legal)
        with np.errstate(all="ignore"):  # `failures` reports numbers that are not finite
            actions, infos = self._head.act(outputs, noise[:, :split])
        for position, leaf in self._action_states:
            states[position][...] = actions[leaf]
        infos |= self._info_outputs
        if self._value is not None:
            infos[VALUE.name] = self._value.astype(np.float32, copy=False)
        return actions, infos

    def _keep_previous(
        self,
        inputs: Mapping[str, np.ndarray],
        ports: Sequence[Port],
        action_leaves: Sequence[Leaf],
        own_states: Sequence[StateSpec],
    ) -> None:
        """Set `states` to the model's own, followed by the values of the step before that the model takes."""
        names = {port.role: port.name for port in ports}
        states = list(own_states)
        # Inputs with the positions of their states; positions of states with positions of the action's leaves.
        self._previous_inputs: list[tuple[np.ndarray, int]] = []
        self._action_states: list[tuple[int, int]] = []
        for position, state in enumerate(action_states(action_leaves)):
            if state.name in names:
                self._action_states.append((len(states), position))
                self._previous_inputs.append((inputs[names[state.name]], len(states)))
                states.append(state)
        if PREVIOUS_REWARD in names:
            self.reward_state = len(states)
            self._previous_inputs.append((inputs[names[PREVIOUS_REWARD]], len(states)))
            states.append(reward_state())
        self.states = tuple(states)

    def failures(self) -> Mapping[int, str]:
        """Return the rows with outputs that are not finite, or actions outside the action space."""
        found: dict[int, str] = {}
        for port, column, bounds in self._checked:
            mask = self._leaf_masks.get(port.role)
            legal = None if mask is None or self._legal is None else self._legal[:, mask.columns]
            good = _is_good(column, bounds, legal, may_rule_out=port.role in self._categorical)
            if not good.all():
                expected = FINITE if bounds is None else "an action in the action space"
                for row, value in first_bad_elements(column, good):
                    found.setdefault(row, f"output {port.name!r} of the model: {mismatch(expected, value)}")
            elif mask is not None and self._legal is not None and bounds is not None:
                for row, text in masked_values(mask, self._legal, column).items():
                    found.setdefault(row, text)
        return found


def _make_runner(spec: OnnxSpec, num_rows: int, *, together: bool) -> Runner:
    # Imported late: only workers with such an agent load ONNX Runtime.
    from rollserve_server.agents.onnx.session import Runner, make_session

    multiple, max_rows = (1, None) if together else spec.batching
    try:
        session = make_session(spec.graph, spec.parameters, spec.providers)
    except BaseException as error:
        raise AgentFailedError(f"ONNX Runtime refuses the model: {show(error, str)}") from error
    inputs, outputs = _port_shapes(spec.inputs), _port_shapes(spec.outputs.values())
    return Runner(session, inputs, outputs, num_rows, multiple=multiple, max_rows=max_rows)


def _port_shapes(ports: Iterable[Port]) -> Shapes:
    return {port.name: (port.dtype, port.shape) for port in ports}


def _checked_outputs(
    spec: OnnxSpec, outputs: Mapping[str, np.ndarray], action_space: Space[Any]
) -> list[tuple[Port, np.ndarray, _Bounds | None]]:
    """Return the outputs that `failures` checks, (M, size), with the bounds of integer actions."""
    # As with other agents, only integers have to be within the bounds.
    leaves = leaves_of_space(action_space) if spec.head == "actions" else ()
    bounds = {leaf_role("action", leaf): leaf_bounds(leaf) for leaf in leaves if leaf.dtype.kind != "f"}
    return [
        (port, outputs[port.name].reshape(len(outputs[port.name]), -1), bounds.get(port.role))
        for port in spec.outputs.values()
        if port.role not in spec.infos
    ]


def _positions(ports: Sequence[Port], mask: ActionMask | None) -> Iterator[int]:
    """Yield where the values of inputs are: among the columns that `act` gets, with noise at the end."""
    hidden = frozenset[int]() if mask is None else mask.hidden
    observed = (position for position in itertools.count() if position not in hidden)
    for port in ports:
        if port.role == ACTION_MASK:
            yield -2
        elif port.role == NOISE:
            yield -1
        else:
            yield next(observed)


def _is_good(column: np.ndarray, bounds: _Bounds | None, legal: np.ndarray | None, *, may_rule_out: bool) -> np.ndarray:
    """Return which elements of an output (M, size) are valid; logits may rule out actions by minus infinity."""
    good: np.ndarray
    if bounds is not None:
        low, high = bounds
        good = (low <= column) & (column <= high)
    elif may_rule_out:  # but not all actions
        possible = np.isfinite(column) if legal is None else np.isfinite(column) & legal
        good = (column < np.inf) & possible.any(axis=1, keepdims=True)
    else:
        good = np.isfinite(column)
    return good
