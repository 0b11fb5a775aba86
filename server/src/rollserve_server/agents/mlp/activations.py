"""Activations of hidden layers, in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rollserve_server.agents.specs.mlp import Activation

__all__ = ["ACTIVATIONS", "NUM_SCRATCH", "Activate"]

NUM_SCRATCH = 4
"""Number of scratch arrays that an activation gets."""

Activate = Callable[..., object]
"""Activation, called with float32 values, which it overwrites, and NUM_SCRATCH scratch arrays of their shape."""

_ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""Coefficients of Eigen's erf for float32, x · p(x²) / q(x²) between -4 and 4, with an error of at most 5e-7.

numpy has no erf, and SciPy would be a large dependency for this alone.
"""


def _tanh(x: np.ndarray, *_: np.ndarray) -> None:
    np.tanh(x, out=x)


def _relu(x: np.ndarray, *_: np.ndarray) -> None:
    np.maximum(x, 0, out=x)


def _elu(x: np.ndarray, below: np.ndarray, *_: np.ndarray) -> None:
    np.minimum(x, 0, out=below)
    np.exp(below, out=below)
    np.subtract(below, 1, out=below)
    np.maximum(x, 0, out=x)
    np.add(x, below, out=x)


def _silu(x: np.ndarray, gate: np.ndarray, *_: np.ndarray) -> None:
    # The sigmoid by tanh, which does not overflow.
    np.multiply(x, 0.5, out=gate)
    np.tanh(gate, out=gate)
    _open(gate, x)


def _gelu_tanh(x: np.ndarray, gate: np.ndarray, *_: np.ndarray) -> None:
    np.multiply(x, x, out=gate)
    np.multiply(gate, 0.044715, out=gate)
    np.add(gate, 1, out=gate)
    np.multiply(gate, x, out=gate)
    np.multiply(gate, math.sqrt(2 / math.pi), out=gate)
    np.tanh(gate, out=gate)
    _open(gate, x)


def _gelu(x: np.ndarray, gate: np.ndarray, squares: np.ndarray, above: np.ndarray, under: np.ndarray) -> None:
    np.multiply(x, math.sqrt(0.5), out=gate)
    np.maximum(gate, -4, out=gate)
    np.minimum(gate, 4, out=gate)
    np.multiply(gate, gate, out=squares)
    _polynomial(_ERF_NUMERATOR, squares, above)
    _polynomial(_ERF_DENOMINATOR, squares, under)
    np.divide(above, under, out=above)
    np.multiply(gate, above, out=gate)
    _open(gate, x)


def _open(gate: np.ndarray, x: np.ndarray) -> None:
    """Multiply x by (1 + gate) / 2; overwrites the gate."""
    np.add(gate, 1, out=gate)
    np.multiply(gate, 0.5, out=gate)
    np.multiply(x, gate, out=x)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray, out: np.ndarray) -> None:
    """Evaluate a polynomial; the coefficient of the highest power is first."""
    first, *others, last = coefficients
    np.multiply(x, first, out=out)
    for coefficient in others:
        np.add(out, coefficient, out=out)
        np.multiply(out, x, out=out)
    np.add(out, last, out=out)


ACTIVATIONS: Mapping[Activation, Activate] = {
    "tanh": _tanh,
    "relu": _relu,
    "elu": _elu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
