"""Checks of the numbers that networks and policies return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FINITE", "Finiteness", "first_bad_elements"]

FINITE = "a finite number"


class Finiteness:
    """A check of network outputs, which stay in place and are overwritten with each step."""

    def __init__(self, outputs: Sequence[np.ndarray]) -> None:
        """Observe the outputs of each network, (M, size) float32, contiguous."""
        self._outputs = outputs
        self._factors = [(output.reshape(-1), np.zeros(output.size, np.float32)) for output in outputs]
        self._product = np.float32(0)

    def look(self) -> None:
        """Check the outputs of a step."""
        # Infinity times zero is NaN, so one product with zeros per network is the fastest check.
        self._product = np.float32(0)
        for values, zeros in self._factors:
            self._product += values.dot(zeros)

    def failures(self) -> Mapping[int, str]:
        """Return what was wrong at the last `look`, by row; usually empty."""
        if self._product == 0:
            return {}
        found: dict[int, str] = {}
        for output in self._outputs:
            for row, value in first_bad_elements(output, np.isfinite(output)):
                found.setdefault(row, f"output of the network: {mismatch(FINITE, value)}")
        return found


def first_bad_elements(values: np.ndarray, is_good: np.ndarray) -> Iterator[tuple[int, object]]:
    """Yield each row of `values` (M, size) with an element that is not good, and the first such element."""
    bad = ~is_good
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        yield row, values[row][bad[row]][0]
