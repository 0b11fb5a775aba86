"""Agents built from specs, and checked against the spaces in which they act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.agents.action_masks import action_mask_of
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.mlp.agent import MlpAgent, NetworkInput
from rollserve_server.agents.mlp.checks import check_mlp, mlp_head
from rollserve_server.agents.onnx.agent import OnnxAgent
from rollserve_server.agents.onnx.preparing import check_onnx, prepare_onnx
from rollserve_server.agents.open_loop import ConstantAgent, RandomAgent
from rollserve_server.agents.python.agent import PythonAgent, load_python
from rollserve_server.agents.python.preparing import check_python, prepare_python
from rollserve_server.agents.specs import (
    AgentSource,
    ConstantSpec,
    MlpSpec,
    OnnxModel,
    OnnxSpec,
    PolicySource,
    PolicySpec,
    PythonSource,
    PythonSpec,
    RandomSpec,
    content_bytes,
)
from rollserve_server.envs import leaves_of_space

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents.agent import Agent
    from rollserve_server.settings import AgentSettings

__all__ = ["build_agent", "is_quick_to_prepare", "load_agent", "prepare_agent"]

_QUICK_BYTES = 1 << 18


def prepare_agent(
    agent: PolicySource,
    observation_space: Space[Any],
    action_space: Space[Any],
    settings: AgentSettings,
) -> PolicySpec:
    """Check an agent before workers get it; probe models and Python code in a sandbox.

    Args:
        agent: agent as a request sends it, or as it was accepted before.
        observation_space: observation space of one row.
        action_space: action space of one row.
        settings: operator's limits and permissions.

    Raises:
        InvalidValueError: the agent is malformed, or does not fit the spaces; the message names the field.
        OverLimitError: a model or pickle is too large.
        NotFoundError, NotAllowedError: a Python agent is not installed or not allowed, see `prepare_python`.
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


def is_quick_to_prepare(agent: AgentSource) -> bool:
    """Whether `prepare_agent` takes less than a change of threads: for small agents without code of others."""
    return isinstance(agent, MlpSpec | RandomSpec | ConstantSpec) and content_bytes(agent) <= _QUICK_BYTES


def load_agent(spec: PolicySpec) -> PolicySpec:
    """Load an agent on a worker: make the policy of a Python agent, which runs its code.

    Raises:
        NotFoundError, InvalidValueError: the policy cannot be made here, see `load_python`.
    """
    return load_python(spec) if isinstance(spec, PythonSpec) else spec


def build_agent(
    spec: PolicySpec,
    observation_space: Space[Any],
    action_space: Space[Any],
    num_rows: int,
    *,
    together: bool = False,
    exploration: Exploration = DEFAULT_EXPLORATION,
) -> Agent:
    """Build an agent for a number of rows.

    Args:
        spec: agent.
        observation_space: observation space of one row.
        action_space: action space of one row.
        num_rows: number of rows that act together.
        together: whether the rows belong to one vector environment, and so are always the same. The agent is then
            faster, but the last bits of a row's results may depend on the rows beside it.
        exploration: how freely the agent acts; see `check_exploration`.

    Raises:
        InvalidValueError: the spec is malformed, or does not fit the spaces; the message names the field.
        AgentFailedError: ONNX Runtime refuses the model on this machine.
        NotFoundError: a Python agent was not loaded with `load_agent`, and is not installed here.
    """
    inputs = spec.agent_inputs if isinstance(spec, OnnxSpec) else spec.inputs
    mask = action_mask_of(inputs.action_mask, observation_space, action_space)
    match spec:
        case MlpSpec():
            leaves = leaves_of_space(observation_space), leaves_of_space(action_space)
            network_input = NetworkInput(*leaves, mask, spec.inputs)
            check_mlp(spec, network_input, action_space)
            head = mlp_head(spec, action_space, exploration, mask)
            return MlpAgent(spec, network_input, head, num_rows, mask=mask, together=together)
        case RandomSpec():
            return RandomAgent(action_space, mask)
        case ConstantSpec():
            return ConstantAgent(spec, action_space, num_rows, mask)
        case OnnxSpec():
            return OnnxAgent(spec, action_space, num_rows, mask=mask, together=together, exploration=exploration)
        case PythonSpec():
            return PythonAgent(spec, num_rows, mask=mask, together=together, exploration=exploration)
