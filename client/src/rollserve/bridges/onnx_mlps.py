"""Multilayer perceptrons as ONNX models, whose initializers have the names of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

__all__ = ["OnnxMlp", "mlp_model"]

_OPSET = 17
_BATCH = "N"
_GAUSSIANS = ("diagonal_gaussian", "squashed_gaussian")
_HEADS = ("categorical", *_GAUSSIANS)
_LEAF_HEADS = (*_HEADS, "multi_categorical", "bernoulli")
"""Heads that models have for the leaves of a Dict or Tuple action space."""


@briefly
class OnnxMlp(NamedTuple):
    """An exported network.

    Attributes:
        model: serialized ModelProto.
        head: head for `OnnxAgent`.
        outputs: names of outputs by role, where they differ because a parameter has the role's name.
    """

    model: bytes
    head: Any
    outputs: Mapping[str, str]


def mlp_model(mlp: Any, observed: Sequence[tuple[str, Space]], action_leaves: Mapping[str, Space]) -> OnnxMlp:
    """Return a network as an ONNX model with the roles of `OnnxAgent`.

    Args:
        mlp: the network, an `MlpAgent`.
        observed: name and space of each leaf of the observation space but the mask; the name of the only one is empty.
        action_leaves: the leaves of the action space by name.

    Raises:
        ImportError: the package onnx is not installed.
        ValueError: a head that models do not have, an input that a model cannot have, or a leaf without numbers.
    """
    heads: Mapping[str, str] = mlp.head if isinstance(mlp.head, Mapping) else {"": mlp.head}
    known = _LEAF_HEADS if isinstance(mlp.head, Mapping) else _HEADS
    for name, head in heads.items():
        if head not in known:
            field = f"head[{name!r}]" if name else "head"
            expected = f"a head that models have, {', '.join(known)}"
            raise ValueError(f"{field}: {mismatch(expected, repr(head))}")
    if mlp.previous_action:
        expected = "False for a model, whose first previous action cannot be no action"
        raise ValueError(f"previous_action: {mismatch(expected, True)}")
    graph = _Graph(load("onnx", "onnx"), mlp.parameters)
    x = _input(graph, mlp, observed)
    features, hidden = _features(graph, mlp, x, "")
    last = f"{_num_layers(mlp.parameters, '') - 1}"
    output = graph.linear(features, last)
    _write_heads(graph, mlp, output, heads, action_leaves)
    _write_value(graph, mlp, x, features if mlp.core is not None else hidden)
    return OnnxMlp(graph.model(), dict(heads) if isinstance(mlp.head, Mapping) else mlp.head, graph.output_names)


class _Graph:
    """A graph that grows node by node.

    Attributes:
        output_names: names of outputs by role, where they differ.
    """

    def __init__(self, onnx: Any, parameters: Mapping[str, np.ndarray]) -> None:
        self._onnx = onnx
        self._parameters = parameters
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self.output_names: dict[str, str] = {}

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def parameter(self, name: str) -> str:
        """Return the name of a parameter, which becomes an initializer."""
        value = np.ascontiguousarray(self._parameters[name])
        self._initializers[name] = self._onnx.numpy_helper.from_array(value, name)
        return name

    def constant(self, value: Any, dtype: Any) -> str:
        """Return the name of a new constant."""
        tensor = self._onnx.numpy_helper.from_array(np.asarray(value, dtype))
        name = f"constant_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node("Constant", [], [name], value=tensor))
        return name

    def cast(self, x: str, dtype: Any) -> str:
        return self.node("Cast", x, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def input(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        self._inputs.append(self._port(name, dtype, shape))
        return name

    def output(self, role: str, x: str, dtype: Any, shape: Sequence[int]) -> None:
        name = role
        if role in self._parameters:
            name = self.output_names[role] = f"{role}/output"
        self._outputs.append(self._port(name, dtype, shape))
        self.node("Identity", x, output=name)

    def linear(self, x: str, layer: str) -> str:
        """Return a layer's `weight · x + bias`."""
        return self.node("Gemm", x, self.parameter(f"{layer}/weight"), self.parameter(f"{layer}/bias"), transB=1)

    def columns(self, x: str, start: int, stop: int) -> str:
        """Return the columns from `start` to `stop`."""
        return self.node("Slice", x, *(self.constant([each], np.int64) for each in (start, stop, 1)))

    def model(self) -> bytes:
        """Return the serialized model."""
        helper = self._onnx.helper
        initializers = list(self._initializers.values())
        graph = helper.make_graph(self._nodes, "policy", self._inputs, self._outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
        self._onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data

    def _port(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, [_BATCH, *shape])


def _input(graph: _Graph, mlp: Any, observed: Sequence[tuple[str, Space]]) -> str:
    """Return the network's input: the flat observation, normalized, and the reward before."""
    leaves = [_flat(graph, f"observation/{name}" if name else "observation", space) for name, space in observed]
    x = graph.node("Concat", *leaves, axis=1)
    if "observation/mean" in mlp.parameters:
        variance = graph.node(
            "Add", graph.parameter("observation/variance"), graph.constant(mlp.normalization_epsilon, np.float64)
        )
        centred = graph.node("Sub", graph.cast(x, np.float64), graph.parameter("observation/mean"))
        scaled = graph.node("Div", centred, graph.node("Sqrt", variance))
        bounds = (graph.constant(sign * mlp.normalization_clip, np.float64) for sign in (-1, 1))
        x = graph.cast(graph.node("Clip", scaled, *bounds), np.float32)
    if not mlp.previous_reward:
        return x
    reward = graph.input("previous_reward", np.float64, ())
    column = graph.node("Unsqueeze", graph.cast(reward, np.float32), graph.constant([1], np.int64))
    return graph.node("Concat", x, column, axis=1)


def _flat(graph: _Graph, role: str, space: Space) -> str:
    """Return a leaf as float32 (N, flat size): integers of Discrete and MultiDiscrete one-hot, others raveled."""
    match space:
        case Box(shape=shape, dtype=dtype):
            x = graph.cast(graph.input(role, dtype, shape), np.float32)
        case MultiBinary(shape=shape):
            x = graph.cast(graph.input(role, np.int8, shape), np.float32)
        case Discrete(n=n, start=start):
            index = graph.node("Sub", graph.input(role, np.int64, ()), graph.constant(start, np.int64))
            return _one_hot(graph, index, n)
        case MultiDiscrete(nvec=nvec, start=starts):
            x = graph.input(role, np.int64, nvec.shape)
            flat = graph.node("Reshape", x, graph.constant([-1, nvec.size], np.int64))
            indices = graph.node("Sub", flat, graph.constant(np.ravel(starts), np.int64))
            columns = [
                graph.node("Squeeze", graph.columns(indices, place, place + 1), graph.constant([1], np.int64))
                for place in range(nvec.size)
            ]
            hot = [_one_hot(graph, column, int(n)) for column, n in zip(columns, nvec.ravel(), strict=True)]
            return graph.node("Concat", *hot, axis=1)
        case _:
            raise ValueError(f"observation_space: {mismatch('leaves that a network can have', space)}")
    return graph.node("Reshape", x, graph.constant([-1, math.prod(shape)], np.int64))


def _one_hot(graph: _Graph, index: str, n: int) -> str:
    return graph.node("OneHot", index, graph.constant(n, np.int64), graph.constant([0, 1], np.float32), axis=-1)


def _features(graph: _Graph, mlp: Any, x: str, prefix: str) -> tuple[str, str]:
    """Return the input of a network's last layer, and the output of its last hidden layer."""
    for layer in range(_num_layers(mlp.parameters, prefix) - 1):
        name = f"{prefix}{layer}"
        x = graph.linear(x, name)
        if f"{name}/norm/weight" in mlp.parameters:
            norm = (graph.parameter(f"{name}/norm/{part}") for part in ("weight", "bias"))
            x = graph.node("LayerNormalization", x, *norm, axis=-1, epsilon=mlp.layer_norm_epsilon)
        x = _activated(graph, x, mlp.activation)
    return (x if prefix or mlp.core is None else _with_core(graph, mlp, x)), x


def _activated(graph: _Graph, x: str, activation: str) -> str:
    match activation:
        case "silu":
            return graph.node("Mul", x, graph.node("Sigmoid", x))
        case "gelu":
            inner = graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2), np.float32)))
        case "gelu_tanh":
            cube = graph.node("Mul", graph.node("Mul", x, x), x)
            sum_ = graph.node("Add", x, graph.node("Mul", cube, graph.constant(0.044715, np.float32)))
            inner = graph.node("Tanh", graph.node("Mul", sum_, graph.constant(math.sqrt(2 / math.pi), np.float32)))
        case _:
            return graph.node(activation.capitalize(), x)
    half = graph.node("Mul", x, graph.constant(0.5, np.float32))
    return graph.node("Mul", half, graph.node("Add", inner, graph.constant(1, np.float32)))


