"""Checks of the arguments of learners' computations, and arrays made of them."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np

from rollserve_wire.checks import check_type
from rollserve_wire.columns import leaves_of, mask_name
from rollserve_wire.errors import mismatch

__all__ = [
    "check_count",
    "check_fraction",
    "check_generator",
    "check_positive",
    "checked_last_values",
    "checked_log_probs",
    "checked_values",
    "float_type",
    "infos_or",
]

_MAX_LOG_PROB = 1e-3
"""Largest logarithm of a probability, after rounding."""


def check_count(name: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    """Return an integer of at least `low` and at most `high`; raise TypeError or ValueError for anything else."""
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    check_type(name, value, numbers.Integral, expected)
    number = operator.index(value)
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: {mismatch(expected, number)}")
    return number


def check_fraction(name: str, value: Any) -> float:
    """Return a number from 0 to 1 as a float; raise TypeError or ValueError for anything else."""
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name}: {mismatch('a number from 0 to 1', number)}")
    return number


def check_positive(name: str, value: Any) -> float:
    """Return a number over 0, which may be infinite, as a float; raise TypeError or ValueError for anything else."""
    number = _number(name, value)
    if not number > 0:
        raise ValueError(f"{name}: {mismatch('a positive number', number)}")
    return number


def check_generator(generator: Any) -> np.random.Generator:
    """Return a generator of random numbers; raise TypeError for anything else, such as a seed."""
    check_type("generator", generator, np.random.Generator, "a generator, such as numpy.random.default_rng(seed)")
    return generator  # type: ignore[no-any-return]  # it is one


def checked_values(name: str, values: Any, length: int) -> np.ndarray:
    """Return an array of `length` numbers; raise ValueError for other shapes or dtypes.

    A column (T, 1), as networks return it, would be broadcast with (T,) to a matrix.
    """
    array = np.asarray(values)
    if array.shape != (length,):
        raise ValueError(f"{name}: {mismatch(f'shape ({length},)', f'shape {array.shape}')}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: {mismatch('dtype float or integer', array.dtype)}")
    return array


def checked_last_values(batch: Any, last_values: Any, *, own: bool = False) -> np.ndarray:
    """Return the value after the last step of each segment, 0 where it terminated, (N,).

    Args:
        batch: the batch.
        last_values: values; None for the default.
        own: whether the default are the batch's own, because its other values are, too.

    Raises:
        ValueError: no values, unless all segments terminated; or other shapes or dtypes.
    """
    if last_values is None and own:
        last_values = batch.last_values
    if last_values is None:
        if not batch.terminated.all():
            expected = "the value of each segment's last observation, as some segments have not terminated"
            hint = "the option `return_last_values` delivers those of the agent's info `value`" if own else ""
            raise ValueError(f"last_values: {mismatch(expected, None, hint)}")
        return np.zeros(len(batch.lengths), np.float32)
    array = checked_values("last_values", last_values, len(batch.lengths))
    return np.where(batch.terminated, array.dtype.type(0), array)


def infos_or(batch: Any, name: str, values: Any, info: str) -> np.ndarray:
    """Return the argument `name` as an array (T,), by default the agent's info.

    Raises:
        ValueError: neither the argument nor the info, an info with gaps, or other shapes or dtypes.
    """
    if values is None:
        if info not in batch.agent_infos or mask_name(info) in batch.agent_infos:
            hint = f"agent_infos[{info!r}] is missing or has gaps"
            raise ValueError(f"{name}: {mismatch('a number for each step', None, hint)}")
        values = batch.agent_infos[info]
    return checked_values(name, values, len(batch.rewards))


def checked_log_probs(batch: Any, target: Any, behavior: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities of the actions for the target policy and for the one that acted, (T,) each.

    Raises:
        ValueError: other shapes or dtypes, no log-probabilities of the policy that acted, or positive ones of discrete
            actions, as probabilities in their place would be.
    """
    arrays = {
        "target_log_probs": checked_values("target_log_probs", target, len(batch.rewards)),
        "behavior_log_probs": infos_or(batch, "behavior_log_probs", behavior, "log_prob"),
    }
    if all(leaf.dtype.kind in "biu" for leaf in leaves_of(batch.actions).values()):
        for name, array in arrays.items():
            if (array > _MAX_LOG_PROB).any():
                expected = "logarithms of probabilities, which are at most 0"
                raise ValueError(f"{name}: {mismatch(expected, array.max())}")
    return arrays["target_log_probs"], arrays["behavior_log_probs"]


def float_type(*arrays: np.ndarray) -> np.dtype[Any]:
    """Return the dtype to compute in: the widest float of the arrays, float32 at least; integers count as float64."""
    return np.result_type(np.float32, *(array.dtype if array.dtype.kind == "f" else np.float64 for array in arrays))


def _number(name: str, value: Any) -> float:
    """Return a real number as a float; raise TypeError for anything else."""
    check_type(name, value, numbers.Real, "a number")
    return float(value)
