"""Agents of all kinds: their names, parameters and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollserve_server.agents.agent import InfoSpec
from rollserve_server.agents.specs.batching import Batching
from rollserve_server.agents.specs.heads import HeadSettings, LeafHead
from rollserve_server.agents.specs.inputs import AgentInputs, MaskSource
from rollserve_server.agents.specs.mlp import CoreSpec, MlpSpec, Normalization
from rollserve_server.agents.specs.onnx import OnnxModel, OnnxSpec, Port
from rollserve_server.agents.specs.open_loop import ConstantSpec, RandomSpec
from rollserve_server.agents.specs.policies import POLICY_CLASSES, PolicySet
from rollserve_server.agents.specs.python import (
    InstalledFactory,
    PickledFactory,
    PythonForm,
    PythonSource,
    PythonSpec,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "SPEC_CLASSES",
    "AgentSource",
    "AgentSpec",
    "PolicySource",
    "PolicySpec",
    "content_bytes",
    "kind_of",
    "parameters_bytes",
    "parameters_of",
]

PolicySpec = MlpSpec | RandomSpec | ConstantSpec | OnnxSpec | PythonSpec
"""Single agent that was accepted."""

PolicySource = PolicySpec | OnnxModel | PythonSource
"""Single agent as a request sends it."""

AgentSpec = PolicySpec | PolicySet[PolicySpec]
"""Agent that was accepted, or policies by name for an environment with many agents."""

AgentSource = PolicySource | PolicySet[PolicySource]
"""Agent or policies by name as a request sends them, put together with the present ones."""

SPEC_CLASSES: tuple[type, ...] = (
    MlpSpec,
    CoreSpec,
    Normalization,
    HeadSettings,
    LeafHead,
    AgentInputs,
    MaskSource,
    RandomSpec,
    ConstantSpec,
    OnnxSpec,
    Port,
    Batching,
    PythonSpec,
    PythonForm,
    InfoSpec,
    InstalledFactory,
    PickledFactory,
    *POLICY_CLASSES,
)
"""Classes of specs, and of the values within them that are neither arrays nor spaces."""

_KINDS: dict[type, str] = {
    MlpSpec: "mlp",
    RandomSpec: "random",
    ConstantSpec: "constant",
    OnnxModel: "onnx",
    OnnxSpec: "onnx",
}


def kind_of(agent: AgentSource) -> str:
    """Return the name of the agent's kind: `mlp`, `random`, `constant`, `onnx`, `python`, `pickled` or `policies`."""
    if isinstance(agent, PolicySet):
        return "policies"
    if isinstance(agent, PythonSource | PythonSpec):
        return "pickled" if isinstance(agent.factory, PickledFactory) else "python"
    return _KINDS[type(agent)]


def parameters_of(spec: AgentSpec) -> Mapping[str, np.ndarray]:
    """Return an agent's parameters by name; empty for a kind without parameters.

    Those of several policies have the names of these in front, as in `red/0/weight`, and are of their current versions.
    """
    if isinstance(spec, PolicySet):
        return {
            f"{policy}/{name}": value
            for policy, held in spec.policies.items()
            for name, value in parameters_of(held[0].spec).items()
        }
    return spec.parameters if isinstance(spec, MlpSpec | OnnxSpec | PythonSpec) else {}


def parameters_bytes(spec: AgentSpec) -> int:
    """Return the size of an agent's parameters in bytes."""
    return sum(value.nbytes for value in parameters_of(spec).values())


def content_bytes(spec: AgentSpec) -> int:
    """Return the size of an agent in bytes: its parameters, and its graph or pickle. Small objects do not count."""
    if isinstance(spec, PolicySet):
        return sum(content_bytes(each.spec) for held in spec.policies.values() for each in held)
    code_bytes = 0
    if isinstance(spec, OnnxSpec):
        code_bytes = len(spec.graph)
    elif isinstance(spec, PythonSpec) and isinstance(spec.factory, PickledFactory):
        code_bytes = len(spec.factory.data)
    return code_bytes + parameters_bytes(spec)
