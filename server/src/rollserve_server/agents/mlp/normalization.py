"""Normalization of flat observations in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import FLOAT64
from rollserve_server.errors import InvalidValueError
from rollserve_wire.moments import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve_server.agents.specs.mlp import MlpSpec, Normalization
    from rollserve_server.agents.specs.shapes import ArrayType

__all__ = ["Normalizer", "check_variance", "normalization_shapes", "normalizer_of"]


class Normalizer:
    """Normalizes flat observations of M rows, all by the same mean and variance, or each row by its own.

    Each element is computed by itself, so its bits do not depend on the rows beside it.

    Attributes:
        observations: (M, size) float64, which the caller fills, and `run` overwrites.
    """

    def __init__(self, normalization: Normalization, num_rows: int, size: int, *, for_each_row: bool = False) -> None:
        """Allocate buffers; `assign` comes before `run`.

        Args:
            normalization: epsilon and clip.
            num_rows: M.
            size: size of a flat observation.
            for_each_row: whether each row has a mean and variance of its own.
        """
        self._epsilon, self._clip = normalization
        self.observations = np.zeros((num_rows, size))
        self._mean, self._deviation = np.zeros((2, num_rows if for_each_row else 1, size))

    def assign(self, row: int, parameters: Mapping[str, np.ndarray]) -> None:
        """Set the mean and the variance of a row; of all rows, by row 0, if they share them."""
        self._mean[row] = parameters[MEAN]
        self._deviation[row] = np.sqrt(parameters[VARIANCE] + self._epsilon)

    def run(self, out: np.ndarray) -> None:
        """Write the normalized observations to `out`, (M, size) float32."""
        x = self.observations
        np.subtract(x, self._mean, out=x)
        np.divide(x, self._deviation, out=x)
        np.maximum(x, -self._clip, out=x)  # `np.clip` takes longer than both
        np.minimum(x, self._clip, out=x)
        out[...] = x


def normalizer_of(spec: MlpSpec, num_rows: int, size: int) -> Normalizer | None:
    """Return a normalizer with the spec's parameters for all rows; None if the spec has no normalization.

    Args:
        spec: MLP.
        num_rows: M.
        size: size of a flat observation.
    """
    if spec.normalization is None:
        return None
    normalizer = Normalizer(spec.normalization, num_rows, size)
    normalizer.assign(0, spec.parameters)
    return normalizer


def normalization_shapes(size: int) -> dict[str, ArrayType]:
    """Return dtypes and shapes of the parameters, given the size of a flat observation."""
    return {MEAN: (FLOAT64, (size,)), VARIANCE: (FLOAT64, (size,))}


def check_variance(parameters: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidValueError if a variance is negative; of a population, (K, size)."""
    variance = parameters.get(VARIANCE)
    if variance is None or not (negative := variance < 0).any():
        return
    position = tuple(int(i) for i in np.argwhere(negative)[0])
    field = f"parameters[{VARIANCE!r}]{list(position)}"
    raise InvalidValueError.of(field, expected="at least 0", got=variance[position])
