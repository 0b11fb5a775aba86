"""Agents, as a caller writes them; the server evaluates them."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from rollserve.checks import check_text, check_type
from rollserve.spaces import Box, Discrete, Space
from rollserve.tensors import named_tensors_to_proto
from rollserve.v1 import agent_pb2

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "Agent",
    "ConstantAgent",
    "MlpAgent",
    "OnnxAgent",
    "RandomAgent",
    "agent_to_proto",
    "parameters_to_proto",
]

Activation = Literal["tanh", "relu"]
Head = Literal["categorical", "diagonal_gaussian"]
OnnxHead = Literal["categorical", "diagonal_gaussian", "squashed_gaussian", "actions"]

_ACTIVATIONS: dict[Activation, agent_pb2.Activation.ValueType] = {
    "tanh": agent_pb2.ACTIVATION_TANH,
    "relu": agent_pb2.ACTIVATION_RELU,
}


@dataclass(frozen=True, eq=False)
class MlpAgent:
    """A multilayer perceptron with a distribution over actions at its end, evaluated in float32.

    Layer i is `activation(weight @ input + bias)`, the last one without the activation. The input is the observation as
    `gymnasium.spaces.flatten` makes it.

    Attributes:
        parameters: float32 arrays, `i/weight` of shape (outputs, inputs) and `i/bias` of shape (outputs,) for each
            layer i from 0; with the head `diagonal_gaussian` also `log_std` of shape (outputs of the last layer,).
        head: `categorical` for a Discrete action space (the output is the logits), `diagonal_gaussian` for a Box (the
            output is the mean).
        activation: the function of the hidden layers, `tanh` or `relu`.

    Raises:
        TypeError: the parameters are not a mapping.
        ValueError: there is no such head or activation.
    """

    parameters: Mapping[str, np.ndarray]
    head: Head
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        _check_choice("head", self.head, get_args(Head))
        _check_choice("activation", self.activation, get_args(Activation))

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The size of the input, of each hidden layer and of the output, read off the weights.

        Raises:
            ValueError: there is no `0/weight`, or a weight is not a matrix.
        """
        shapes: list[tuple[int, ...]] = []
        while (name := f"{len(shapes)}/weight") in self.parameters:
            shape = np.shape(self.parameters[name])
            if len(shape) != 2:
                raise ValueError(f"parameter {name!r}: shape {shape} came, two dimensions were expected")
            shapes.append(shape)
        if not shapes:
            raise ValueError("parameters: '0/weight' is missing")
        return (shapes[0][1], *(outputs for outputs, _ in shapes))

    @classmethod
    def initial(
        cls,
        observation_space: Space,
        action_space: Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        seed: int | None = None,
    ) -> MlpAgent:
        """An untrained agent for the spaces: a beginning for a trainer, and for trying things out.

        Weights are normal with variance 1 / inputs, the last layer's a hundredth of that in deviation, so that the
        first policy is close to uniform; biases and `log_std` are 0.

        Args:
            observation_space: where observations come from, as `update_env` and `status` give it.
            action_space: where actions come from, likewise.
            hidden_sizes: the size of each hidden layer.
            activation: the function of the hidden layers.
            seed: of the weights; another each time unless given.

        Raises:
            TypeError: a space is none of `rollserve.spaces`, or the sizes are not a sequence of integers.
            ValueError: the action space is neither Discrete nor a Box of floats, or a size is not positive.
        """
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            check_type(name, space, Space, "a space of rollserve.spaces, as update_env and status give it,")
        check_type("hidden_sizes", hidden_sizes, Sequence, "a sequence such as (64, 64)")
        for position, size in enumerate(hidden_sizes):
            check_type(f"hidden_sizes[{position}]", size, numbers.Integral, "an integer")
            if size < 1:
                raise ValueError(f"hidden_sizes[{position}]: {size} came, at least 1 was expected")
        match action_space:
            case Discrete(n=outputs):
                head: Head = "categorical"
            case Box() if np.issubdtype(action_space.dtype, np.floating):
                head, outputs = "diagonal_gaussian", math.prod(action_space.shape)
            case _:
                raise ValueError(f"action space {action_space} came, Discrete or a Box of floats was expected")
        generator = np.random.default_rng(seed)
        sizes = (observation_space.flat_size, *hidden_sizes, outputs)
        parameters: dict[str, np.ndarray] = {}
        for layer, (inputs, outs) in enumerate(itertools.pairwise(sizes)):
            scale = (0.01 if layer == len(hidden_sizes) else 1.0) / math.sqrt(inputs)
            weight = scale * generator.standard_normal((outs, inputs))
            parameters[f"{layer}/weight"] = weight.astype(np.float32)
            parameters[f"{layer}/bias"] = np.zeros(outs, np.float32)
        if head == "diagonal_gaussian":
            parameters["log_std"] = np.zeros(outputs, np.float32)
        return cls(parameters, head, activation)


