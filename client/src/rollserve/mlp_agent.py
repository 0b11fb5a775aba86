"""Multilayer perceptrons, as a caller writes them; the server evaluates them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rollserve._checks import check_type
from rollserve._codec.tensors import named_tensors_to_proto
from rollserve.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from rollserve.v1 import agent_pb2

__all__ = ["MlpAgent", "mlp_to_proto", "parameters_to_proto"]

Activation = Literal["tanh", "relu", "elu", "gelu", "gelu_tanh", "silu"]
Head = Literal[
    "categorical",
    "diagonal_gaussian",
    "squashed_gaussian",
    "multi_categorical",
    "bernoulli",
    "epsilon_greedy",
    "boltzmann",
]
Value = Literal["shared", "separate"]
Core = Literal["gru", "lstm"]

_ACTIVATIONS: dict[Activation, agent_pb2.Activation.ValueType] = {
    "tanh": agent_pb2.ACTIVATION_TANH,
    "relu": agent_pb2.ACTIVATION_RELU,
    "elu": agent_pb2.ACTIVATION_ELU,
    "gelu": agent_pb2.ACTIVATION_GELU,
    "gelu_tanh": agent_pb2.ACTIVATION_GELU_TANH,
    "silu": agent_pb2.ACTIVATION_SILU,
}
_GAUSSIANS: tuple[Head, ...] = ("diagonal_gaussian", "squashed_gaussian")
_NUM_GATES: dict[Core, int] = {"gru": 3, "lstm": 4}
_SETTINGS: dict[str, tuple[Head, ...]] = {
    "min_log_std": _GAUSSIANS,
    "max_log_std": _GAUSSIANS,
    "epsilon": ("epsilon_greedy",),
    "temperature": ("boltzmann",),
}
"""Which heads have a setting."""


@dataclass(frozen=True, eq=False)
class MlpAgent:
    """A multilayer perceptron with a distribution over actions at its end, evaluated in float32.

    Layer i is `activation(norm(weight @ input + bias))`, the last one without norm and activation. The input is the
    observation as `gymnasium.spaces.flatten` makes it. What is there is read off the names of the parameters.

    Attributes:
        parameters: float32 arrays, `i/weight` of shape (outputs, inputs) and `i/bias` of shape (outputs,) for each
            layer i from 0. With a layer norm, `i/norm/weight` and `i/norm/bias` of shape (outputs,) for each hidden
            layer. With a value of the last hidden layer, `value/weight` of shape (1, inputs) and `value/bias` of shape
            (1,); with a value of its own layers, `value/i/weight` and so on. With a Gaussian head `log_std` of shape
            (outputs of the last layer,), unless it is predicted: then the last layer has twice as many outputs, all
            means and then all log_std. With a recurrent core before the last layer, `core/weight_ih` of shape
            (3 H, inputs), `core/weight_hh` of shape (3 H, H), `core/bias_ih` and `core/bias_hh` of shape (3 H,), as of
            PyTorch's GRU of one layer and size H; with 4 instead of 3, of its LSTM. The last layer and the value of the
            last hidden layer then have H inputs.
        head: what the output is. For a Discrete action space the logits (`categorical`) or Q-values (`epsilon_greedy`,
            `boltzmann`), for a Box the means (`diagonal_gaussian`; within its bounds `squashed_gaussian`, the means
            before tanh), for a MultiDiscrete all elements' logits one after the other (`multi_categorical`), for a
            MultiBinary the logits of ones (`bernoulli`).
        activation: the function of the hidden layers. `gelu` is exact, as PyTorch's own; `gelu_tanh` is JAX's.
        layer_norm_epsilon: what a layer norm adds to the variance.
        min_log_std: of a Gaussian head: what log_std is raised to.
        max_log_std: likewise: what it is lowered to.
        epsilon: of the head `epsilon_greedy`: how often it chooses at random, from 0 to 1; 0 unless given.
        temperature: of the head `boltzmann`: what Q-values are divided by; 1 unless given.

    Raises:
        TypeError: the parameters are not a mapping, or a setting is not a number.
        ValueError: there is no such head or activation, or the head has not such a setting.
    """

    parameters: Mapping[str, np.ndarray]
    head: Head
    activation: Activation = "tanh"
    layer_norm_epsilon: float = 1e-5
    min_log_std: float | None = None
    max_log_std: float | None = None
    epsilon: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        _check_choice("head", self.head, get_args(Head))
        _check_choice("activation", self.activation, get_args(Activation))
        check_type("layer_norm_epsilon", self.layer_norm_epsilon, numbers.Real, "a number")
        for name, heads in _SETTINGS.items():
            value = getattr(self, name)
            if value is not None:
                check_type(name, value, numbers.Real, "a number")
                if self.head not in heads:
                    raise ValueError(f"{name}: {value} came, none was expected with the head {self.head!r}")

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The size of the input, of each hidden layer and of the output, read off the weights.

        Raises:
            ValueError: there is no `0/weight`, or a weight is not a matrix.
        """
        shapes = _weight_shapes(self.parameters, "")
        if not shapes:
            raise ValueError("parameters: '0/weight' is missing")
        is_behind_core = len(shapes) == 1 and self.core is not None
        num_inputs = _matrix_shape(self.parameters, "core/weight_ih")[1] if is_behind_core else shapes[0][1]
        return (num_inputs, *(outputs for outputs, _ in shapes))

    @property
    def core(self) -> Core | None:
        """What is recurrent in it, read off the shape of `core/weight_hh`; None if there is no such parameter.

        Raises:
            ValueError: there is a part of a core only, or the shape is of none.
        """
        if not any(name.startswith("core/") for name in self.parameters):
            return None
        outputs, size = _matrix_shape(self.parameters, "core/weight_hh")
        for core, num_gates in _NUM_GATES.items():
            if outputs == num_gates * size:
                return core
        came = f"shape {(outputs, size)} came"
        raise ValueError(f"parameter 'core/weight_hh': {came}, (3 H, H) of a GRU or (4 H, H) of an LSTM was expected")

    @classmethod
    def initial(
        cls,
        observation_space: Space,
        action_space: Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        seed: int | None = None,
        head: Head | None = None,
        layer_norm: bool = False,
        value: Value | None = None,
        predicted_log_std: bool = False,
        core: Core | None = None,
        core_size: int = 64,
    ) -> MlpAgent:
        """An untrained agent for the spaces: a beginning for a trainer, and for trying things out.

        Weights are normal with variance 1 / inputs, the last layer's a hundredth of that in deviation, so that the
        first policy is close to uniform; biases and `log_std` are 0; those of a core are uniform within 1 / √H, as
        PyTorch's. `dataclasses.replace` gives it settings.

        Args:
            observation_space: where observations come from, as `update_env` and `status` give it.
            action_space: where actions come from, likewise.
            hidden_sizes: the size of each hidden layer.
            activation: the function of the hidden layers.
            seed: of the weights; another each time unless given.
            head: what the output is; unless given `categorical`, `diagonal_gaussian`, `multi_categorical` or
                `bernoulli`, as the action space needs it.
            layer_norm: whether hidden layers are normalized.
            value: `shared` for a value of the last hidden layer, `separate` for one by layers of its own, of the same
                sizes; none unless given.
            predicted_log_std: whether the last layer gives a Gaussian's log_std too.
            core: what makes it recurrent, before the last layer: `gru` or `lstm`; nothing unless given.
            core_size: the size H of the core.

        Raises:
            TypeError: a space is none of `rollserve.spaces`, or the sizes are not a sequence of integers.
            ValueError: no head is for the action space, or not this one, or a size is not positive.
        """
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            check_type(name, space, Space, "a space of rollserve.spaces, as update_env and status give it,")
        check_type("hidden_sizes", hidden_sizes, Sequence, "a sequence such as (64, 64)")
        sizes = {f"hidden_sizes[{position}]": size for position, size in enumerate(hidden_sizes)}
        for name, size in {**sizes, "core_size": core_size}.items():
            check_type(name, size, numbers.Integral, "an integer")
            if size < 1:
                raise ValueError(f"{name}: {size} came, at least 1 was expected")
        if value is not None:
            _check_choice("value", value, get_args(Value))
        if core is not None:
            _check_choice("core", core, get_args(Core))
        head = _head_for(action_space, head)
        outputs = action_space.flat_size
        generator = np.random.default_rng(seed)
        begin = (observation_space.flat_size, *hidden_sizes)
        is_predicted = predicted_log_std and head in _GAUSSIANS
        num_features = core_size if core else begin[-1]
        sizes_of_policy = *begin, outputs * (1 + is_predicted)
        parameters = _initial_layers(generator, sizes_of_policy, num_features, 0.01, layer_norm=layer_norm)
        if head in _GAUSSIANS and not is_predicted:
            parameters["log_std"] = np.zeros(outputs, np.float32)
        if value is not None:
            num_features = num_features if value == "shared" else begin[-1]
            layers = _initial_layers(generator, (*begin, 1), num_features, 1.0, layer_norm=layer_norm)
            last = f"{len(hidden_sizes)}/"
            for name, array in layers.items():
                if value == "separate":
                    parameters[f"value/{name}"] = array
                elif name.startswith(last):
                    parameters[f"value/{name.removeprefix(last)}"] = array
        if core is not None:
            parameters |= _initial_core(generator, core, begin[-1], core_size)
        return cls(parameters, head, activation)


