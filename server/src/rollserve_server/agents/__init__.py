"""Agents: from specs to something that acts in rows of environments."""

from rollserve_server.agents.agent import Agent, InfoSpec
from rollserve_server.agents.building import build_agent, kind_of, parameters_bytes, prepare_agent, with_parameters
from rollserve_server.agents.onnx_checking import OnnxSettings
from rollserve_server.agents.onnx_trying import TrialSettings
from rollserve_server.agents.specs import (
    Activation,
    AgentSpec,
    ConstantSpec,
    HeadKind,
    MlpSpec,
    OnnxHeadKind,
    OnnxModel,
    OnnxSpec,
    RandomSpec,
)

__all__ = [
    "Activation",
    "Agent",
    "AgentSpec",
    "ConstantSpec",
    "HeadKind",
    "InfoSpec",
    "MlpSpec",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSettings",
    "OnnxSpec",
    "RandomSpec",
    "TrialSettings",
    "build_agent",
    "kind_of",
    "parameters_bytes",
    "prepare_agent",
    "with_parameters",
]
