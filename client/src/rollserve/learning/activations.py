"""The activations of MLPs, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from rollserve_wire.v1 import agent_pb2

__all__ = ["ACTIVATIONS"]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner: np.ndarray = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)  # as one expression, mypy takes 10 s
    found: np.ndarray = 0.5 * x * (1 + np.tanh(inner))
    return found


ACTIVATIONS: Mapping[int, Callable[[np.ndarray], np.ndarray]] = {
    agent_pb2.ACTIVATION_TANH: np.tanh,
    agent_pb2.ACTIVATION_RELU: lambda x: np.maximum(x, 0),
    agent_pb2.ACTIVATION_ELU: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    agent_pb2.ACTIVATION_SILU: lambda x: 0.5 * x * (1 + np.tanh(0.5 * x)),
    agent_pb2.ACTIVATION_GELU: lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))),
    agent_pb2.ACTIVATION_GELU_TANH: _gelu_tanh,
}
"""Activations of hidden layers, by the numbers that the protos give them."""
