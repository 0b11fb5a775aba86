"""Agents in files, their digests, and the log-probabilities that an MLP gives to recorded actions."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rollserve._codec.columns import leaves_of
from rollserve._codec.tensors import named_tensors_from_proto
from rollserve._formats.gymnasium_spaces import leaf_spaces
from rollserve.agents import Agent, agent_to_proto
from rollserve.errors import mismatch
from rollserve.spaces import Discrete, MultiDiscrete, Space
from rollserve.v1 import agent_pb2

__all__ = ["agent_bytes", "agent_digest", "load_agent", "log_probs", "save_agent"]

_HEADS = ("categorical", "diagonal_gaussian", "multi_categorical", "bernoulli")
_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ACTIVATIONS: Mapping[int, Callable[[np.ndarray], np.ndarray]] = {
    agent_pb2.ACTIVATION_TANH: np.tanh,
    agent_pb2.ACTIVATION_RELU: lambda x: np.maximum(x, 0),
    agent_pb2.ACTIVATION_ELU: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    agent_pb2.ACTIVATION_SILU: lambda x: 0.5 * x * (1 + np.tanh(0.5 * x)),
    agent_pb2.ACTIVATION_GELU: lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))),
    agent_pb2.ACTIVATION_GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def agent_bytes(agent: Agent) -> bytes:
    """Return an agent as the bytes of its message, the same for the same agent."""
    return agent_to_proto(agent).SerializeToString(deterministic=True)


def agent_digest(agent: Agent) -> str:
    """Return the SHA-256 of an agent's bytes, in hex, as receipts hold it."""
    return hashlib.sha256(agent_bytes(agent)).hexdigest()


def save_agent(agent: Agent, path: str | os.PathLike[str]) -> None:
    """Write an agent to a file, for `rollserve verify --agent`: the message `rollserve.v1.Agent`, without pickles.

    Raises:
        TypeError: not an agent.
        ValueError: a dtype that the wire does not have, an MLP without layers, or an argument that JSON cannot hold.
        OSError: a file that cannot be written.
    """
    data = agent_bytes(agent)
    with open(path, "wb") as file:
        file.write(data)