def mlp_to_proto(agent: MlpAgent) -> agent_pb2.MlpAgent:
    """The agent as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire, or there are no layers.
    """
    mlp = agent_pb2.MlpAgent(
        layer_sizes=agent.layer_sizes,
        activation=_ACTIVATIONS[agent.activation],
        parameters=parameters_to_proto(agent.parameters),
    )
    head = getattr(mlp, agent.head)
    head.SetInParent()
    for name in _SETTINGS:
        value = getattr(agent, name)
        if value is not None:
            setattr(head, name, value)
    if agent.head in _GAUSSIANS and "log_std" not in agent.parameters:
        head.predicted_log_std = True
    if any(name.endswith("/norm/weight") for name in agent.parameters):
        mlp.layer_norm.epsilon = agent.layer_norm_epsilon
    if agent.core is not None:
        getattr(mlp, agent.core).size = _matrix_shape(agent.parameters, "core/weight_hh")[1]
    value_shapes = _weight_shapes(agent.parameters, "value/")
    if value_shapes:
        mlp.separate_value.hidden_sizes.extend(outputs for outputs, _ in value_shapes[:-1])
        mlp.separate_value.SetInParent()
    elif "value/weight" in agent.parameters:
        mlp.shared_value.SetInParent()
    return mlp


