"""Agents: from specs to something that acts in rows of environments."""

from rollserve_server.agents.agent import Agent, InfoSpec, StateSpec
from rollserve_server.agents.building import (
    build_agent,
    kind_of,
    load_agent,
    parameters_bytes,
    prepare_agent,
    with_parameters,
)
from rollserve_server.agents.contents import content_bytes, content_hash, is_same, parameters_of
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS, Exploration, check_exploration
from rollserve_server.agents.populations import PopulationAgent, build_population, check_population
from rollserve_server.agents.python.policy import PythonPolicy
from rollserve_server.agents.python.specs import InstalledFactory, PickledFactory, PythonSource, PythonSpec
from rollserve_server.agents.specs import (
    Activation,
    AgentSource,
    AgentSpec,
    ConstantSpec,
    CoreSpec,
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
    "AgentSource",
    "AgentSpec",
    "ConstantSpec",
    "CoreSpec",
    "Exploration",
    "HeadKind",
    "HeadSettings",
    "InfoSpec",
    "InstalledFactory",
    "MlpSpec",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSpec",
    "PickledFactory",
    "PopulationAgent",
    "PythonPolicy",
    "PythonSource",
    "PythonSpec",
    "RandomSpec",
    "StateSpec",
    "Value",
    "build_agent",
    "build_population",
    "check_exploration",
    "check_population",
    "content_bytes",
    "content_hash",
    "is_same",
    "kind_of",
    "load_agent",
    "parameters_bytes",
    "parameters_of",
    "prepare_agent",
    "with_parameters",
]
