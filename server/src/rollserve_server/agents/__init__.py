"""Agents: from specs to something that acts in rows of environments."""

from rollserve_server.agents.agent import Agent, InfoSpec
from rollserve_server.agents.building import build_agent, kind_of, with_parameters
from rollserve_server.agents.specs import Activation, AgentSpec, ConstantSpec, HeadKind, MlpSpec, RandomSpec

__all__ = [
    "Activation",
    "Agent",
    "AgentSpec",
    "ConstantSpec",
    "HeadKind",
    "InfoSpec",
    "MlpSpec",
    "RandomSpec",
    "build_agent",
    "kind_of",
    "with_parameters",
]
