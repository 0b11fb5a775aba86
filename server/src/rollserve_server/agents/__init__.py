"""Agents: what acts in rows of environments, checked and built from specs."""

from rollserve_server.agents.action_masks import is_without_choice, legal_values
from rollserve_server.agents.agent import (
    VALUE,
    ActionMask,
    Agent,
    Decision,
    InfoSpec,
    LeafMask,
    NoiseKind,
    PopulationAgent,
    StateSpec,
)
from rollserve_server.agents.building import build_agent, is_quick_to_prepare, load_agent, prepare_agent
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration, check_exploration
from rollserve_server.agents.identity import content_hash, is_same
from rollserve_server.agents.onnx.model import join_model
from rollserve_server.agents.onnx.providers import check_providers
from rollserve_server.agents.parameters import with_kwargs, with_parameters
from rollserve_server.agents.policies import (
    check_delivered,
    check_map,
    choices_of_agents,
    lineups_of,
    load_policies,
    members_in_place,
    policies_after,
    policy_versions,
    prepare_for_env,
    spaces_of_policies,
)
from rollserve_server.agents.policy_agents import BuiltPolicy, PolicyAgents
from rollserve_server.agents.populations import build_population, check_members, check_population
from rollserve_server.agents.python_policy import PythonPolicy
from rollserve_server.agents.specs.heads import (
    DEFAULT_HEAD_SETTINGS,
    HeadKind,
    HeadSettings,
    LeafHead,
    MlpHeadKind,
    OnnxHeadKind,
)
from rollserve_server.agents.specs.inputs import NO_INPUTS, AgentInputs, MaskSource
from rollserve_server.agents.specs.kinds import (
    SPEC_CLASSES,
    AgentSource,
    AgentSpec,
    PolicySource,
    PolicySpec,
    content_bytes,
    kind_of,
    parameters_bytes,
    parameters_of,
)
from rollserve_server.agents.specs.mlp import Activation, CoreSpec, MlpSpec, Normalization, Value
from rollserve_server.agents.specs.onnx import OnnxModel, OnnxSpec
from rollserve_server.agents.specs.open_loop import ConstantSpec, RandomSpec
from rollserve_server.agents.specs.policies import MEMBER_VERSION, HeldPolicy, PolicySet
from rollserve_server.agents.specs.python import InstalledFactory, PickledFactory, PythonSource, PythonSpec
from rollserve_server.agents.values import check_value

__all__ = [
    "DEFAULT_EXPLORATION",
    "DEFAULT_HEAD_SETTINGS",
    "MEMBER_VERSION",
    "NO_INPUTS",
    "SPEC_CLASSES",
    "VALUE",
    "ActionMask",
    "Activation",
    "Agent",
    "AgentInputs",
    "AgentSource",
    "AgentSpec",
    "BuiltPolicy",
    "ConstantSpec",
    "CoreSpec",
    "Decision",
    "Exploration",
    "HeadKind",
    "HeadSettings",
    "HeldPolicy",
    "InfoSpec",
    "InstalledFactory",
    "LeafHead",
    "LeafMask",
    "MaskSource",
    "MlpHeadKind",
    "MlpSpec",
    "NoiseKind",
    "Normalization",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSpec",
    "PickledFactory",
    "PolicyAgents",
    "PolicySet",
    "PolicySource",
    "PolicySpec",
    "PopulationAgent",
    "PythonPolicy",
    "PythonSource",
    "PythonSpec",
    "RandomSpec",
    "StateSpec",
    "Value",
    "build_agent",
    "build_population",
    "check_delivered",
    "check_exploration",
    "check_map",
    "check_members",
    "check_population",
    "check_providers",
    "check_value",
    "choices_of_agents",
    "content_bytes",
    "content_hash",
    "is_quick_to_prepare",
    "is_same",
    "is_without_choice",
    "join_model",
    "kind_of",
    "legal_values",
    "lineups_of",
    "load_agent",
    "load_policies",
    "members_in_place",
    "parameters_bytes",
    "parameters_of",
    "policies_after",
    "policy_versions",
    "prepare_agent",
    "prepare_for_env",
    "spaces_of_policies",
    "with_kwargs",
    "with_parameters",
]
