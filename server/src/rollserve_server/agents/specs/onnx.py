"""Models in the ONNX format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.agents.specs.inputs import NO_INPUTS, AgentInputs

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.agents.specs.batching import Batching
    from rollserve_server.agents.specs.heads import LeafHead, OnnxHeadKind
    from rollserve_server.agents.specs.shapes import Shapes

__all__ = ["OnnxModel", "OnnxSpec", "Port"]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A model as a request sends it, as OnnxAgent in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        data: serialized model.
        inputs: names of inputs by role, where name and role differ.
        outputs: names of outputs by role, where name and role differ.
        head: kind of the head.
        infos: names of outputs that are infos.
        agent_inputs: what the agent gets beside the observation.
        leaf_heads: heads of the leaves of the action space, by name; empty unless the head is hybrid.
    """

    data: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    head: OnnxHeadKind
    infos: tuple[str, ...]
    agent_inputs: AgentInputs = NO_INPUTS
    leaf_heads: Mapping[str, LeafHead] = field(default_factory=dict)


class Port(NamedTuple):
    """An input or output of a model.

    Attributes:
        role: what the port is for, such as `observation`, `logits` or `state/h`.
        name: name in the model.
        dtype: dtype of the elements.
        shape: shape of one row.
    """

    role: str
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OnnxSpec:
    """A model that was read, probed in a sandbox, and split into graph and parameters.

    Attributes:
        graph: serialized model with references in place of the parameters.
        inputs: inputs for the leaves of the observation space except the mask, in their order, then for the mask, the
            step before and noise if the model takes them, then for the model's own states.
        outputs: outputs by role.
        head: kind of the head.
        infos: roles of the outputs that are infos.
        batching: numbers of rows in which the model runs.
        providers: execution providers of ONNX Runtime, the best first.
        parameters: parameters by name.
        shapes: dtypes and shapes of the model's parameters.
        agent_inputs: what the agent gets beside the observation.
        leaf_heads: heads of the leaves of the action space, by name; empty unless the head is hybrid.
        source: digest of the model as it was sent; None once parameters were replaced. No part of the agent's content.
    """

    graph: bytes
    inputs: tuple[Port, ...]
    outputs: Mapping[str, Port]
    head: OnnxHeadKind
    infos: tuple[str, ...]
    batching: Batching
    providers: tuple[str, ...]
    parameters: Mapping[str, np.ndarray]
    shapes: Shapes
    agent_inputs: AgentInputs = NO_INPUTS
    leaf_heads: Mapping[str, LeafHead] = field(default_factory=dict)
    source: bytes | None = field(default=None, compare=False)
