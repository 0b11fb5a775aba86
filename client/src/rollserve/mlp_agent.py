"""Multilayer perceptrons as callers specify them, and action masks; the server evaluates them."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from rollserve_wire.checks import check_flag, check_names, check_text, check_type, choices_text
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, named_leaves
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "ActionMask",
    "MlpAgent",
    "check_mask",
    "mask_from_proto",
    "mask_to_proto",
    "mlp_from_proto",
    "mlp_to_proto",
    "normalizing",
    "parameters_to_proto",
]


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
"""Heads that have a setting, by the setting's name."""


@briefly
@dataclass(frozen=True)
class ActionMask:
    """The source of an agent's action mask: which actions are legal at a step.

    A mask has a zero or one for each action of a Discrete space, or for each value of each element of a MultiDiscrete
    action, one element after the other. For a MultiBinary space, it has a number for each element: 0 or 1 if that is
    the only legal value, 2 if both are. For a Dict or Tuple space, it has the structure of the space, as
    `gymnasium.Space.sample` takes it: a mapping or tuple of masks. Those of Box leaves do not matter.

    Batches have it as the info `agent_infos["action_mask"]`, (T, S) bool, with a truth value for each value of each
    element; of a Dict or Tuple space, as an info for each leaf, such as `agent_infos["action_mask/turn"]`.

    >>> agent = rollserve.RandomAgent(action_mask=rollserve.ActionMask(info="action_mask"))  # doctest: +SKIP

    Attributes:
        info: name of an info that the environment returns with each observation; nested names are joined by `/`.
        observation: name of a leaf of the observation space, or of a Dict or Tuple of such leaves. An MLP or a model
            does not get these as observations.

    Raises:
        TypeError: a name that is not a string.
        ValueError: not exactly one of the two.
        InvalidArgumentError: a name that UTF-8 cannot encode.
    """

    info: str | None = None
    observation: str | None = None

    def __post_init__(self) -> None:
        if (self.info is None) == (self.observation is None):
            raise ValueError(f"info: {mismatch('either info or observation', f'{self.info!r}, {self.observation!r}')}")
        for name in ("info", "observation"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))


def check_mask(mask: ActionMask | None) -> None:
    """Raise TypeError unless an agent's `action_mask` is one, or None."""
    if mask is not None:
        check_type("action_mask", mask, ActionMask, "a rollserve.ActionMask, or None")


def mask_to_proto(mask: ActionMask | None) -> agent_pb2.ActionMask | None:
    """Return the mask as a message; None without a mask."""
    if mask is None:
        return None
    if mask.info is not None:
        return agent_pb2.ActionMask(info=mask.info)
    return agent_pb2.ActionMask(observation=mask.observation or "")


def mask_from_proto(agent: Message) -> ActionMask | None:
    """Return the mask of an agent's message; None without a mask. Raises ValueError for a mask without a source."""
    if not agent.HasField("action_mask"):
        return None
    mask: agent_pb2.ActionMask = agent.action_mask  # type: ignore[attr-defined]  # of all kinds of agents
    source = mask.WhichOneof("source")
    return ActionMask(**{source: getattr(mask, source)}) if source else ActionMask()