def load_agent(path: str | os.PathLike[str]) -> tuple[agent_pb2.Agent, str]:
    """Return the message in a file of `save_agent`, and its digest; raise ValueError for another file."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        message = agent_pb2.Agent.FromString(data)
    except DecodeError as error:
        raise ValueError(f"{path}: {mismatch('an agent', error)}") from None
    if message.WhichOneof("kind") is None:
        raise ValueError(f"{path}: {mismatch('an agent', 'a message without one')}")
    return message, hashlib.sha256(data).hexdigest()


def log_probs(agent: agent_pb2.Agent, batch: Any, observation_space: Space, action_space: Space) -> np.ndarray:
    """Return the log-probability of each recorded action, (T,) float64, computed in float64.

    Args:
        agent: an MLP without recurrent core, mask and previous actions or rewards, with one of the heads `categorical`,
            `diagonal_gaussian`, `multi_categorical` and `bernoulli`.
        batch: the batch.
        observation_space: space of the observations.
        action_space: space of the actions.

    Raises:
        ValueError: another agent; the message names what is not evaluated here.
    """
    kind = agent.WhichOneof("kind")
    if kind != "mlp":
        raise ValueError(f"agent: {mismatch('an MLP, to evaluate it here', kind)}")
    mlp = agent.mlp
    head = mlp.WhichOneof("head")
    if head not in _HEADS:
        raise ValueError(f"agent: {mismatch(f'a head among {_HEADS}', head)}")
    unknown = {
        "a core": mlp.WhichOneof("core") is not None,
        "an action mask": mlp.HasField("action_mask"),
        "previous actions or rewards": mlp.previous_action or mlp.previous_reward,
    }
    for part, is_there in unknown.items():
        if is_there:
            raise ValueError(f"agent: {mismatch(f'an MLP without {part}', 'one with it')}")
    parameters = {n: a.astype(np.float64) for n, a in named_tensors_from_proto(mlp.parameters.tensors).items()}
    outputs = _outputs(mlp, parameters, _flat(batch.observations, observation_space))
    actions = np.asarray(batch.actions)
    match head:
        case "diagonal_gaussian":
            return _gaussian(mlp.diagonal_gaussian, parameters, outputs, actions.reshape(len(actions), -1))
        case "bernoulli":
            signs = np.where(actions.reshape(len(actions), -1) > 0, -1.0, 1.0)
            found: np.ndarray = -np.logaddexp(0, signs * outputs).sum(axis=1)
            return found
    if not isinstance(action_space, Discrete | MultiDiscrete):
        raise ValueError(f"action_space: {mismatch('a Discrete or MultiDiscrete space', action_space)}")
    choices = (actions - action_space.start).reshape(len(actions), -1)
    sizes = _sizes(action_space)
    return _categorical(outputs, choices, sizes)


def _sizes(space: Discrete | MultiDiscrete) -> list[int]:
    """Return the number of values of each element."""
    return [space.n] if isinstance(space, Discrete) else space.nvec.reshape(-1).tolist()


def _flat(observations: Any, space: Space) -> np.ndarray:
    """Return observations as `gymnasium.spaces.flatten` makes them, (T, inputs) float64."""
    parts = []
    leaves = leaves_of(observations)
    for path, leaf in leaf_spaces(space):
        array = leaves["/".join(map(str, path))]
        if isinstance(leaf, Discrete | MultiDiscrete):
            sizes = _sizes(leaf)
            numbers = (array - leaf.start).reshape(len(array), -1)
            parts += [np.eye(size)[numbers[:, position]] for position, size in enumerate(sizes)]
        else:
            parts.append(array.reshape(len(array), -1).astype(np.float64))
    return np.concatenate(parts, axis=1)


def _outputs(mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """Return the outputs of the last layer, (T, outputs)."""
    if mlp.HasField("normalization"):
        deviation = np.sqrt(parameters["observation/variance"] + mlp.normalization.epsilon)
        clip = mlp.normalization.clip
        inputs = np.clip((inputs - parameters["observation/mean"]) / deviation, -clip, clip)
    num_layers = len(mlp.layer_sizes) - 1
    for layer in range(num_layers):
        inputs = inputs @ parameters[f"{layer}/weight"].T + parameters[f"{layer}/bias"]
        if layer < num_layers - 1:
            if mlp.HasField("layer_norm"):
                centred = inputs - inputs.mean(axis=1, keepdims=True)
                scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + mlp.layer_norm.epsilon)
                norm = parameters[f"{layer}/norm/weight"], parameters[f"{layer}/norm/bias"]
                inputs = centred / scale * norm[0] + norm[1]
            inputs = _activate(mlp.activation, inputs)
    return inputs


def _activate(activation: agent_pb2.Activation.ValueType, x: np.ndarray) -> np.ndarray:
    function = _ACTIVATIONS.get(activation)
    if function is None:
        raise ValueError(f"agent: {mismatch('a known activation', activation)}")
    return function(x)


def _categorical(logits: np.ndarray, choices: np.ndarray, sizes: list[int]) -> np.ndarray:
    total, start = np.zeros(len(logits)), 0
    for position, size in enumerate(sizes):
        part = logits[:, start : start + size]
        part = part - part.max(axis=1, keepdims=True)
        total += part[np.arange(len(part)), choices[:, position]] - np.log(np.exp(part).sum(axis=1))
        start += size
    return total


def _gaussian(
    head: agent_pb2.DiagonalGaussianHead, parameters: Mapping[str, np.ndarray], outputs: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """Return the density of the actions, which recorded actions have after rounding to their dtype."""
    size = actions.shape[1]
    log_std = parameters["log_std"] if "log_std" in parameters else outputs[:, size:]
    low = head.min_log_std if head.HasField("min_log_std") else -np.inf
    high = head.max_log_std if head.HasField("max_log_std") else np.inf
    log_std = np.clip(log_std, low, high)
    deviations = (actions - outputs[:, :size]) / np.exp(log_std)
    density: np.ndarray = -(0.5 * deviations**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(axis=1)
    return density
