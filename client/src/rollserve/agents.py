"""Agents, as a caller writes them; the server evaluates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from rollserve._checks import check_text, check_type
from rollserve._codec.tensors import named_tensors_to_proto
from rollserve.mlp_agent import MlpAgent, mlp_to_proto, parameters_to_proto
from rollserve.python_agents import PickledAgent, PythonAgent, pickled_to_proto, python_to_proto
from rollserve.v1 import agent_pb2

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "Agent",
    "ConstantAgent",
    "MlpAgent",
    "OnnxAgent",
    "PickledAgent",
    "PythonAgent",
    "RandomAgent",
    "agent_to_proto",
    "parameters_to_proto",
]

OnnxHead = Literal["categorical", "diagonal_gaussian", "squashed_gaussian", "actions"]


@dataclass(frozen=True, eq=False)
class OnnxAgent:
    """Any model in the ONNX format, from any framework. docs/agents.md has recipes.

    Each input and output has a role, and is called like it unless `inputs` or `outputs` say otherwise. Inputs are
    `observation`, or `observation/NAME` for each leaf of a Dict or Tuple space, and if the model needs random numbers
    `noise`. Outputs are what the head takes, and if there is one `value`. A recurrent model has an input `state/NAME`
    and an output `next_state/NAME` for each of its states. The first axis of each is the batch, of any size.

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


Agent = MlpAgent | OnnxAgent | PythonAgent | PickledAgent | RandomAgent | ConstantAgent
"""Any agent."""


def agent_to_proto(agent: Agent) -> agent_pb2.Agent:
    """The agent as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire, an MLP has no layers, or an argument cannot be written as
            JSON.
        TypeError: it is no agent.
    """
    match agent:
        case MlpAgent():
            return agent_pb2.Agent(mlp=mlp_to_proto(agent))
        case OnnxAgent(model=bytes(model)):
            onnx = agent_pb2.OnnxAgent(model=model, inputs=agent.inputs, outputs=agent.outputs, infos=agent.infos)
            getattr(onnx, agent.head).SetInParent()
            return agent_pb2.Agent(onnx=onnx)
        case PythonAgent():
            return agent_pb2.Agent(python=python_to_proto(agent))
        case PickledAgent():
            return agent_pb2.Agent(pickled=pickled_to_proto(agent))
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
