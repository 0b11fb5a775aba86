"""Summaries of numbers: their mean and spread, and the uncertainty of the mean."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from rollserve_wire.representations import briefly

__all__ = ["Summary", "students_t"]

_CONFIDENCE = 0.95
_MAX_HALVINGS = 60
_MANY_DEGREES = 1000
"""Degrees of freedom from which on an expansion agrees with the sum to 1e-12. The sum takes the longer the more there
are."""


@briefly
@dataclass(frozen=True)
class Summary:
    """Summary of N numbers, printed as `mean ± half of the confidence interval`.

    Attributes:
        mean: mean of the numbers.
        std: sample standard deviation (with N - 1); None for a single number, NaN if one is NaN or infinite.
        confidence_interval: 95 % confidence interval (low, high) of the mean by Student's t distribution, which is as
            accurate as the numbers are normal or many; None for a single number.
    """

    mean: float
    std: float | None
    confidence_interval: tuple[float, float] | None

    @classmethod
    def of(cls, values: np.ndarray) -> Summary:
        """Return the summary of at least one number, (N,)."""
        values = values.astype(np.float64)
        mean = float(values.mean())
        if len(values) == 1:
            return cls(mean, None, None)
        with np.errstate(invalid="ignore"):  # of infinite numbers, the spread is NaN
            std = float(values.std(ddof=1))
        margin = students_t(len(values) - 1) * std / math.sqrt(len(values))
        return cls(mean, std, (mean - margin, mean + margin))

    def __str__(self) -> str:
        if self.confidence_interval is None:
            return f"{self.mean:.6g}"
        low, high = self.confidence_interval
        half = (high - low) / 2
        # Two significant digits of the uncertainty, and as many decimal places of the mean.
        num_places = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 2
        return f"{self.mean:.{num_places}f} ± {half:.{num_places}f}"


@functools.lru_cache(maxsize=256)
def students_t(degrees: int) -> float:
    """Return the bound that the absolute value of Student's t does not exceed with probability 0.95.

    Args:
        degrees: degrees of freedom, at least 1.
    """
    if degrees > _MANY_DEGREES:
        return _students_t_of_many(degrees)
    # With the angle whose tangent is t / sqrt(degrees), the probability is a finite sum (Abramowitz and Stegun,
    # Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    coefficients = _coefficients(degrees)
    powers = 2 * np.arange(len(coefficients)) + degrees % 2
    low, high = 0.0, math.pi / 2
    for _ in range(_MAX_HALVINGS):
        angle = (low + high) / 2
        total = math.sin(angle) * float(coefficients @ math.cos(angle) ** powers)
        probability = 2 / math.pi * (angle + total) if degrees % 2 else total
        low, high = (angle, high) if probability < _CONFIDENCE else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _students_t_of_many(degrees: int) -> float:
    """Return `students_t` by an expansion in powers of 1 / degrees (Abramowitz and Stegun, 26.7.5)."""
    import statistics  # it takes as long as some modules together

    z = statistics.NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def _coefficients(degrees: int) -> np.ndarray:
    """Return the coefficients of the sum of powers of the angle's cosine.

    For odd degrees of freedom: 1, 2/3, 2·4/(3·5), … for the powers 1, 3, … up to degrees - 2. For even ones: 1, 1/2,
    1·3/(2·4), … for the powers 0, 2, … up to degrees - 2.
    """
    steps = np.arange(1, (degrees - 1) // 2 if degrees % 2 else degrees // 2)
    factors = 2 * steps / (2 * steps + 1) if degrees % 2 else (2 * steps - 1) / (2 * steps)
    first = np.ones(0 if degrees == 1 else 1)
    return np.concatenate([first, np.cumprod(factors)])