def _with_core(graph: _Graph, mlp: Any, x: str) -> str:
    """Return the output of the recurrent core, with the formulas of agent.proto; its states are inputs and outputs."""
    size = mlp.parameters["core/weight_hh"].shape[1]
    names = {"gru": ("h",), "lstm": ("h", "c")}[mlp.core]
    h, *rest = (graph.input(f"state/{name}", np.float32, (size,)) for name in names)
    from_x, from_h = (
        graph.node("Gemm", each, graph.parameter(f"core/weight_{kind}"), graph.parameter(f"core/bias_{kind}"), transB=1)
        for each, kind in ((x, "ih"), (h, "hh"))
    )

    def part(gates: str, position: int) -> str:
        return graph.columns(gates, position * size, (position + 1) * size)

    def gate(position: int, activation: str = "Sigmoid") -> str:
        return graph.node(activation, graph.node("Add", part(from_x, position), part(from_h, position)))

    if mlp.core == "gru":
        reset, update = gate(0), gate(1)
        new = graph.node("Tanh", graph.node("Add", part(from_x, 2), graph.node("Mul", reset, part(from_h, 2))))
        kept = graph.node("Sub", graph.constant(1, np.float32), update)
        states = [graph.node("Add", graph.node("Mul", kept, new), graph.node("Mul", update, h))]
    else:
        added = graph.node("Mul", gate(0), gate(2, "Tanh"))
        cell = graph.node("Add", graph.node("Mul", gate(1), rest[0]), added)
        states = [graph.node("Mul", gate(3), graph.node("Tanh", cell)), cell]
    for name, state in zip(names, states, strict=True):
        graph.output(f"next_state/{name}", state, np.float32, (size,))
    return states[0]


