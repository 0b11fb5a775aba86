"""Histograms of numbers, as counts and as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

__all__ = ["Histogram", "bars", "histogram"]

_BARS = "▁▂▃▄▅▆▇█"
_MAX_BINS = 24


class Histogram(NamedTuple):
    """Counts of finite numbers in bins of equal width.

    Attributes:
        counts: number of values in each bin.
        low: smallest value, where the first bin begins.
        high: largest value, where the last bin ends.
    """

    counts: tuple[int, ...]
    low: float
    high: float

    @property
    def edges(self) -> tuple[float, ...]:
        """Ends of the bins: one more than there are bins."""
        parts = np.linspace(0, 1, len(self.counts) + 1)
        return tuple(float(self.low * (1 - part) + self.high * part) for part in parts)


def histogram(values: np.ndarray) -> Histogram | None:
    """Return the histogram of the finite values; None if there are not two different ones."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite) or finite.min() == finite.max():
        return None
    low, high = float(finite.min()), float(finite.max())
    num_bins = min(_MAX_BINS, max(2, int(np.ceil(np.sqrt(len(finite))))))
    scale = max(abs(low), abs(high))  # otherwise the difference of two numbers could overflow
    positions = (finite / scale - low / scale) / (high / scale - low / scale)
    bins = np.minimum((positions * num_bins).astype(np.int64), num_bins - 1)
    return Histogram(tuple(np.bincount(bins, minlength=num_bins).tolist()), low, high)


def bars(counts: Iterable[int]) -> str:
    """Return a bar for each count, as high as the count's part of the largest one; a blank for 0."""
    counts = list(counts)
    largest = max(counts, default=0)
    heights = [-(-count * len(_BARS) // largest) if largest else 0 for count in counts]  # rounded up
    return "".join(_BARS[height - 1] if height else " " for height in heights)