@briefly
@dataclass(frozen=True, eq=False)
class MlpAgent:
    """A multilayer perceptron with a distribution over actions at its end, evaluated in float32.

    Layer i is `activation(norm(weight @ input + bias))`; the last layer has no norm and no activation. The input is the
    observation after `gymnasium.spaces.flatten`, normalized if there are parameters for that. The names of the
    parameters say which layers and parts there are.

    >>> agent = rollserve.MlpAgent(  # doctest: +SKIP
    ...     {"0/weight": w0, "0/bias": b0, "1/weight": w1, "1/bias": b1}, head="categorical", activation="relu"
    ... )

    Attributes:
        parameters: float32 arrays by name. Each layer i, from 0, has `i/weight` of shape (outputs, inputs) and `i/bias`
            of shape (outputs,). With layer norm, each hidden layer has `i/norm/weight` and `i/norm/bias` of shape
            (outputs,). A value head on the last hidden layer has `value/weight` of shape (1, inputs) and `value/bias`
            of shape (1,); a separate value network has `value/i/weight` and so on. A Gaussian head has `log_std` of
            shape (outputs of the last layer,) unless it is predicted: then the last layer has twice as many outputs,
            all means followed by all log_std. A GRU before the last layer has `core/weight_ih` of shape (3 H, inputs),
            `core/weight_hh` of shape (3 H, H), and `core/bias_ih` and `core/bias_hh` of shape (3 H,), like PyTorch's
            GRU with one layer of size H; an LSTM has 4 instead of 3. With a core, the last layer and a value head on
            the last hidden layer have H inputs. With `observation/mean` and `observation/variance`, float64 of shape
            (inputs,), observations become (observation - mean) / √(variance + `normalization_epsilon`), clipped to
            at most `normalization_clip` either way, before the first layer.
        head: meaning of the output. For a Discrete action space the logits (`categorical`) or Q-values
            (`epsilon_greedy`, `boltzmann`). For a Box the means (`diagonal_gaussian`), or the means before tanh
            (`squashed_gaussian`, which stays within the bounds). For a MultiDiscrete space the logits of all elements
            one after the other (`multi_categorical`). For a MultiBinary space the logits of ones (`bernoulli`). For a
            Dict or Tuple space a mapping from the name of each leaf, such as `turn` or `1`, to one of these; the output
            then has what they need in the order of the leaves, and `log_std` is `log_std/turn` and so on.
        activation: activation of the hidden layers. `gelu` is exact, as in PyTorch; `gelu_tanh` is JAX's
            approximation.
        layer_norm_epsilon: constant that layer norm adds to the variance.
        normalization_epsilon: constant that the normalization of observations adds to the variance.
        normalization_clip: bound of normalized observations.
        min_log_std: lower bound that log_std of a Gaussian head is clipped to.
        max_log_std: upper bound that log_std of a Gaussian head is clipped to.
        epsilon: probability of random actions of the head `epsilon_greedy`, from 0 to 1; 0 by default.
        temperature: divisor of the Q-values of the head `boltzmann`; 1 by default.
        action_mask: source of the action mask, for actions that are not a Box alone. The input of the network has no
            leaves that are the mask.
        previous_action: whether the input has the action before behind the observation, flat as `flatten` makes it, and
            zeros at an episode's start.
        previous_reward: whether the input has the reward before at its end, and 0 at an episode's start.

    Raises:
        TypeError: parameters that are not a mapping, or a setting that is not a number.
        ValueError: an unknown head or activation, or a setting that the head does not have.
    """

    parameters: Mapping[str, np.ndarray]
    head: Head | Mapping[str, Head]
    activation: Activation = "tanh"
    layer_norm_epsilon: float = 1e-5
    min_log_std: float | None = None
    max_log_std: float | None = None
    epsilon: float | None = None
    temperature: float | None = None
    normalization_epsilon: float = 1e-8
    normalization_clip: float = 10.0
    action_mask: ActionMask | None = None
    previous_action: bool = False
    previous_reward: bool = False

    def __post_init__(self) -> None:
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        if isinstance(self.head, Mapping):
            check_names("head", self.head)
        for name, head in self._heads.items():
            _check_choice(f"head[{name!r}]" if name else "head", head, get_args(Head))
        _check_choice("activation", self.activation, get_args(Activation))
        for name in ("layer_norm_epsilon", "normalization_epsilon", "normalization_clip"):
            check_type(name, getattr(self, name), numbers.Real, "a number")
        check_mask(self.action_mask)
        check_flag("previous_action", self.previous_action)
        check_flag("previous_reward", self.previous_reward)
        for name, heads in _SETTINGS.items():
            value = getattr(self, name)
            if value is not None:
                check_type(name, value, numbers.Real, "a number")
                if not set(self._heads.values()).intersection(heads):
                    raise ValueError(f"{name}: {mismatch(f'None for the head {self.head!r}', value)}")

    @property
    def _heads(self) -> Mapping[str, Head]:
        """Heads by the leaf of the action space; the name of the only one is empty."""
        return self.head if isinstance(self.head, Mapping) else {"": self.head}

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Sizes of the input, of each hidden layer and of the output, according to the weights.

        Raises:
            ValueError: no parameter `0/weight`, or a weight that is not a matrix.
        """
        shapes = _weight_shapes(self.parameters, "")
        if not shapes:
            raise _missing_parameter("0/weight")
        is_behind_core = len(shapes) == 1 and self.core is not None
        num_inputs = _matrix_shape(self.parameters, "core/weight_ih")[1] if is_behind_core else shapes[0][1]
        return (num_inputs, *(outputs for outputs, _ in shapes))

    @property
    def core(self) -> Core | None:
        """Kind of the recurrent core, according to the shape of `core/weight_hh`; None without a core.

        Raises:
            ValueError: a core without `core/weight_hh`, or with one of a shape that no kind has.
        """
        if not any(name.startswith("core/") for name in self.parameters):
            return None
        outputs, size = _matrix_shape(self.parameters, "core/weight_hh")
        for core, num_gates in _NUM_GATES.items():
            if outputs == num_gates * size:
                return core
        text = mismatch("shape (3 H, H) of a GRU or (4 H, H) of an LSTM", (outputs, size))
        raise ValueError(f"parameters['core/weight_hh']: {text}")

    @classmethod
    def initial(
        cls,
        observation_space: Space,
        action_space: Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        seed: int | None = None,
        head: Head | Mapping[str, Head] | None = None,
        layer_norm: bool = False,
        value: Value | None = None,
        predicted_log_std: bool = False,
        core: Core | None = None,
        core_size: int = 64,
        normalization: bool = False,
        action_mask: ActionMask | None = None,
        previous_action: bool = False,
        previous_reward: bool = False,
    ) -> MlpAgent:
        """Return an untrained agent for the spaces: a start for training, or for a first try.

        Weights are normal with variance 1 / inputs. The last layer's standard deviation is a hundredth of that, so that
        the first policy is close to uniform. Biases and `log_std` are 0. Weights of a core are uniform within 1 / √H,
        as in PyTorch. To change settings, use `dataclasses.replace`.

        >>> env = sampler.update_env("CartPole-v1")  # doctest: +SKIP
        >>> agent = rollserve.MlpAgent.initial(env.observation_space, env.action_space, seed=0)  # doctest: +SKIP

        Args:
            observation_space: space of observations, as `update_env` and `status` return it.
            action_space: space of actions, as `update_env` and `status` return it.
            hidden_sizes: size of each hidden layer.
            activation: activation of the hidden layers.
            seed: seed of the weights; without one, they differ each time.
            head: meaning of the output; by default `categorical`, `diagonal_gaussian`, `multi_categorical` or
                `bernoulli`, whichever fits the action space. For a Dict or Tuple space, heads by the name of a leaf;
                leaves that are missing have the default.
            layer_norm: whether hidden layers are normalized.
            value: `shared` for a value head on the last hidden layer, `separate` for a value network with layers of
                the same sizes, None for neither.
            predicted_log_std: whether the last layer predicts log_std of a Gaussian head, too.
            core: recurrent core before the last layer: `gru`, `lstm`, or None.
            core_size: size H of the core.
            normalization: whether observations are normalized; at first with mean 0 and variance 1. `update_agent` puts
                in other ones by `observation_moments`.
            action_mask: source of the action mask.
            previous_action: whether the input has the action before.
            previous_reward: whether the input has the reward before.

        Raises:
            TypeError: a space that is not from `rollserve.spaces`, or sizes that are not a sequence of integers.
            ValueError: an action space that no head, or not this head, is for; a size that is not positive; or an
                unknown value or core.
        """
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            check_type(name, space, Space, "a space of rollserve.spaces, as update_env and status return it")
        check_type("hidden_sizes", hidden_sizes, Sequence, "a sequence such as (64, 64)")
        named_sizes = {f"hidden_sizes[{position}]": size for position, size in enumerate(hidden_sizes)}
        for name, size in {**named_sizes, "core_size": core_size}.items():
            check_type(name, size, numbers.Integral, "an integer")
            if size < 1:
                raise ValueError(f"{name}: {mismatch('at least 1', size)}")
        if value is not None:
            _check_choice("value", value, get_args(Value))
        if core is not None:
            _check_choice("core", core, get_args(Core))
        leaves = named_leaves(action_space)
        heads = _heads_for(action_space, leaves, head)
        generator = np.random.default_rng(seed)
        check_mask(action_mask)
        for name, flag in (("previous_action", previous_action), ("previous_reward", previous_reward)):
            check_flag(name, flag)
        num_previous = previous_action * action_space.flat_size + previous_reward
        sizes = (_input_size(observation_space, action_mask) + num_previous, *hidden_sizes)
        gaussians = {name: leaf.flat_size for name, leaf in leaves.items() if heads[name] in _GAUSSIANS}
        outputs = sum(leaf.flat_size for leaf in leaves.values()) + predicted_log_std * sum(gaussians.values())
        num_features = core_size if core else sizes[-1]
        policy_sizes = *sizes, outputs
        parameters = _initial_layers(generator, policy_sizes, num_features, 0.01, layer_norm=layer_norm)
        if not predicted_log_std:
            parameters |= {_log_std(name): np.zeros(size, np.float32) for name, size in gaussians.items()}
        if value is not None:
            num_features = num_features if value == "shared" else sizes[-1]
            layers = _initial_layers(generator, (*sizes, 1), num_features, 1.0, layer_norm=layer_norm)
            last = f"{len(hidden_sizes)}/"
            for name, array in layers.items():
                if value == "separate":
                    parameters[f"value/{name}"] = array
                elif name.startswith(last):
                    parameters[f"value/{name.removeprefix(last)}"] = array
        if core is not None:
            parameters |= _initial_core(generator, core, sizes[-1], core_size)
        if normalization:
            num_observed = sizes[0] - num_previous
            parameters["observation/mean"] = np.zeros(num_observed)
            parameters["observation/variance"] = np.ones(num_observed)
        inputs = {"previous_action": previous_action, "previous_reward": previous_reward}
        return cls(parameters, heads.get("", heads), activation, action_mask=action_mask, **inputs)

    @classmethod
    def from_torch(
        cls,
        module: Any,
        head: Head,
        *,
        value: Any = None,
        log_std: Any = None,
        min_log_std: float | None = None,
        max_log_std: float | None = None,
        epsilon: float | None = None,
        temperature: float | None = None,
        normalization: bool = False,
        action_mask: ActionMask | None = None,
        previous_action: bool = False,
        previous_reward: bool = False,
    ) -> MlpAgent:
        """Return an agent that computes what modules of PyTorch compute, which is checked on random inputs.

        The parameters share the memory of modules that are on the CPU and in float32: after a step of the optimizer,
        they have the new values, and `sampler.update_agent(agent.parameters)` sends them. For modules elsewhere, call
        this again.

        >>> policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))  # doctest: +SKIP
        >>> agent = rollserve.MlpAgent.from_torch(policy, "categorical")  # doctest: +SKIP

        Args:
            module: a `torch.nn.Sequential` of `Linear` layers, with the same activation after each but the last, and
                with `LayerNorm` before the activations or without. Sequentials within it, and a `Flatten` before the
                first layer, are allowed.
            head: meaning of the output.
            value: a `Linear` with one output on the last hidden layer, for a value that shares the layers; a
                Sequential as above, for a value with layers of its own; None for neither.
            log_std: tensor of shape (outputs,) for Gaussian heads; None if the last layer predicts it.
            min_log_std: lower bound of log_std of Gaussian heads.
            max_log_std: upper bound of log_std of Gaussian heads.
            epsilon: probability of random actions of the head `epsilon_greedy`.
            temperature: divisor of the Q-values of the head `boltzmann`.
            normalization: whether the modules get normalized observations, as `RunningMoments.normalized` returns them;
                at first with mean 0 and variance 1. `update_agent` puts in other ones by `observation_moments`.
            action_mask: source of the action mask. The modules do not get leaves that are the mask.
            previous_action: whether the modules get the action before behind the observation, flat.
            previous_reward: whether the modules get the reward before at the end of their input.

        Raises:
            ImportError: PyTorch is not installed.
            TypeError: a module or layer of another type.
            ValueError: layers in another order or with different settings; a module that computes something else than
                its layers, as with hooks; a `log_std` that does not fit; or a setting that the head does not have.
        """
        from rollserve.bridges import mlp_of_modules

        found = mlp_of_modules(module, value, log_std)
        agent = cls(
            found.parameters,
            head,
            found.activation or "tanh",  # type: ignore[arg-type]  # one of them
            1e-5 if found.layer_norm_epsilon is None else found.layer_norm_epsilon,
            min_log_std,
            max_log_std,
            epsilon,
            temperature,
            action_mask=action_mask,
            previous_action=previous_action,
            previous_reward=previous_reward,
        )
        outputs = agent.layer_sizes[-1]
        if log_std is not None and (head not in _GAUSSIANS or np.shape(found.parameters["log_std"]) != (outputs,)):
            expected = f"shape ({outputs},)" if head in _GAUSSIANS else f"None for the head {head!r}"
            raise ValueError(f"log_std: {mismatch(expected, f'shape {tuple(log_std.shape)}')}")
        if log_std is None and head in _GAUSSIANS and outputs % 2:
            expected = "log_std, or an even number of outputs, the second half of which is log_std"
            raise ValueError(f"module: {mismatch(expected, f'{outputs} outputs')}")
        return normalizing(agent) if normalization else agent


def normalizing(agent: MlpAgent) -> MlpAgent:
    """Return the agent with parameters that normalize observations, at first by mean 0 and variance 1.

    An agent that has such parameters stays as it is.

    Raises:
        ValueError: the size of an observation is unknown, because the network also gets an action before whose size
            does not follow from its outputs.
    """
    if any(name.startswith("observation/") for name in agent.parameters):
        return agent
    num_inputs, *_, num_outputs = agent.layer_sizes
    if agent.previous_action:
        predicted = [
            kind in _GAUSSIANS and _log_std(leaf) not in agent.parameters for leaf, kind in agent._heads.items()
        ]
        if any(predicted) and not all(predicted):
            expected = "parameters 'observation/mean' and 'observation/variance' for heads that predict some log_std"
            raise ValueError(f"parameters: {mismatch(expected, 'none')}")
        num_inputs -= num_outputs // 2 if any(predicted) else num_outputs
    size = max(num_inputs - agent.previous_reward, 0)
    added = {"observation/mean": np.zeros(size), "observation/variance": np.ones(size)}
    return dataclasses.replace(agent, parameters={**agent.parameters, **added})


def mlp_to_proto(agent: MlpAgent) -> agent_pb2.MlpAgent:
    """Return the agent as a message.

    Raises:
        ValueError: a dtype that the wire does not have, or no layers.
    """
    mlp = agent_pb2.MlpAgent(
        layer_sizes=agent.layer_sizes,
        activation=_ACTIVATIONS[agent.activation],
        parameters=parameters_to_proto(agent.parameters),
        action_mask=mask_to_proto(agent.action_mask),
        previous_action=agent.previous_action,
        previous_reward=agent.previous_reward,
    )
    if isinstance(agent.head, Mapping):
        mlp.hybrid.SetInParent()
        for leaf, kind in agent.head.items():
            _set_head(mlp.hybrid.leaves[leaf], kind, leaf, agent)
    else:
        _set_head(mlp, agent.head, "", agent)
    if any(name.endswith("/norm/weight") for name in agent.parameters):
        mlp.layer_norm.epsilon = agent.layer_norm_epsilon
    if any(name.startswith("observation/") for name in agent.parameters):
        mlp.normalization.epsilon = agent.normalization_epsilon
        mlp.normalization.clip = agent.normalization_clip
    if agent.core is not None:
        getattr(mlp, agent.core).size = _matrix_shape(agent.parameters, "core/weight_hh")[1]
    value_shapes = _weight_shapes(agent.parameters, "value/")
    if value_shapes:
        mlp.separate_value.hidden_sizes.extend(outputs for outputs, _ in value_shapes[:-1])
        mlp.separate_value.SetInParent()
    elif "value/weight" in agent.parameters:
        mlp.shared_value.SetInParent()
    return mlp


def mlp_from_proto(mlp: agent_pb2.MlpAgent) -> MlpAgent:
    """Return the agent of a message.

    Raises:
        ValueError: an unknown head or activation, or a malformed parameter.
    """
    numbers = {number: name for name, number in _ACTIVATIONS.items()}
    heads: dict[str, Any] = {leaf: head.WhichOneof("head") for leaf, head in mlp.hybrid.leaves.items()}
    kind = mlp.WhichOneof("head")
    messages = [mlp.hybrid.leaves[leaf] for leaf in heads] if kind == "hybrid" else [mlp]
    settings: dict[str, Any] = {}
    for message in messages:
        fields = getattr(message, message.WhichOneof("head") or "categorical").ListFields()
        settings |= {field.name: value for field, value in fields if field.name in _SETTINGS}
    if mlp.HasField("layer_norm"):
        settings["layer_norm_epsilon"] = mlp.layer_norm.epsilon
    if mlp.HasField("normalization"):
        settings |= {f"normalization_{field.name}": value for field, value in mlp.normalization.ListFields()}
    return MlpAgent(
        named_tensors_from_proto(mlp.parameters.tensors),
        heads if kind == "hybrid" else kind,  # type: ignore[arg-type]  # checked
        numbers.get(mlp.activation, "tanh"),
        action_mask=mask_from_proto(mlp),
        previous_action=mlp.previous_action,
        previous_reward=mlp.previous_reward,
        **settings,
    )


def parameters_to_proto(parameters: Mapping[str, np.ndarray]) -> agent_pb2.Parameters:
    """Return parameters as a message.

    Raises:
        ValueError: a dtype that the wire does not have; the message begins with the parameter's name.
    """
    return agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))


def _input_size(observation_space: Space, action_mask: ActionMask | None) -> int:
    """Return the size of a network's input: a flat observation without the mask."""
    mask = None if action_mask is None else action_mask.observation
    leaves = named_leaves(observation_space, mask)
    if mask is not None and leaves.keys() == named_leaves(observation_space).keys():
        raise ValueError(f"action_mask: {mismatch(f'a leaf of {observation_space}', repr(mask))}")
    return sum(leaf.flat_size for leaf in leaves.values())