def parameters_to_proto(parameters: Mapping[str, np.ndarray]) -> agent_pb2.Parameters:
    """The parameters as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire; the message names it.
    """
    return agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))


def _weight_shapes(parameters: Mapping[str, np.ndarray], prefix: str) -> list[tuple[int, ...]]:
    """Of consecutive layers. Raises ValueError if one is not a matrix."""
    shapes: list[tuple[int, ...]] = []
    while (name := f"{prefix}{len(shapes)}/weight") in parameters:
        shapes.append(_matrix_shape(parameters, name))
    return shapes


def _matrix_shape(parameters: Mapping[str, np.ndarray], name: str) -> tuple[int, ...]:
    """Raises ValueError if the parameter is missing, or not a matrix."""
    if name not in parameters:
        raise ValueError(f"parameters: {name!r} is missing")
    shape = np.shape(parameters[name])
    if len(shape) != 2:
        raise ValueError(f"parameter {name!r}: shape {shape} came, two dimensions were expected")
    return shape


def _head_for(action_space: Space, wanted: Head | None) -> Head:
    """The wanted head, or the first one that is for the space."""
    heads: tuple[Head, ...] = ()
    match action_space:
        case Discrete():
            heads = ("categorical", "epsilon_greedy", "boltzmann")
        case Box() if np.issubdtype(action_space.dtype, np.floating):
            heads = _GAUSSIANS
        case MultiDiscrete():
            heads = ("multi_categorical",)
        case MultiBinary():
            heads = ("bernoulli",)
    if not heads:
        expected = "Discrete, MultiDiscrete, MultiBinary or a Box of floats"
        raise ValueError(f"action space {action_space} came, {expected} was expected")
    if wanted is not None:
        _check_choice("head", wanted, heads)
    return wanted or heads[0]


def _initial_layers(
    generator: np.random.Generator,
    sizes: Sequence[int],
    num_features: int,
    last_scale: float,
    *,
    layer_norm: bool,
) -> dict[str, np.ndarray]:
    """Layers of these sizes, the last of which has so many inputs: what stands before it may change their number."""
    parameters: dict[str, np.ndarray] = {}
    for layer, outputs in enumerate(sizes[1:]):
        is_last = layer == len(sizes) - 2
        inputs = num_features if is_last else sizes[layer]
        scale = (last_scale if is_last else 1.0) / math.sqrt(inputs)
        weight = scale * generator.standard_normal((outputs, inputs))
        parameters[f"{layer}/weight"] = weight.astype(np.float32)
        parameters[f"{layer}/bias"] = np.zeros(outputs, np.float32)
        if layer_norm and not is_last:
            parameters[f"{layer}/norm/weight"] = np.ones(outputs, np.float32)
            parameters[f"{layer}/norm/bias"] = np.zeros(outputs, np.float32)
    return parameters


def _initial_core(generator: np.random.Generator, core: Core, inputs: int, size: int) -> dict[str, np.ndarray]:
    outputs, bound = _NUM_GATES[core] * size, 1 / math.sqrt(size)
    weights = {"weight_ih": (outputs, inputs), "weight_hh": (outputs, size)}
    shapes: dict[str, tuple[int, ...]] = {**weights, "bias_ih": (outputs,), "bias_hh": (outputs,)}
    return {
        f"core/{name}": generator.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()
    }


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} came, {' or '.join(map(repr, choices))} was expected")
