"""What a request says of an agent, before it is known to fit anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Activation", "AgentSpec", "ConstantSpec", "HeadKind", "MlpSpec", "RandomSpec"]

Activation = Literal["tanh", "relu"]
HeadKind = Literal["categorical", "diagonal_gaussian", "squashed_gaussian"]


@dataclass(frozen=True, eq=False)
class MlpSpec:
    """A multilayer perceptron; see MlpAgent in `protos/rollserve/v1/agent.proto`.

    Attributes:
        layer_sizes: of the input, the hidden layers and the output.
        activation: of the hidden layers; None only where there are none.
        head: what the output means.
        parameters: by name.
    """

    layer_sizes: tuple[int, ...]
    activation: Activation | None
    head: HeadKind
    parameters: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RandomSpec:
    """Uniform actions."""


@dataclass(frozen=True, eq=False)
class ConstantSpec:
    """The same action always, as the leaves of the action space."""

    action: Mapping[str, np.ndarray]


AgentSpec = MlpSpec | RandomSpec | ConstantSpec
"""Any agent."""
