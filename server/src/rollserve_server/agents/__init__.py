"""Agents: from specs to something that acts in rows of environments."""

from rollserve_server.agents.agent import Agent, InfoSpec, StateSpec
from rollserve_server.agents.building import build_agent, kind_of, parameters_bytes, prepare_agent, with_parameters
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS, Exploration, check_exploration
from rollserve_server.agents.onnx_checking import OnnxSettings
from rollserve_server.agents.onnx_trying import TrialSettings
from rollserve_server.agents.populations import PopulationAgent, build_population, check_population
from rollserve_server.agents.specs import (
    Activation,
    AgentSpec,
    ConstantSpec,
    HeadKind,
    HeadSettings,
    MlpSpec,
    OnnxHeadKind,
    OnnxModel,
    OnnxSpec,
    RandomSpec,
    Value,
)

__all__ = [
    "AS_THE_AGENT_SAYS",
    "Activation",
    "Agent",
    "AgentSpec",
    "ConstantSpec",
    "Exploration",
    "HeadKind",
    "HeadSettings",
    "InfoSpec",
    "MlpSpec",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSettings",
    "OnnxSpec",
    "PopulationAgent",
    "RandomSpec",
    "StateSpec",
    "TrialSettings",
    "Value",
    "build_agent",
    "build_population",
    "check_exploration",
    "check_population",
    "kind_of",
    "parameters_bytes",
    "prepare_agent",
    "with_parameters",
]