@dataclass(frozen=True, eq=False)
class OnnxAgent:
    """Any model in the ONNX format, from any framework. docs/agents.md has recipes.

    Each input and output has a role, and is called like it unless `inputs` or `outputs` say otherwise. Inputs are
    `observation`, or `observation/NAME` for each leaf of a Dict or Tuple space, and if the model needs random numbers
    `noise`. Outputs are what the head takes, and if there is one `value`. The first axis of each is the batch, of any
    size.

    Attributes:
        model: the serialized ModelProto, or the path of a file that holds it.
        head: what the outputs mean: `categorical` takes `logits`; `diagonal_gaussian` and `squashed_gaussian` take
            `mean` and `log_std`; `actions` takes `action`, or `action/NAME` for each leaf, and if there is one
            `log_prob`.
        inputs: by role, the names of inputs that are called otherwise.
        outputs: by role, the names of outputs that are called otherwise.
        infos: the names of further outputs, which become agent_infos.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: there is no such head.
        OSError: the file cannot be read.
    """

    model: bytes | str | PathLike[str]
    head: OnnxHead
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    infos: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_type("model", self.model, bytes | str | PathLike, "the bytes of a model, or a path")
        _check_choice("head", self.head, get_args(OnnxHead))
        for name, names in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_type(name, names, Mapping, "a mapping from roles to names")
            for text in (*names, *names.values()):
                check_text(name, text)
        if isinstance(self.infos, str):
            raise TypeError("infos: str came, a sequence of names was expected")
        for text in self.infos:
            check_text("infos", text)
        if not isinstance(self.model, bytes):
            object.__setattr__(self, "model", Path(self.model).read_bytes())


@dataclass(frozen=True)
class RandomAgent:
    """Actions drawn uniformly from the action space, as `gymnasium.Space.sample` draws them."""


@dataclass(frozen=True, eq=False)
class ConstantAgent:
    """The same action always.

    Attributes:
        action: a value of the action space; for Dict and Tuple spaces a mapping from leaf names to values.
    """

    action: ArrayLike | Mapping[str, ArrayLike]


Agent = MlpAgent | OnnxAgent | RandomAgent | ConstantAgent
"""Any agent."""


def agent_to_proto(agent: Agent) -> agent_pb2.Agent:
    """The agent as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire, or an MLP has no layers.
        TypeError: it is no agent.
    """
    match agent:
        case MlpAgent():
            mlp = agent_pb2.MlpAgent(
                layer_sizes=agent.layer_sizes,
                activation=_ACTIVATIONS[agent.activation],
                parameters=parameters_to_proto(agent.parameters),
            )
            getattr(mlp, agent.head).SetInParent()
            return agent_pb2.Agent(mlp=mlp)
        case OnnxAgent(model=bytes(model)):
            onnx = agent_pb2.OnnxAgent(model=model, inputs=agent.inputs, outputs=agent.outputs, infos=agent.infos)
            getattr(onnx, agent.head).SetInParent()
            return agent_pb2.Agent(onnx=onnx)
        case RandomAgent():
            return agent_pb2.Agent(random=agent_pb2.RandomAgent())
        case ConstantAgent(action=action):
            leaves = action if isinstance(action, Mapping) else {"": action}
            tensors = named_tensors_to_proto({name: np.asarray(leaf) for name, leaf in leaves.items()})
            return agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=tensors))
    raise TypeError(f"agent: {type(agent).__name__} came, an agent was expected")


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} came, {' or '.join(map(repr, choices))} was expected")


def parameters_to_proto(parameters: Mapping[str, np.ndarray]) -> agent_pb2.Parameters:
    """The parameters as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire; the message names it.
    """
    return agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))
