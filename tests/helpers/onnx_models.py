"""Small models in the ONNX format, built node by node."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rollserve
from rollserve_server.agents import OnnxModel, OnnxSpec, prepare_agent
from rollserve_server.settings import AgentSettings, SandboxLimits

Node = onnx.NodeProto
BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64
OPSET = 18
HEAD = "categorical"


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    """Return a node; names of inputs and of outputs are separated by blanks."""
    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), **attributes)


def model(
    nodes: Sequence[Node],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Mapping[str, Sequence[int | str | None]],
    initializers: Mapping[str, Any] = {},
    *,
    types: Mapping[str, int] = {},
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Return a model whose inputs and outputs are float32 unless `types` has another type for them."""

    def ports(shapes: Mapping[str, Sequence[int | str | None]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, types.get(name, FLOAT), shape) for name, shape in shapes.items()]

    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()]
    graph = helper.make_graph(nodes, "policy", ports(inputs), ports(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def mlp_parameters(sizes: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Return random `i.weight` (outputs, inputs) and `i.bias` for each layer, with PyTorch's names."""
    source = np.random.default_rng(seed)
    parameters = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        parameters[f"{layer}.weight"] = (source.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
        parameters[f"{layer}.bias"] = source.standard_normal(outputs).astype(np.float32)
    return parameters


def mlp_nodes(sizes: Sequence[int], output: str, activation: str = "Tanh") -> list[Node]:
    """Return the nodes of the layers, from the input `observation` to the output."""
    nodes, last = [], len(sizes) - 2
    for layer in range(last + 1):
        out = output if layer == last else f"layer{layer}"
        source = "observation" if layer == 0 else f"active{layer - 1}"
        nodes.append(node("Gemm", f"{source} {layer}.weight {layer}.bias", out, transB=1))
        if layer < last:
            nodes.append(node(activation, out, f"active{layer}"))
    return nodes


def mlp_forward(parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the outputs of the network with tanh, computed in float64."""
    num_layers = sum(name.endswith("weight") for name in parameters)
    for layer in range(num_layers):
        weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
        x = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
        x = np.tanh(x) if layer + 1 < num_layers else x
    return x


def categorical(sizes: Sequence[int] = (4, 16, 2), seed: int = 0, **changes: Any) -> onnx.ModelProto:
    """Return a network whose output is `logits`."""
    inputs, outputs = {"observation": ["N", sizes[0]]}, {"logits": ["N", sizes[-1]]}
    return model(mlp_nodes(sizes, "logits", **changes), inputs, outputs, mlp_parameters(sizes, seed))


def gaussian(sizes: Sequence[int], seed: int = 0, **changes: Any) -> onnx.ModelProto:
    """Return a network whose outputs are `mean` and a constant `log_std`, the parameter `scale`."""
    nodes = [
        *mlp_nodes(sizes, "mean", **changes),
        node("Shape", "mean", "shape"),
        node("Expand", "scale shape", "log_std"),
    ]
    parameters = {**mlp_parameters(sizes, seed), "scale": np.linspace(-1, 0.5, sizes[-1], dtype=np.float32)}
    outputs = {"mean": ["N", sizes[-1]], "log_std": ["N", sizes[-1]]}
    return model(nodes, {"observation": ["N", sizes[0]]}, outputs, parameters)


def agent_of(made: onnx.ModelProto, head: Any = HEAD, **options: Any) -> rollserve.OnnxAgent:
    """Return the client's agent with a model."""
    return rollserve.OnnxAgent(made.SerializeToString(), head, **options)


def prepared(
    made: onnx.ModelProto | bytes,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    head: Any = HEAD,
    sandbox: SandboxLimits | None = None,
    **names: Any,
) -> OnnxSpec:
    """Return a model that has passed the sandbox for these spaces."""
    data = made if isinstance(made, bytes) else made.SerializeToString()
    options = {"inputs": {}, "outputs": {}, "infos": (), **names}
    settings = AgentSettings(model_sandbox=sandbox or SandboxLimits())
    spec = prepare_agent(OnnxModel(data, head=head, **options), observation_space, action_space, settings)
    assert isinstance(spec, OnnxSpec)
    return spec


def changed(**fields: Any) -> onnx.ModelProto:
    """Return a model that fits CartPole, with other inputs, outputs, types, nodes or opset."""
    arguments: dict[str, Any] = {
        "nodes": [node("Gemm", "observation w", "logits")],
        "inputs": {"observation": ["N", 4]},
        "outputs": {"logits": ["N", 2]},
        "initializers": {"w": np.ones((4, 2), np.float32)},
    }
    return model(**{**arguments, **fields})
