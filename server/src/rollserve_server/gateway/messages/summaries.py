"""What numbers are like, and what they say of the mean that they are drawn around."""

from __future__ import annotations

import functools
import math
import statistics

import numpy as np

from rollserve.v1 import evaluation_pb2

__all__ = ["students_t", "summary_of"]

_CONFIDENCE = 0.95
_MOST_HALVINGS = 60
_MANY_DEGREES = 1000
"""From there on an expansion agrees with the sum to 1e-12, which takes ever longer."""


def summary_of(values: np.ndarray) -> evaluation_pb2.Summary:
    """The summary of at least one number."""
    values = values.astype(np.float64)
    summary = evaluation_pb2.Summary(mean=values.mean())
    if len(values) > 1:
        summary.standard_deviation = values.std(ddof=1)
        margin = students_t(len(values) - 1) * summary.standard_deviation / math.sqrt(len(values))
        summary.confidence_low, summary.confidence_high = summary.mean - margin, summary.mean + margin
    return summary


@functools.lru_cache(maxsize=256)
def students_t(degrees: int) -> float:
    """What Student's t with so many degrees of freedom is at most, up to its sign, in 95 % of all cases."""
    if degrees > _MANY_DEGREES:
        return _students_t_of_many(degrees)
    # Of the angle whose tangent is t / sqrt(degrees), the probability is a finite sum (Abramowitz and Stegun, Handbook
    # of Mathematical Functions, 26.7.3 and 26.7.4).
    coefficients = _coefficients(degrees)
    powers = 2 * np.arange(len(coefficients)) + degrees % 2
    low, high = 0.0, math.pi / 2
    for _ in range(_MOST_HALVINGS):
        angle = (low + high) / 2
        total = math.sin(angle) * float(coefficients @ math.cos(angle) ** powers)
        probability = 2 / math.pi * (angle + total) if degrees % 2 else total
        low, high = (angle, high) if probability < _CONFIDENCE else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _students_t_of_many(degrees: int) -> float:
    """The same by an expansion in powers of 1 / degrees (Abramowitz and Stegun, 26.7.5)."""
    z = statistics.NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def _coefficients(degrees: int) -> np.ndarray:
    """Those of the sum of powers of the angle's cosine: 1, 3, … if the degrees are odd, else 0, 2, ….

    1, 2/3, 2·4/(3·5), … up to the power degrees - 2, or 1, 1/2, 1·3/(2·4), ….
    """
    steps = np.arange(1, (degrees - 1) // 2 if degrees % 2 else degrees // 2)
    factors = 2 * steps / (2 * steps + 1) if degrees % 2 else (2 * steps - 1) / (2 * steps)
    first = np.ones(0 if degrees == 1 else 1)
    return np.concatenate([first, np.cumprod(factors)])