def _weight_shapes(parameters: Mapping[str, np.ndarray], prefix: str) -> list[tuple[int, ...]]:
    """Return the shapes of consecutive layers' weights; raise ValueError if one is not a matrix."""
    shapes: list[tuple[int, ...]] = []
    while (name := f"{prefix}{len(shapes)}/weight") in parameters:
        shapes.append(_matrix_shape(parameters, name))
    return shapes


def _matrix_shape(parameters: Mapping[str, np.ndarray], name: str) -> tuple[int, ...]:
    """Return the shape of a parameter; raise ValueError if it is missing or not a matrix."""
    if name not in parameters:
        raise _missing_parameter(name)
    shape = np.shape(parameters[name])
    if len(shape) != 2:
        raise ValueError(f"parameters[{name!r}]: {mismatch('two dimensions', f'shape {shape}')}")
    return shape


def _missing_parameter(name: str) -> ValueError:
    return ValueError(f"parameters: {mismatch(f'a parameter {name!r}', 'none of that name')}")


def _set_head(message: agent_pb2.MlpAgent | agent_pb2.LeafHead, kind: Head, leaf: str, agent: MlpAgent) -> None:
    """Set the head of a message, with the agent's settings for heads of this kind."""
    head = getattr(message, kind)
    head.SetInParent()
    for name, heads in _SETTINGS.items():
        value = getattr(agent, name)
        if value is not None and kind in heads:
            setattr(head, name, value)
    if kind in _GAUSSIANS and _log_std(leaf) not in agent.parameters:
        head.predicted_log_std = True


