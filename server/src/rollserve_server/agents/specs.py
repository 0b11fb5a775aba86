"""What a request says of an agent, before it is known to fit anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from rollserve_server.agents.python.specs import PythonSource, PythonSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Activation",
    "AgentSource",
    "AgentSpec",
    "Batching",
    "ConstantSpec",
    "CoreKind",
    "CoreSpec",
    "HeadKind",
    "HeadSettings",
    "MlpSpec",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSpec",
    "Port",
    "RandomSpec",
    "Value",
]

Activation = Literal["tanh", "relu", "elu", "gelu", "gelu_tanh", "silu"]
HeadKind = Literal[
    "categorical",
    "diagonal_gaussian",
    "squashed_gaussian",
    "multi_categorical",
    "bernoulli",
    "epsilon_greedy",
    "boltzmann",
]
OnnxHeadKind = HeadKind | Literal["actions"]
CoreKind = Literal["gru", "lstm"]
Value = Literal["shared"] | tuple[int, ...]
"""How values are computed: of the last hidden layer, or by a network with hidden layers of these sizes."""


@dataclass(frozen=True)
class HeadSettings:
    """What heads are made with, each of them with some of it.

    Attributes:
        predicted_log_std: whether the log_std of a Gaussian comes with each output, behind the mean.
        min_log_std: what it is raised to.
        max_log_std: what it is lowered to.
        epsilon: how often an epsilon-greedy agent chooses at random.
        temperature: what a Boltzmann agent divides Q-values by.
    """

    predicted_log_std: bool = False
    min_log_std: float = -math.inf
    max_log_std: float = math.inf
    epsilon: float = 0.0
    temperature: float = 1.0


class CoreSpec(NamedTuple):
    """What makes a multilayer perceptron recurrent: its kind, and its size H."""

    kind: CoreKind
    size: int


@dataclass(frozen=True, eq=False)
class MlpSpec:
    """A multilayer perceptron; see MlpAgent in `protos/rollserve/v1/agent.proto`.

    Attributes:
        layer_sizes: of the input, the hidden layers and the output.
        activation: of the hidden layers; None only where there are none.
        head: what the output means.
        parameters: by name.
        settings: of the head.
        norm_epsilon: of the layer norm of hidden layers; None for none.
        value: how a value is computed; None for none.
        core: what stands before the last layer; None for nothing.
    """

    layer_sizes: tuple[int, ...]
    activation: Activation | None
    head: HeadKind
    parameters: Mapping[str, np.ndarray]
    settings: HeadSettings = HeadSettings()
    norm_epsilon: float | None = None
    value: Value | None = None
    core: CoreSpec | None = None


@dataclass(frozen=True)
class RandomSpec:
    """Uniform actions."""


@dataclass(frozen=True, eq=False)
class ConstantSpec:
    """The same action always, as the leaves of the action space."""

    action: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A model as it came; see OnnxAgent in `protos/rollserve/v1/agent.proto`.

    Attributes:
        data: the serialized model.
        inputs: names by role, where they differ from it.
        outputs: likewise.
        head: what the outputs mean.
        infos: names of further outputs.
    """

    data: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    head: OnnxHeadKind
    infos: tuple[str, ...]


class Port(NamedTuple):
    """An input or an output of a model.

    Attributes:
        role: what it is for.
        name: what the model calls it.
        dtype: its elements' type.
        shape: of a row.
    """

    role: str
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class Batching(NamedTuple):
    """With how many rows at once a model gives each row the same bits, whatever its neighbours and its place are.

    Attributes:
        multiple: any multiple of this,
        most: up to this.
    """

    multiple: int
    most: int


@dataclass(frozen=True, eq=False)
class OnnxSpec:
    """A model that has been looked at, tried, and taken apart.

    Attributes:
        graph: the serialized model, in which the parameters stand as references.
        inputs: what takes the leaves of the observation space, in their order, then the noise if it takes any, then the
            states.
        outputs: what is made of it, by role.
        head: what the outputs mean.
        infos: the roles of those that are told with each action, as they are.
        batching: in which numbers of rows it is run.
        providers: what ONNX Runtime is to run it with, the best first.
        parameters: by name.
        shapes: their types and shapes, by name, as the model has them.
        source: what tells the model as it came from others, which is no part of what it is; None once it has other
            parameters.
    """

    graph: bytes
    inputs: tuple[Port, ...]
    outputs: Mapping[str, Port]
    head: OnnxHeadKind
    infos: tuple[str, ...]
    batching: Batching
    providers: tuple[str, ...]
    parameters: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    source: bytes | None = field(default=None, compare=False)


AgentSpec = MlpSpec | RandomSpec | ConstantSpec | OnnxSpec | PythonSpec
"""Any agent."""

AgentSource = AgentSpec | OnnxModel | PythonSource
"""Any agent as it came."""