def _write_heads(
    graph: _Graph, mlp: Any, output: str, heads: Mapping[str, str], action_leaves: Mapping[str, Space]
) -> None:
    """Write what the head of each leaf takes, one leaf of the network's output after the other."""
    start = 0
    for name, space in action_leaves.items():
        size, suffix = space.flat_size, f"/{name}" if name else ""
        columns = graph.columns(output, start, start + size)
        start += size
        if heads[name] not in _GAUSSIANS:
            graph.output(f"logits{suffix}", columns, np.float32, (size,))
            continue
        graph.output(f"mean{suffix}", columns, np.float32, (size,))
        if f"log_std{suffix}" in mlp.parameters:
            shape = graph.node("Shape", columns)
            log_std = graph.node("Expand", graph.parameter(f"log_std{suffix}"), shape)
        else:
            log_std = graph.columns(output, start, start + size)
            start += size
        for operator, bound in (("Max", mlp.min_log_std), ("Min", mlp.max_log_std)):
            if bound is not None:
                log_std = graph.node(operator, log_std, graph.constant(bound, np.float32))
        graph.output(f"log_std{suffix}", log_std, np.float32, (size,))


def _write_value(graph: _Graph, mlp: Any, x: str, features: str) -> None:
    if "value/weight" in mlp.parameters:
        value = graph.linear(features, "value")
    elif "value/0/weight" in mlp.parameters:
        hidden, _ = _features(graph, mlp, x, "value/")
        value = graph.linear(hidden, f"value/{_num_layers(mlp.parameters, 'value/') - 1}")
    else:
        return
    graph.output("value", value, np.float32, (1,))


def _num_layers(parameters: Mapping[str, np.ndarray], prefix: str) -> int:
    count = 0
    while f"{prefix}{count}/weight" in parameters:
        count += 1
    return count