def _log_std(leaf: str) -> str:
    """Return the name of the parameter with a leaf's log_std."""
    return f"log_std/{leaf}" if leaf else "log_std"


def _heads_for(
    action_space: Space, leaves: Mapping[str, Space], requested: Head | Mapping[str, Head] | None
) -> dict[str, Head]:
    """Return the head of each leaf; raise ValueError if a requested one does not fit."""
    if "" in leaves and not isinstance(requested, Mapping):
        return {"": _head_for(action_space, requested)}
    by_leaf = {} if requested is None else requested
    if not isinstance(by_leaf, Mapping) or "" in leaves or not set(by_leaf) <= set(leaves):
        expected = f"heads for the leaves {', '.join(map(repr, leaves))}" if "" not in leaves else "the name of a head"
        raise ValueError(f"head: {mismatch(expected, repr(requested))}")
    return {name: _head_for(leaf, by_leaf.get(name)) for name, leaf in leaves.items()}


def _head_for(action_space: Space, requested: Head | None) -> Head:
    """Return the requested head, or the default head for the action space; raise ValueError if it does not fit."""
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
        raise ValueError(f"action_space: {mismatch(expected, action_space)}")
    if requested is not None:
        _check_choice("head", requested, heads)
    return requested or heads[0]


def _initial_layers(
    generator: np.random.Generator,
    sizes: Sequence[int],
    num_features: int,
    last_scale: float,
    *,
    layer_norm: bool,
) -> dict[str, np.ndarray]:
    """Return the parameters of layers; the last layer has `num_features` inputs, as a core may come before it."""
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
        raise ValueError(f"{name}: {mismatch(choices_text(choices), repr(value))}")
