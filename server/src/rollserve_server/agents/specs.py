"""Plain values that describe agents: as a request sends them (sources), and as they were accepted (specs)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents.agent import InfoSpec, PythonPolicy
    from rollserve_wire.policy_map import PolicyChoice, PolicyMap

__all__ = [
    "DEFAULT_HEAD_SETTINGS",
    "MEMBER_VERSION",
    "NO_INPUTS",
    "Activation",
    "AgentInputs",
    "AgentSource",
    "AgentSpec",
    "ArrayType",
    "Batching",
    "ConstantSpec",
    "CoreKind",
    "CoreSpec",
    "Factory",
    "HeadKind",
    "HeadSettings",
    "HeldPolicy",
    "InstalledFactory",
    "LeafHead",
    "Lineups",
    "MaskSource",
    "MlpHeadKind",
    "MlpSpec",
    "Normalization",
    "OnnxHeadKind",
    "OnnxModel",
    "OnnxSpec",
    "PickledFactory",
    "PolicySet",
    "PolicySource",
    "PolicySpec",
    "Port",
    "PythonForm",
    "PythonSource",
    "PythonSpec",
    "RandomSpec",
    "Shapes",
    "Value",
    "consecutive",
    "content_bytes",
    "kind_of",
    "parameters_bytes",
    "parameters_of",
    "shapes_of",
]

ArrayType = tuple[np.dtype, tuple[int, ...]]
"""Dtype and shape of an array."""

Shapes = Mapping[str, ArrayType]
"""Dtype and shape of arrays, by name."""


def shapes_of(arrays: Mapping[str, np.ndarray]) -> Shapes:
    """Return dtype and shape of each array."""
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def consecutive(sizes: Iterable[int]) -> list[slice]:
    """Return slices of these sizes, one behind the other from 0."""
    return list(itertools.starmap(slice, itertools.pairwise(itertools.accumulate(sizes, initial=0))))


class MaskSource(NamedTuple):
    """The source of an action mask, as ActionMask in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        kind: whether the mask is an info of the environment, or a leaf of the observation.
        name: name of the info or the leaf.
    """

    kind: Literal["info", "observation"]
    name: str


class AgentInputs(NamedTuple):
    """Inputs that an agent gets beside the observation.

    Attributes:
        action_mask: source of the action mask; None for no mask.
        previous_action: whether the agent gets the action before. Of Python agents, the policy decides instead.
        previous_reward: whether the agent gets the reward before. Of Python agents, the policy decides instead.
    """

    action_mask: MaskSource | None = None
    previous_action: bool = False
    previous_reward: bool = False


NO_INPUTS: Final = AgentInputs()
HeadKind = Literal[
    "categorical",
    "diagonal_gaussian",
    "squashed_gaussian",
    "multi_categorical",
    "bernoulli",
    "epsilon_greedy",
    "boltzmann",
]


class Batching(NamedTuple):
    """Numbers of rows that give a row the same bits, whatever its neighbours and its position.

    Attributes:
        multiple: divisor of all these numbers.
        max_rows: largest of them.
    """

    multiple: int
    max_rows: int


MlpHeadKind = HeadKind | Literal["hybrid"]
OnnxHeadKind = HeadKind | Literal["actions", "hybrid"]


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head. Each kind of head uses some of them.

    Attributes:
        predicted_log_std: whether the network predicts a Gaussian's log_std, as outputs after the mean.
        min_log_std: lower bound to which log_std is clipped.
        max_log_std: upper bound to which log_std is clipped.
        epsilon: probability of a random action, for an epsilon-greedy head.
        temperature: divisor of a Boltzmann head's Q-values.
    """

    predicted_log_std: bool = False
    min_log_std: float = -math.inf
    max_log_std: float = math.inf
    epsilon: float = 0.0
    temperature: float = 1.0


DEFAULT_HEAD_SETTINGS: Final = HeadSettings()


class LeafHead(NamedTuple):
    """The head of a leaf of the action space, in a hybrid head.

    Attributes:
        kind: kind of the head.
        settings: settings of the head.
    """

    kind: HeadKind
    settings: HeadSettings = DEFAULT_HEAD_SETTINGS


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
        trial: what an earlier trial has found, in place of another one; None for a new trial.
    """

    data: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    head: OnnxHeadKind
    infos: tuple[str, ...]
    agent_inputs: AgentInputs = NO_INPUTS
    leaf_heads: Mapping[str, LeafHead] = field(default_factory=dict)
    trial: ModelTrial | None = field(default=None, compare=False)


class ModelTrial(NamedTuple):
    """Findings of the trial of a model in a sandbox.

    Attributes:
        outputs: dtype and shape of a row of each output, by its name in the model.
        batching: numbers of rows in which the model runs.
        providers: execution providers of ONNX Runtime that it ran with.
        source: digest of the model as it was sent; None once parameters were replaced.
    """

    outputs: Shapes
    batching: Batching
    providers: tuple[str, ...]
    source: bytes | None


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


@dataclass(frozen=True)
class InstalledFactory:
    """An installed factory.

    Attributes:
        name: name of an entry point in the group `rollserve.agents`.
        kwargs: keyword arguments of the factory.
    """

    name: str
    kwargs: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class PickledFactory:
    """A pickled factory."""

    data: bytes


Factory = InstalledFactory | PickledFactory
"""Factory that makes an agent's policy."""


