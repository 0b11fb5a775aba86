"""MLPs as the server runs them, evaluated on whole batches in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.learning import flat_values
from rollserve.learning.activations import ACTIVATIONS
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1 import agent_pb2

__all__ = ["active_steps", "initial_state", "network_outputs", "shifted"]


def network_outputs(
    mlp: agent_pb2.MlpAgent,
    parameters: Mapping[str, np.ndarray],
    batch: Any,
    observation_space: Space,
    action_space: Space,
) -> np.ndarray:
    """Return the outputs of the last layer for each step of a batch, (T, outputs).

    Args:
        mlp: the network.
        parameters: its parameters, float64.
        batch: the batch.
        observation_space: space of the observations.
        action_space: space of the actions.

    Raises:
        ValueError: an unknown activation, or a fragment whose recurrent state is not recorded.
    """
    mask_leaf = mlp.action_mask.observation if mlp.action_mask.HasField("observation") else None
    observed = flat_values("observations", batch.observations, observation_space, without=mask_leaf, dtype=np.float64)
    inputs = _normalized(mlp, parameters, observed)
    if mlp.previous_action:
        actions = flat_values("actions", batch.actions, action_space, dtype=np.float64)
        before = shifted(actions, batch.lengths, initial_state(batch, "previous_action", actions.shape[1:]))
        inputs = np.concatenate([inputs, before], axis=1)
    if mlp.previous_reward:
        rewards = np.asarray(batch.rewards, np.float64)
        before = shifted(rewards, batch.lengths, initial_state(batch, "previous_reward", ()))
        inputs = np.concatenate([inputs, before[:, None]], axis=1)
    num_layers = len(mlp.layer_sizes) - 1
    for layer in range(num_layers - 1):
        inputs = _hidden(mlp, parameters, layer, inputs)
    core = mlp.WhichOneof("core")
    if core is not None:
        inputs = _recurrent(core, parameters, batch, inputs)
    last = num_layers - 1
    outputs: np.ndarray = inputs @ parameters[f"{last}/weight"].T + parameters[f"{last}/bias"]
    return outputs


def initial_state(batch: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a recurrent state before each segment's first step, (N, *shape).

    Raises:
        ValueError: a segment begins within its episode, and its state is not recorded.
    """
    recorded = batch.initial_states.get(name)
    if recorded is not None:
        return np.asarray(recorded, np.float64).reshape(len(batch.lengths), *shape)
    if np.any(batch.first_steps):
        raise ValueError(f"initial_states: {mismatch(f'the state {name!r} of fragments', 'none')}")
    return np.zeros((len(batch.lengths), *shape))


def shifted(values: np.ndarray, lengths: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the value of the step before at each step, (T, …), with other values (N, …) at the segments' starts."""
    before = np.empty(values.shape, first.dtype)
    before[1:] = values[:-1]
    before[np.cumsum(lengths) - lengths] = first
    return before


def active_steps(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each step within segments, which segments are as long, and the rows of these steps."""
    starts = np.cumsum(lengths) - lengths
    for step in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > step)
        yield active, starts[active] + step


def _normalized(mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    if not mlp.HasField("normalization"):
        return inputs
    epsilon = mlp.normalization.epsilon if mlp.normalization.HasField("epsilon") else 1e-8
    clip = mlp.normalization.clip if mlp.normalization.HasField("clip") else 10.0
    deviation = np.sqrt(parameters["observation/variance"] + epsilon)
    found: np.ndarray = np.clip((inputs - parameters["observation/mean"]) / deviation, -clip, clip)
    return found


def _hidden(
    mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray], layer: int, inputs: np.ndarray
) -> np.ndarray:
    """Return the output of a hidden layer."""
    inputs = inputs @ parameters[f"{layer}/weight"].T + parameters[f"{layer}/bias"]
    if mlp.HasField("layer_norm"):
        epsilon = mlp.layer_norm.epsilon if mlp.layer_norm.HasField("epsilon") else 1e-5
        centred = inputs - inputs.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
        inputs = centred / scale * parameters[f"{layer}/norm/weight"] + parameters[f"{layer}/norm/bias"]
    function = ACTIVATIONS.get(mlp.activation)
    if function is None:
        raise ValueError(f"agent: {mismatch('a known activation', mlp.activation)}")
    return function(inputs)


def _recurrent(core: str, parameters: Mapping[str, np.ndarray], batch: Any, inputs: np.ndarray) -> np.ndarray:
    """Return the output of a core, (T, H), whose formulas `GruCore` and `LstmCore` of agent.proto have."""
    weight_ih, weight_hh, bias_ih, bias_hh = (
        parameters[f"core/{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    size = weight_hh.shape[1]
    h = initial_state(batch, "h", (size,))
    c = initial_state(batch, "c", (size,)) if core == "lstm" else h
    outputs = np.empty((len(inputs), size))
    from_inputs = inputs @ weight_ih.T + bias_ih
    for active, rows in active_steps(np.asarray(batch.lengths)):
        from_input, from_memory = from_inputs[rows], h[active] @ weight_hh.T + bias_hh
        if core == "lstm":
            i, f, g, o = np.split(from_input + from_memory, 4, axis=1)
            c[active] = _sigmoid(f) * c[active] + _sigmoid(i) * np.tanh(g)
            h[active] = _sigmoid(o) * np.tanh(c[active])
        else:
            (r, z, n), (r_h, z_h, n_h) = np.split(from_input, 3, axis=1), np.split(from_memory, 3, axis=1)
            keep, new = _sigmoid(z + z_h), np.tanh(n + _sigmoid(r + r_h) * n_h)
            h[active] = (1 - keep) * new + keep * h[active]
        outputs[rows] = h[active]
    return outputs


def _sigmoid(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = 0.5 * (np.tanh(0.5 * x) + 1)  # does not overflow
    return found
