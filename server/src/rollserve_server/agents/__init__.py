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
from rollserve_server.agents.onnx.checks import OnnxSettings
from rollserve_server.agents.populations import PopulationAgent, build_population, check_population
from rollserve_server.agents.python.checks import PythonSettings
from rollserve_server.agents.python.policy import PythonPolicy
from rollserve_server.agents.python.specs import InstalledFactory, PickledFactory, PythonSource, PythonSpec
from rollserve_server.agents.sandbox.run import SandboxLimits
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
    "OnnxSettings",
    "OnnxSpec",
    "PickledFactory",
    "PopulationAgent",
    "PythonPolicy",
    "PythonSettings",
    "PythonSource",
    "PythonSpec",
    "RandomSpec",
    "SandboxLimits",
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
