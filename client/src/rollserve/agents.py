"""Agents as callers specify them; the server evaluates them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from rollserve.mlp_agent import (
    ActionMask,
    MlpAgent,
    check_mask,
    mask_from_proto,
    mask_to_proto,
    mlp_from_proto,
    mlp_to_proto,
    normalizing,
    parameters_to_proto,
)
from rollserve.python_agents import AgentChange, PickledAgent, PythonAgent, pickled_to_proto, python_to_proto
from rollserve_wire.checks import check_names, check_text, check_type, choices_text, type_error
from rollserve_wire.errors import mismatch
from rollserve_wire.json_arguments import kwargs_from_json
from rollserve_wire.moments import RunningMoments
from rollserve_wire.policy_map import PolicyMap
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import named_leaves
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from rollserve_wire.spaces import Space

__all__ = [
    "Agent",
    "AgentChange",
    "AgentUpdate",
    "ConstantAgent",
    "MemberParameters",
    "MlpAgent",
    "OnnxAgent",
    "PickledAgent",
    "Policies",
    "PythonAgent",
    "RandomAgent",
    "agent_from_proto",
    "agent_to_proto",
    "parameters_to_proto",
    "with_moments",
]

OnnxHead = Literal["categorical", "diagonal_gaussian", "squashed_gaussian", "actions"]
OnnxLeafHead = Literal["categorical", "multi_categorical", "bernoulli", "diagonal_gaussian", "squashed_gaussian"]


@briefly
@dataclass(frozen=True, eq=False)
class OnnxAgent:
    """A model in the ONNX format, from any framework; docs/models.md has recipes.

    Each input and each output has a role, and has the role's name unless `inputs` or `outputs` say otherwise. Inputs
    are `observation`, or `observation/NAME` for each leaf of a Dict or Tuple space, and optionally `noise` for models
    that need random numbers. Outputs are what the head takes, and optionally `value`. A recurrent model has an
    input `state/NAME` and an output `next_state/NAME` for each of its states. The first axis of each input and output
    is the batch, of any size.

    >>> agent = rollserve.OnnxAgent("policy.onnx", "categorical")  # doctest: +SKIP

    Attributes:
        model: the serialized ModelProto, or the path of a file that holds it.
        head: meaning of the outputs. `categorical` takes `logits`; `diagonal_gaussian` and `squashed_gaussian` take
            `mean` and `log_std`; `actions` takes `action`, or `action/NAME` for each leaf, and optionally `log_prob`.
            For a Dict or Tuple action space also a mapping from the name of each leaf to a head, which takes outputs
            such as `logits/turn`; `multi_categorical` and `bernoulli` take logits, too.
        inputs: names of inputs by role, where they differ from the role.
        outputs: names of outputs by role, where they differ from the role.
        infos: names of further outputs, which become agent_infos.
        action_mask: source of the action mask, for heads of actions that are not a Box alone. A model gets the mask in
            an input `action_mask`, if it has one.

    Raises:
        TypeError: an attribute of the wrong type.
        ValueError: an unknown head.
        InvalidArgumentError: a name that UTF-8 cannot encode.
        OSError: a file that cannot be read.
    """

    model: bytes | str | PathLike[str]
    head: OnnxHead | Mapping[str, OnnxLeafHead]
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    infos: Sequence[str] = ()
    action_mask: ActionMask | None = None

    def __post_init__(self) -> None:
        check_type("model", self.model, bytes | str | PathLike, "the bytes of a model, or a path")
        if isinstance(self.head, Mapping):
            check_names("head", self.head)
            for name, head in self.head.items():
                _check_head(f"head[{name!r}]", head, get_args(OnnxLeafHead))
        else:
            _check_head("head", self.head, get_args(OnnxHead))
        for name, names in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_type(name, names, Mapping, "a mapping from roles to names")
            check_names(name, (*names, *names.values()))
        check_names("infos", self.infos)
        check_mask(self.action_mask)
        if not isinstance(self.model, bytes):
            object.__setattr__(self, "model", Path(self.model).read_bytes())

    @classmethod
    def from_torch(
        cls,
        module: Any,
        observation_space: Space,
        head: OnnxHead,
        *,
        outputs: Sequence[str] | None = None,
        states: Mapping[str, tuple[int, ...]] | None = None,
        noise_width: int = 0,
        action_mask: ActionMask | None = None,
        previous_action: Space | None = None,
        previous_reward: bool = False,
    ) -> OnnxAgent:
        """Return a module of PyTorch as an agent, after a comparison of both on random inputs.

        The module is called as `module(observation, *states, noise, previous_action, previous_reward)`, with as many of
        these as there are, and with N rows each. A value of a Dict or Tuple space is a dict with each leaf by its name.
        The module is exported in evaluation mode, and stays as it is. Its parameters keep their names:
        `sampler.update_agent(rollserve.bridges.module_parameters(module))` sends them after a step of the optimizer.

        >>> env = sampler.update_env("CartPole-v1")  # doctest: +SKIP
        >>> agent = rollserve.OnnxAgent.from_torch(policy, env.observation_space, "categorical")  # doctest: +SKIP

        Args:
            module: a `torch.nn.Module` that returns a tensor, a tuple of tensors, or a dict of tensors by role, whose
                further names become infos.
            observation_space: space of observations, as `update_env` and `status` return it.
            head: meaning of the outputs.
            outputs: roles of the tensors of a tuple, and names of infos; by default what the head takes, then `value`
                if there is one tensor more, then the states.
            states: shape of each recurrent state without the batch, by name. The module returns the next ones as
                `next_state/NAME`.
            noise_width: number of standard normal numbers that the module gets for each row, (N, noise_width).
            action_mask: source of the action mask, which the head applies. The module does not get leaves that are the
                mask.
            previous_action: space of the actions, if the module gets the action before, as it is in batches.
            previous_reward: whether the module gets the reward before, (N,).

        Raises:
            ImportError: PyTorch or ONNX Runtime is not installed.
            TypeError: a module or a space of another type.
            ValueError: an unknown head; outputs that are missing, or without a row for each observation; or a module
                that cannot be exported, because it computes something else in a model, as with random numbers.
        """
        from rollserve.bridges import export_module

        if head not in get_args(OnnxHead):
            raise ValueError(f"head: {mismatch(choices_text(get_args(OnnxHead)), repr(head))}")
        check_mask(action_mask)
        found = export_module(
            module,
            observation_space,
            head,
            outputs=outputs,
            states=states,
            noise_width=noise_width,
            without=None if action_mask is None else action_mask.observation,
            previous_action=previous_action,
            previous_reward=previous_reward,
        )
        return cls(found.model, head, found.inputs, found.outputs, found.infos, action_mask)

    @classmethod
    def from_mlp(cls, agent: MlpAgent, observation_space: Space, action_space: Space) -> OnnxAgent:
        """Return a multilayer perceptron as a model, for ONNX Runtime elsewhere or for this server.

        The model computes what the MLP computes, but for the last bits. Its initializers have the names of the
        parameters, so that `sampler.update_agent(parameters)` works for it.

        >>> rollserve.OnnxAgent.from_mlp(agent, *spaces).model  # doctest: +SKIP

        Args:
            agent: the MLP.
            observation_space: space of observations, as `update_env` and `status` return it.
            action_space: space of actions.

        Raises:
            ImportError: the package onnx is not installed.
            ValueError: a head that models do not have, such as `epsilon_greedy`, or `previous_action`.
        """
        from rollserve.bridges import mlp_model

        mask = agent.action_mask
        observed = named_leaves(observation_space, None if mask is None else mask.observation)
        made = mlp_model(agent, list(observed.items()), named_leaves(action_space))
        return cls(made.model, made.head, outputs=made.outputs, action_mask=mask)


@briefly
@dataclass(frozen=True)
class RandomAgent:
    """An agent that draws actions uniformly from the action space, as `gymnasium.Space.sample` does.

    Attributes:
        action_mask: source of the action mask; without one, all actions are legal.

    Raises:
        TypeError: a mask of the wrong type.
    """

    action_mask: ActionMask | None = None

    def __post_init__(self) -> None:
        check_mask(self.action_mask)


@briefly
@dataclass(frozen=True, eq=False)
class ConstantAgent:
    """An agent that always takes the same action.

    Attributes:
        action: a value of the action space; for Dict and Tuple spaces a mapping from leaf names to values.
        action_mask: source of the action mask: calls fail where the action is masked. Without one, all are legal.

    Raises:
        TypeError: a mask of the wrong type.
    """

    action: ArrayLike | Mapping[str, ArrayLike]
    action_mask: ActionMask | None = None

    def __post_init__(self) -> None:
        check_mask(self.action_mask)


@briefly
@dataclass(frozen=True, eq=False)
class Policies:
    """Policies by name, for an environment with many agents; or updates of some present policies.

    >>> agents = {"main": rollserve.MlpAgent(parameters, "categorical")}  # doctest: +SKIP
    >>> opponents = [("main", 0, 0.8), ("main", -1, 0.2)]  # doctest: +SKIP
    >>> sampler.update_agent(rollserve.Policies(agents, {"player_0": "main", "player_1": opponents}))  # doctest: +SKIP

    Attributes:
        updates: for each new or changed policy a whole agent, parameters by name, or a change of a Python agent. The
            policies that are left out stay as they are. A map that does not name a policy drops it.
        policy_map: assignment of agents to policies: a mapping from an agent's name, a prefix with `*` behind it, or a
            position among the environment's agents; to the name of a policy, a pair of name and version, or a list of
            triples (name, version, weight). One triple is drawn for each episode, never one of weight 0, which keeps a
            policy for evaluations. Version 0 is the policy's current version, -k the k-th version before it or the
            oldest one if fewer are held, and a positive number what `update_agent` returned for it. None for the
            present map; at first, a policy acts for agents of its name, or of its name, `_` and more, and a single
            policy for all.

    Raises:
        TypeError: an attribute, or a part of one, of the wrong type.
        InvalidArgumentError: an empty map, or a version or weight out of range.
    """

    updates: Mapping[str, Agent | Mapping[str, np.ndarray] | AgentChange] = field(default_factory=dict)
    policy_map: Mapping[Any, Any] | None = None

    def __post_init__(self) -> None:
        check_type("updates", self.updates, Mapping, "a mapping from names to agents")
        for name, update in self.updates.items():
            if not isinstance(name, str):
                raise type_error("updates", "names of policies, which are texts, as keys", name)
            check_text("updates", name)
            if not isinstance(update, _POLICY_UPDATES):
                raise type_error(f"updates[{name!r}]", "an agent, parameters or an AgentChange", update)
        if self.policy_map is not None:
            PolicyMap.of(self.policy_map)

    @classmethod
    def of(cls, update: object) -> Policies | None:
        """Return policies by name, or a mapping of agents or updates as such; None for an update of another kind.

        Raises:
            TypeError: a mapping that has agents or updates beside other values, or keys that are no texts.
        """
        if isinstance(update, cls):
            return update
        if not isinstance(update, Mapping) or not update:
            return None
        return cls(update) if any(isinstance(value, _POLICY_UPDATES) for value in update.values()) else None


Agent = MlpAgent | OnnxAgent | PythonAgent | PickledAgent | RandomAgent | ConstantAgent
"""Any agent."""

_POLICY_UPDATES = (*get_args(Agent), Mapping, AgentChange)

PolicyUpdate = Agent | Mapping[str, np.ndarray] | AgentChange
"""A whole agent; parameters by name for the present agent, all of an MLP or any of an ONNX or Python agent; or a change
of the settings of the present Python agent."""

AgentUpdate = PolicyUpdate | Policies | Mapping[str, PolicyUpdate]
"""An update of the agent; or for an environment with many agents, of policies by name."""

MemberParameters = Mapping[str, np.ndarray] | Mapping[str, Mapping[str, np.ndarray]]
"""Parameters (K, …) by name of the K members of a population; for an environment with many agents, by policy."""


def agent_to_proto(agent: Agent) -> agent_pb2.Agent:
    """Return the agent as a message.

    Raises:
        TypeError: not an agent.
        ValueError: a dtype that the wire does not have, an MLP without layers, or an argument that JSON cannot hold.
    """
    match agent:
        case MlpAgent():
            return agent_pb2.Agent(mlp=mlp_to_proto(agent))
        case OnnxAgent(model=bytes(model)):
            onnx = agent_pb2.OnnxAgent(
                model=model,
                inputs=agent.inputs,
                outputs=agent.outputs,
                infos=agent.infos,
                action_mask=mask_to_proto(agent.action_mask),
            )
            if isinstance(agent.head, Mapping):
                onnx.hybrid.SetInParent()
                for leaf, head in agent.head.items():
                    getattr(onnx.hybrid.leaves[leaf], head).SetInParent()
            else:
                getattr(onnx, agent.head).SetInParent()
            return agent_pb2.Agent(onnx=onnx)
        case PythonAgent():
            return agent_pb2.Agent(python=python_to_proto(agent))
        case PickledAgent():
            return agent_pb2.Agent(pickled=pickled_to_proto(agent))
        case RandomAgent():
            return agent_pb2.Agent(random=agent_pb2.RandomAgent(action_mask=mask_to_proto(agent.action_mask)))
        case ConstantAgent(action=action):
            leaves = action if isinstance(action, Mapping) else {"": action}
            tensors = named_tensors_to_proto({name: np.asarray(leaf) for name, leaf in leaves.items()})
            mask = mask_to_proto(agent.action_mask)
            return agent_pb2.Agent(constant=agent_pb2.ConstantAgent(action=tensors, action_mask=mask))
    raise type_error("agent", "an agent", agent)


def agent_from_proto(message: agent_pb2.Agent) -> Agent:
    """Return the agent of a message.

    Raises:
        ValueError: no kind, or a malformed part.
    """
    match message.WhichOneof("kind"):
        case "mlp":
            return mlp_from_proto(message.mlp)
        case "onnx":
            return _onnx_from_proto(message.onnx)
        case "python":
            python = message.python
            parameters = named_tensors_from_proto(python.parameters.tensors)
            return PythonAgent(python.name, kwargs_from_json(python.kwargs_json), parameters, mask_from_proto(python))
        case "random":
            return RandomAgent(mask_from_proto(message.random))
        case "constant":
            action = named_tensors_from_proto(message.constant.action)
            value = action[""] if action.keys() == {""} else action
            return ConstantAgent(value, mask_from_proto(message.constant))
    raise ValueError(f"kind: {mismatch('an agent that is no pickle', message.WhichOneof('kind') or 'none')}")


def _onnx_from_proto(onnx: agent_pb2.OnnxAgent) -> OnnxAgent:
    kind: Any = onnx.WhichOneof("head")
    heads: dict[str, Any] = {leaf: head.WhichOneof("head") for leaf, head in onnx.hybrid.leaves.items()}
    return OnnxAgent(
        onnx.model,
        heads if kind == "hybrid" else kind,
        dict(onnx.inputs),
        dict(onnx.outputs),
        tuple(onnx.infos),
        mask_from_proto(onnx),
    )


def with_moments(update: AgentUpdate, moments: RunningMoments | Mapping[str, RunningMoments]) -> AgentUpdate:
    """Return an update whose parameters normalize observations by moments.

    Moments of no step are mean 0 and variance 1 for an MLP that does not normalize yet, and change nothing else.

    Args:
        update: the update.
        moments: the moments; for policies by name, a mapping from some of their names to moments.

    Raises:
        TypeError: no moments, an agent whose parameters are not in the update, or a policy that is not in it.
    """
    policies = Policies.of(update)
    if policies is not None:
        check_type("observation_moments", moments, Mapping, "a mapping from names of policies to moments")
        by_name = cast("Mapping[str, RunningMoments]", moments)
        if missing := sorted(by_name.keys() - policies.updates.keys()):
            expected = f"moments of the update's policies, {sorted(policies.updates)}"
            raise TypeError(f"observation_moments: {mismatch(expected, missing[0])}")
        updates: dict[str, Any] = dict(policies.updates)
        for name, each in by_name.items():
            updates[name] = with_moments(updates[name], each)
        return dataclasses.replace(policies, updates=updates)
    check_type("observation_moments", moments, RunningMoments, "moments, such as account.observation_moments")
    moments = cast("RunningMoments", moments)
    if not isinstance(update, Mapping | MlpAgent | PythonAgent | PickledAgent | AgentChange):
        hint = "an OnnxAgent gets them as parameters alone, in a second update" if isinstance(update, OnnxAgent) else ""
        expected = f"None for an agent of the class {type(update).__name__}"
        raise TypeError(f"observation_moments: {mismatch(expected, moments, hint)}")
    if not moments.count:
        return normalizing(update) if isinstance(update, MlpAgent) else update
    if isinstance(update, Mapping):
        return cast("dict[str, np.ndarray]", {**update, **moments.parameters()})
    mask = update.action_mask if isinstance(update, MlpAgent) else None
    added = moments.parameters(without=None if mask is None else mask.observation)
    return dataclasses.replace(update, parameters={**update.parameters, **added})


def _check_head(name: str, head: object, heads: Sequence[str]) -> None:
    if head not in heads:
        raise ValueError(f"{name}: {mismatch(choices_text(heads), repr(head))}")
