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
from rollserve_server.agents.specs.python import (
    InstalledFactory,
    PickledFactory,
    PythonForm,
    PythonSource,
    PythonSpec,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SPEC_CLASSES", "AgentSource", "AgentSpec", "content_bytes", "kind_of", "parameters_bytes", "parameters_of"]

AgentSpec = MlpSpec | RandomSpec | ConstantSpec | OnnxSpec | PythonSpec
"""Agent that was accepted."""

AgentSource = AgentSpec | OnnxModel | PythonSource
"""Agent as a request sends it."""

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
    """Return the name of the agent's kind: `mlp`, `random`, `constant`, `onnx`, `python` or `pickled`."""
    if isinstance(agent, PythonSource | PythonSpec):
        return "pickled" if isinstance(agent.factory, PickledFactory) else "python"
    return _KINDS[type(agent)]


def parameters_of(spec: AgentSpec) -> Mapping[str, np.ndarray]:
    """Return an agent's parameters by name; empty for a kind without parameters."""
    return spec.parameters if isinstance(spec, MlpSpec | OnnxSpec | PythonSpec) else {}


def parameters_bytes(spec: AgentSpec) -> int:
    """Return the size of an agent's parameters in bytes."""
    return sum(value.nbytes for value in parameters_of(spec).values())


def content_bytes(spec: AgentSpec) -> int:
    """Return the size of an agent in bytes: its parameters, and its graph or pickle. Small objects do not count."""
    code_bytes = 0
    if isinstance(spec, OnnxSpec):
        code_bytes = len(spec.graph)
    elif isinstance(spec, PythonSpec) and isinstance(spec.factory, PickledFactory):
        code_bytes = len(spec.factory.data)
    return code_bytes + parameters_bytes(spec)
