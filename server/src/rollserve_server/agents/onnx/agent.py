"""Models in the ONNX format, run by ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.agent import InfoSpec, StateSpec
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS
from rollserve_server.agents.fixed import leaf_bounds
from rollserve_server.agents.heads.head import leaf_role
from rollserve_server.agents.onnx.checks import onnx_head
from rollserve_server.agents.onnx.states import NEXT_STATE, STATE
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.specs import OnnxSpec, Port

__all__ = ["OnnxAgent"]


class OnnxAgent:
    """A model and a head; see `protos/rollserve/v1/agent.proto`."""

    def __init__(
        self,
        spec: OnnxSpec,
        action_space: Space[Any],
        num_rows: int,
        *,
        together: bool = False,
        exploration: Exploration = AS_THE_AGENT_SAYS,
    ) -> None:
        """Makes a session for a model that has been checked; for `together` see `build_agent`.

        Raises:
            AgentFailedError: ONNX Runtime does not take it here.
        """
        # Only workers that have such an agent wait for ONNX Runtime to be loaded.
        from rollserve_server.agents.onnx.session import Runner, make_session

        multiple, most = (1, None) if together else spec.batching
        try:
            session = make_session(spec.graph, spec.parameters, spec.providers)
        except BaseException as error:
            raise AgentFailedError(f"ONNX Runtime refuses the model: {show(error, str)}") from error
        outputs = spec.outputs.values()
        self._runner = Runner(
            session, _described(spec.inputs), _described(outputs), num_rows, multiple=multiple, most=most
        )
        state_ports = [port for port in spec.inputs if port.role.startswith(STATE)]
        self.states = tuple(
            StateSpec(port.role.removeprefix(STATE), np.zeros(port.shape, port.dtype)) for port in state_ports
        )
        self._memory = [
            (self._runner.inputs[port.name], self._runner.outputs[spec.outputs[f"{NEXT_STATE}{state.name}"].name])
            for port, state in zip(state_ports, self.states, strict=True)
        ]
        self._inputs = [self._runner.inputs[port.name] for port in spec.inputs if port not in state_ports]
        self._head = onnx_head(spec.head, spec.outputs, action_space, exploration)
        self._deterministic = exploration.deterministic
        self._head_outputs = [
            (self._runner.outputs[spec.outputs[wanted.name].name].reshape(num_rows, -1), wanted.dtype)
            for wanted in self._head.inputs
        ]
        self._checked = [
            (port, self._runner.outputs[port.name].reshape(num_rows, -1))
            for port in outputs
            if port.role not in spec.infos
        ]
        # Floats may be beyond theirs, as those of other agents.
        leaves = leaves_of_space(action_space) if spec.head == "actions" else ()
        self._bounds = {leaf_role("action", leaf): leaf_bounds(leaf) for leaf in leaves if leaf.dtype.kind != "f"}
        self._further = {role: self._runner.outputs[spec.outputs[role].name] for role in spec.infos}
        infos = [InfoSpec(role, column.dtype, column.shape[1:]) for role, column in self._further.items()]
        self._value = self._runner.outputs[spec.outputs["value"].name].reshape(-1) if "value" in spec.outputs else None
        if self._value is not None:
            infos.append(InfoSpec("value", np.dtype(np.float32), ()))
        self.infos = (*self._head.infos, *infos)
        self.factors = self._head.factors
        self._num_heads_numbers = self._head.noise_width
        noise_width = sum(port.shape[0] for port in spec.inputs if port.role == "noise")
        self.noise_width = self._head.noise_width + noise_width

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """What the head takes, then standard normal numbers for the model."""
        split = self._num_heads_numbers
        heads_own = np.empty((len(noise), split))
        self._head.draw_noise(generator, heads_own)
        noise[:, :split] = heads_own
        noise[:, split:] = generator.standard_normal((len(noise), noise.shape[1] - split))

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent.

        Raises:
            AgentFailedError: the model fails.
        """
        split = self._num_heads_numbers
        models_own = noise[:, split:]
        if self._deterministic:
            models_own = np.zeros_like(models_own)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            for column, values in zip(self._inputs, (*observations, models_own), strict=False):
                np.copyto(column, values, casting="same_kind")
        for (column, _), state in zip(self._memory, states, strict=True):
            column[...] = state
        try:
            self._runner.run()
        except BaseException as error:
            raise AgentFailedError(f"the model fails: {show(error, str)}") from error
        for (_, column), state in zip(self._memory, states, strict=True):
            state[...] = column
        outputs = [column.astype(dtype, copy=False) for column, dtype in self._head_outputs]
        with np.errstate(all="ignore"):  # what is not finite is told by `failures`
            if self._deterministic:
                actions, infos = self._head.act_best(outputs)
            else:
                actions, infos = self._head.act(outputs, noise[:, :split])
        infos |= self._further
        if self._value is not None:
            infos["value"] = self._value.astype(np.float32, copy=False)
        return actions, infos

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        found: dict[int, str] = {}
        for port, column in self._checked:
            good = _good(column, port.role, self._bounds.get(port.role))
            if not good.all():
                for row in np.flatnonzero(~good.all(axis=1)).tolist():
                    value = column[row][~good[row]][0]
                    expected = "one in the action space" if port.role in self._bounds else "a finite number"
                    found.setdefault(row, f"output {port.name!r} of the model: {value} came, {expected} was expected")
        return found


def _good(column: np.ndarray, role: str, bounds: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Which elements of an output (M, size) are of use."""
    good: np.ndarray
    if bounds is not None:
        low, high = bounds
        good = (low <= column) & (column <= high)
    elif role == "logits":  # actions may be ruled out, but not all
        good = (column < np.inf) & np.isfinite(column).any(axis=1, keepdims=True)
    else:
        good = np.isfinite(column)
    return good


def _described(ports: Iterable[Port]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    return {port.name: (port.dtype, port.shape) for port in ports}
