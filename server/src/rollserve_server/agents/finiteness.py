"""Whether what networks give are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Finiteness"]


class Finiteness:
    """Watches outputs, which are written over with each step."""

    def __init__(self, outputs: Sequence[np.ndarray]) -> None:
        """Takes the outputs of each network, (M, size) float32, whose rows stand behind each other."""
        self._outputs = outputs
        self._factors = [(output.reshape(-1), np.zeros(output.size, np.float32)) for output in outputs]
        self._product = np.float32(0)

    def look(self) -> None:
        """Looks at what has been written."""
        # Of products with zeros, that of infinity is NaN: the quickest way to find out with each step.
        self._product = np.float32(0)
        for values, zeros in self._factors:
            self._product += values.dot(zeros)

    def failures(self) -> Mapping[int, str]:
        """What was wrong with rows that were not all finite, by their numbers; usually nothing."""
        if self._product == 0:
            return {}
        found: dict[int, str] = {}
        for output in self._outputs:
            good = np.isfinite(output)
            for row in np.flatnonzero(~good.all(axis=1)).tolist():
                value = output[row][~good[row]][0]
                found.setdefault(row, f"an output of the network: {value} came, a finite number was expected")
        return found
