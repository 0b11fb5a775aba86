"""Agents of the workloads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

import rollserve
from rollserve.mlp_agent import Head

__all__ = ["mlp_agent", "num_parameters"]


def mlp_agent(layer_sizes: Sequence[int], head: Head, seed: int = 0) -> rollserve.MlpAgent:
    """Return an untrained agent. Its last layer is small, so that its actions are nearly uniform."""
    generator = np.random.default_rng(seed)
    parameters: dict[str, np.ndarray] = {}
    for layer, (num_inputs, num_outputs) in enumerate(itertools.pairwise(layer_sizes)):
        scale = (0.01 if layer == len(layer_sizes) - 2 else 1.0) / np.sqrt(num_inputs)
        weight = scale * generator.standard_normal((num_outputs, num_inputs))
        parameters[f"{layer}/weight"] = weight.astype(np.float32)
        parameters[f"{layer}/bias"] = np.zeros(num_outputs, np.float32)
    if head == "diagonal_gaussian":
        parameters["log_std"] = np.zeros(layer_sizes[-1], np.float32)
    return rollserve.MlpAgent(parameters, head)


def num_parameters(agent: rollserve.MlpAgent) -> int:
    """Return the number of elements of all parameters."""
    return sum(parameter.size for parameter in agent.parameters.values())
