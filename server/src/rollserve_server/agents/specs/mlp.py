"""Multilayer perceptrons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from rollserve_server.agents.specs.heads import DEFAULT_HEAD_SETTINGS, HeadSettings, LeafHead, MlpHeadKind
from rollserve_server.agents.specs.inputs import NO_INPUTS, AgentInputs

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Activation", "CoreKind", "CoreSpec", "MlpSpec", "Normalization", "Value"]

Activation = Literal["tanh", "relu", "elu", "gelu", "gelu_tanh", "silu"]
CoreKind = Literal["gru", "lstm"]
Value = Literal["shared"] | tuple[int, ...]
"""Source of the value: the policy's last hidden layer, or a network of its own with hidden layers of these sizes."""


class CoreSpec(NamedTuple):
    """A recurrent core.

    Attributes:
        kind: kind of the core.
        size: H, size of the hidden state.
    """

    kind: CoreKind
    size: int


class Normalization(NamedTuple):
    """How observations are normalized, besides the parameters `observation/mean` and `observation/variance`.

    Attributes:
        epsilon: number that is added to the variance.
        clip: bound of the normalized elements.
    """

    epsilon: float = 1e-8
    clip: float = 10.0


@dataclass(frozen=True, eq=False)
class MlpSpec:
    """A multilayer perceptron, as MlpAgent in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        layer_sizes: sizes of the input, the hidden layers and the output.
        activation: activation of the hidden layers; None only where there are none.
        head: kind of the head.
        parameters: parameters by name.
        settings: settings of the head.
        norm_epsilon: epsilon of the hidden layers' layer norm; None without layer norm.
        value: source of the value; None without a value.
        core: recurrent core before the last layer; None without a core.
        normalization: normalization of observations; None without one.
        inputs: what the agent gets beside the observation.
        leaf_heads: heads of the leaves of the action space, by name; empty unless the head is hybrid.
    """

    layer_sizes: tuple[int, ...]
    activation: Activation | None
    head: MlpHeadKind
    parameters: Mapping[str, np.ndarray]
    settings: HeadSettings = DEFAULT_HEAD_SETTINGS
    norm_epsilon: float | None = None
    value: Value | None = None
    core: CoreSpec | None = None
    normalization: Normalization | None = None
    inputs: AgentInputs = NO_INPUTS
    leaf_heads: Mapping[str, LeafHead] = field(default_factory=dict)
