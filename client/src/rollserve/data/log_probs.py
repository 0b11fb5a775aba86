"""Log-probabilities that an agent gives to recorded actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.data.densities import HEADS, element_sizes, log_density
from rollserve.data.models import model_outputs
from rollserve.data.networks import network_outputs
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import mismatch
from rollserve_wire.spaces import Discrete, MultiDiscrete, Space, named_leaves
from rollserve_wire.tensors import named_tensors_from_proto

if TYPE_CHECKING:
    from rollserve_wire.v1 import agent_pb2

__all__ = ["log_probs"]


def log_probs(agent: agent_pb2.Agent, batch: Any, observation_space: Space, action_space: Space) -> np.ndarray:
    """Return the log-probability of each recorded action, (T,) float64; an MLP is computed in float64.

    Args:
        agent: an MLP, or an ONNX model without noise, whose heads are among `HEADS`.
        batch: the batch.
        observation_space: space of the observations.
        action_space: space of the actions.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: another agent, which the message names; or a fragment whose recurrent state is not recorded.
    """
    kind = agent.WhichOneof("kind")
    if kind not in ("mlp", "onnx"):
        raise ValueError(f"agent: {mismatch('an MLP or a model of ONNX, to evaluate it here', kind)}")
    network = agent.mlp if kind == "mlp" else agent.onnx
    heads = list(_heads(network, action_space))
    for name, _, head_kind, _ in heads:
        if head_kind not in HEADS:
            raise ValueError(f"agent: {mismatch(f'a head among {HEADS}', f'{head_kind} {name}'.strip())}")
    if kind == "mlp":
        scores = _mlp_scores(agent.mlp, heads, batch, observation_space, action_space)
    else:
        scores = _model_scores(agent.onnx, heads, batch, observation_space)
    actions, total = leaves_of(batch.actions), np.zeros(batch.num_steps)
    for name, space, head_kind, _ in heads:
        legal = batch.agent_infos.get(_named("action_mask", name)) if network.HasField("action_mask") else None
        total += log_density(head_kind, scores[name], np.asarray(actions[name]), space, legal)
    return total


_Heads = list[tuple[str, Space, str, Any]]
"""Name and space of each leaf of the actions, and the kind of its head with its message."""


def _heads(
    network: agent_pb2.MlpAgent | agent_pb2.OnnxAgent, action_space: Space
) -> Iterator[tuple[str, Space, str, Any]]:
    kind = network.WhichOneof("head") or "none"
    for name, space in named_leaves(action_space).items():
        owner: Any = network.hybrid.leaves[name] if kind == "hybrid" else network
        leaf_kind = owner.WhichOneof("head") or "none"
        yield name, space, leaf_kind, getattr(owner, leaf_kind, None)


def _mlp_scores(
    mlp: agent_pb2.MlpAgent, heads: _Heads, batch: Any, observation_space: Space, action_space: Space
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Return what each leaf's head takes, from the network's outputs and parameters."""
    parameters = {n: a.astype(np.float64) for n, a in named_tensors_from_proto(mlp.parameters.tensors).items()}
    outputs = network_outputs(mlp, parameters, batch, observation_space, action_space)
    found, start = {}, 0
    for name, space, kind, head in heads:
        size = _num_scores(space)
        if kind != "diagonal_gaussian":
            logits = outputs[:, start : start + size]
            temperature = head.temperature if kind == "boltzmann" and head.HasField("temperature") else 1.0
            found[name] = {"logits": logits / temperature}
            start += size
            continue
        mean = outputs[:, start : start + size]
        start += size
        if head.predicted_log_std:
            log_std = outputs[:, start : start + size]
            start += size
        else:
            log_std = np.broadcast_to(parameters[_named("log_std", name)].reshape(-1), mean.shape)
        low = head.min_log_std if head.HasField("min_log_std") else -np.inf
        high = head.max_log_std if head.HasField("max_log_std") else np.inf
        found[name] = {"mean": mean, "log_std": np.clip(log_std, low, high)}
    return found


def _model_scores(
    onnx: agent_pb2.OnnxAgent, heads: _Heads, batch: Any, observation_space: Space
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Return what each leaf's head takes, from the model's outputs."""
    roles = {name: ("mean", "log_std") if kind == "diagonal_gaussian" else ("logits",) for name, _, kind, _ in heads}
    named = [_named(role, name) for name, found in roles.items() for role in found]
    outputs = model_outputs(onnx, named, batch, observation_space)
    return {name: {role: outputs[_named(role, name)] for role in found} for name, found in roles.items()}


def _num_scores(space: Space) -> int:
    """Return the number of logits of a space, or of means."""
    if isinstance(space, Discrete | MultiDiscrete):
        return sum(element_sizes(space))
    return math.prod(space.shape)  # type: ignore[union-attr]  # Box or MultiBinary


def _named(role: str, leaf: str) -> str:
    return f"{role}/{leaf}" if leaf else role