@dataclass(frozen=True, eq=False)
class PythonSource:
    """An agent as a request sends it, as PythonAgent in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        factory: factory of the policy.
        parameters: parameters by name.
        inputs: what the agent gets beside the observation.
        form: what an earlier trial has found, in place of another one; None for a new trial.
    """

    factory: Factory
    parameters: Mapping[str, np.ndarray]
    inputs: AgentInputs = NO_INPUTS
    form: PythonForm | None = field(default=None, compare=False)


class PythonForm(NamedTuple):
    """Inputs and outputs of a policy, found by a probe in a sandbox.

    Attributes:
        noise_width: random numbers per action.
        states: name, dtype and shape of each array of the recurrent state.
        infos: infos that the policy returns.
        batching: numbers of rows in which the policy is called.
        inputs: names of what the policy asks for beside the observation.
    """

    noise_width: int
    states: tuple[InfoSpec, ...]
    infos: tuple[InfoSpec, ...]
    batching: Batching
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PythonSpec:
    """An agent that was probed in a sandbox.

    Attributes:
        factory: factory of the policy.
        parameters: parameters by name.
        observation_space: observation space that the policy was probed with.
        action_space: action space that the policy was probed with.
        form: inputs and outputs of the policy.
        shapes: dtypes and shapes of the parameters that the policy was probed with.
        inputs: what the agent gets beside the observation.
        policy: policy, where the factory has made it; it never leaves its process.
    """

    factory: Factory
    parameters: Mapping[str, np.ndarray]
    observation_space: Space[Any]
    action_space: Space[Any]
    form: PythonForm
    shapes: Shapes
    inputs: AgentInputs = NO_INPUTS
    policy: PythonPolicy | None = None


@dataclass(frozen=True)
class RandomSpec:
    """An agent that acts at random.

    Attributes:
        inputs: what the agent gets beside the observation.
    """

    inputs: AgentInputs = NO_INPUTS


@dataclass(frozen=True, eq=False)
class ConstantSpec:
    """An agent that always takes the same action.

    Attributes:
        action: value of each leaf of the action space, by name.
        inputs: what the agent gets beside the observation.
    """

    action: Mapping[str, np.ndarray]
    inputs: AgentInputs = NO_INPUTS


_Spec = TypeVar("_Spec", covariant=True)

MEMBER_VERSION = (1 << 63) - 1
"""Number of the version of a policy that members of a population take the place of; all others are below it."""


@dataclass(frozen=True, eq=False)
class HeldPolicy(Generic[_Spec]):
    """A version of a policy.

    Attributes:
        version: number of the sampler's update that made it.
        spec: the policy, as an agent.
    """

    version: int
    spec: _Spec


@dataclass(frozen=True, eq=False)
class PolicySet(Generic[_Spec]):
    """Policies by name, as an update sends them or as they were accepted.

    Attributes:
        policies: for each policy the versions that the map names, acting or not: the current one, earlier ones in
            falling order up to the oldest one that the map counts back to, and then all that the map names by number.
        policy_map: map from agents to policies.
    """

    policies: Mapping[str, Sequence[HeldPolicy[_Spec]]]
    policy_map: PolicyMap

    @property
    def policy_maps(self) -> tuple[PolicyMap, ...]:
        """The maps that episodes have by turns: episode i has the one at position i modulo their number."""
        return (self.policy_map,)

    @property
    def acting(self) -> Iterator[tuple[str, HeldPolicy[_Spec]]]:
        """Yield the name of each policy, with each of its versions, that a map may draw for an agent, once each."""
        found = {
            id(held): (choice.policy, held)
            for policy_map in self.policy_maps
            for rule in policy_map.rules
            for choice in rule.acting_choices
            for held in (self.find(choice),)
        }
        yield from found.values()

    def find(self, choice: PolicyChoice) -> HeldPolicy[_Spec]:
        """Return the version of a policy that a choice of the map names.

        A choice that counts back beyond all versions names the oldest one.
        """
        held = self.policies[choice.policy]
        if choice.version <= 0:
            return held[min(-choice.version, len(held) - 1)]
        return next(each for each in held if each.version == choice.version)


@dataclass(frozen=True, eq=False)
class Lineups(PolicySet[_Spec]):
    """Policies of an evaluation, whose episodes have several maps by turns. All choices name versions by number.

    Attributes:
        later_maps: the maps after the first one.
    """

    later_maps: tuple[PolicyMap, ...] = ()

    @property
    def policy_maps(self) -> tuple[PolicyMap, ...]:
        """Maps of the evaluation, in their order."""
        return (self.policy_map, *self.later_maps)


PolicySpec = MlpSpec | RandomSpec | ConstantSpec | OnnxSpec | PythonSpec
"""Single agent that was accepted."""

PolicySource = PolicySpec | OnnxModel | PythonSource
"""Single agent as a request sends it."""

AgentSpec = PolicySpec | PolicySet[PolicySpec]
"""Agent that was accepted, or policies by name for an environment with many agents."""

AgentSource = PolicySource | PolicySet[PolicySource]
"""Agent or policies by name as a request sends them, put together with the present ones."""

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
    return sum(map(operator.attrgetter("nbytes"), parameters_of(spec).values()))


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
