"""Agents from specs, checked against the spaces that they are to act in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS
from rollserve_server.agents.fixed import ConstantAgent, RandomAgent
from rollserve_server.agents.heads.head import build_head
from rollserve_server.agents.mlp.agent import Flattener, MlpAgent
from rollserve_server.agents.mlp.checks import check_mlp
from rollserve_server.agents.onnx.agent import OnnxAgent
from rollserve_server.agents.onnx.checks import check_onnx, prepare_onnx
from rollserve_server.agents.parameters import check_names, listed
from rollserve_server.agents.python.agent import PythonAgent, load_python
from rollserve_server.agents.python.checks import check_python, prepare_python
from rollserve_server.agents.python.specs import PickledFactory, PythonSource, PythonSpec
from rollserve_server.agents.specs import ConstantSpec, MlpSpec, OnnxModel, OnnxSpec, RandomSpec
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space

    from rollserve_server.agents.agent import Agent
    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.specs import AgentSource, AgentSpec
    from rollserve_server.settings import AgentSettings

__all__ = ["build_agent", "kind_of", "load_agent", "parameters_bytes", "prepare_agent", "with_parameters"]


_KINDS: dict[type, str] = {
    MlpSpec: "mlp",
    RandomSpec: "random",
    ConstantSpec: "constant",
    OnnxModel: "onnx",
    OnnxSpec: "onnx",
}


def kind_of(spec: AgentSource) -> str:
    """The name of the agent's kind: `mlp`, `random`, `constant`, `onnx`, `python` or `pickled`."""
    if isinstance(spec, PythonSource | PythonSpec):
        return "pickled" if isinstance(spec.factory, PickledFactory) else "python"
    return _KINDS[type(spec)]


def parameters_bytes(spec: AgentSpec) -> int:
    """How much memory an agent's parameters take."""
    if isinstance(spec, MlpSpec | OnnxSpec | PythonSpec):
        return sum(value.nbytes for value in spec.parameters.values())
    return 0


def with_parameters(spec: AgentSpec, parameters: Mapping[str, np.ndarray]) -> AgentSpec:
    """The same agent with other parameters, whose values are checked when it is prepared.

    An MLP takes all of its parameters; those of a model, or an agent in Python, that do not come stay as they are.

    Raises:
        InvalidValueError: the agent is of a kind without parameters, or a model has no parameter of a name.
    """
    match spec:
        case MlpSpec():
            return dataclasses.replace(spec, parameters=parameters)
        case OnnxSpec():
            check_names(parameters, spec.shapes)
            return dataclasses.replace(spec, parameters={**spec.parameters, **parameters}, source=None)
        case PythonSpec():
            return dataclasses.replace(spec, parameters={**spec.parameters, **parameters}, policy=None)
    text = f"{len(parameters)} came, but an agent of kind {kind_of(spec)} has none"
    raise InvalidValueError(text, field="parameters")


def prepare_agent(
    agent: AgentSource,
    observation_space: Space[Any],
    action_space: Space[Any],
    settings: AgentSettings,
) -> AgentSpec:
    """The agent as workers can be given it: checked, and of a model or code, tried in a process of its own.

    Args:
        agent: what it is.
        observation_space: of one row.
        action_space: of one row.
        settings: what the operator allows.

    Raises:
        InvalidValueError: it is malformed, or does not fit the spaces; the message names the field.
        OverLimitError: a model is too large.
        NotFoundError, NotAllowedError: see `prepare_python`.
    """
    match agent:
        case OnnxModel():
            return prepare_onnx(agent, observation_space, action_space, settings)
        case OnnxSpec():
            check_onnx(agent, observation_space, action_space)
        case PythonSource():
            return prepare_python(agent, observation_space, action_space, settings)
        case PythonSpec():
            return check_python(agent, observation_space, action_space, settings)
        case _:
            build_agent(agent, observation_space, action_space, num_rows=1)
    return agent


def load_agent(spec: AgentSpec) -> AgentSpec:
    """The agent as a worker keeps it: of one in Python, its code has run there, and so shows whether it can.

    Raises:
        NotFoundError, InvalidValueError: see `load_python`.
    """
    return load_python(spec) if isinstance(spec, PythonSpec) else spec


def build_agent(
    spec: AgentSpec,
    observation_space: Space[Any],
    action_space: Space[Any],
    num_rows: int,
    *,
    together: bool = False,
    exploration: Exploration = AS_THE_AGENT_SAYS,
) -> Agent:
    """An agent for so many rows.

    Args:
        spec: what it is.
        observation_space: of one row.
        action_space: of one row.
        num_rows: how many rows it acts in at once.
        together: whether all rows are of one environment, and so always the same ones. Then it is faster, but the last
            bits of a row's results may depend on the rows beside it.
        exploration: how freely it acts; see `check_exploration`.

    Raises:
        InvalidValueError: the spec is malformed, or does not fit the spaces; the message names the field.
        AgentFailedError: ONNX Runtime does not take the model here.
        NotFoundError: of an agent in Python that has not been loaded, see `load_agent`.
    """
    match spec:
        case MlpSpec():
            flattener = Flattener(leaves_of_space(observation_space))
            check_mlp(spec, flattener.size, action_space)
            head = build_head(spec.head, action_space, spec.parameters.get("log_std"), spec.settings, exploration)
            deterministic = exploration.deterministic
            return MlpAgent(spec, flattener, head, num_rows, together=together, deterministic=deterministic)
        case RandomSpec():
            return RandomAgent(leaves_of_space(action_space))
        case ConstantSpec():
            return _build_constant(spec, action_space, num_rows)
        case OnnxSpec():
            return OnnxAgent(spec, action_space, num_rows, together=together, exploration=exploration)
        case PythonSpec():
            return PythonAgent(spec, num_rows, together=together, exploration=exploration)


def _build_constant(spec: ConstantSpec, action_space: Space[Any], num_rows: int) -> ConstantAgent:
    leaves = leaves_of_space(action_space)
    names = [leaf.name for leaf in leaves]
    if set(spec.action) != set(names):
        came, expected = (f"leaves {listed(sorted(each))}" for each in (spec.action, names))
        raise InvalidValueError.of("action", expected=expected, got=came)
    actions = []
    for leaf in leaves:
        field, value = f"action[{leaf.name!r}]", spec.action[leaf.name]
        if value.shape != leaf.shape:
            raise InvalidValueError.of(f"{field}.shape", expected=leaf.shape, got=value.shape)
        if not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
            raise InvalidValueError.of(f"{field}.data_type", expected=leaf.dtype, got=value.dtype)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            action = value.astype(leaf.dtype)
        same = np.isfinite(action).all() if leaf.dtype.kind == "f" else np.array_equal(action, value)
        if not (same and leaf.space.contains(action if leaf.shape else leaf.dtype.type(action))):
            raise InvalidValueError.of(field, expected=f"a value of {leaf.space}", got=value)
        actions.append(action)
    return ConstantAgent(actions, num_rows)
