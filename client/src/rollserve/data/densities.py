"""Log-probabilities of recorded actions under the distributions of heads, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollserve_wire.errors import mismatch
from rollserve_wire.spaces import Discrete, MultiDiscrete, Space

__all__ = ["HEADS", "element_sizes", "log_density"]

HEADS = ("categorical", "multi_categorical", "bernoulli", "boltzmann", "diagonal_gaussian")
"""Heads whose log-probabilities are a function of the network's outputs and of the recorded action, but for rounding.

A squashed action that is rounded to its bound has no density, and an epsilon-greedy one jumps where Q-values are close.
"""


def log_density(
    kind: str, scores: Mapping[str, np.ndarray], actions: np.ndarray, space: Space, legal: np.ndarray | None
) -> np.ndarray:
    """Return the log-probabilities or log-densities of actions, (T,).

    Args:
        kind: one of `HEADS`.
        scores: `logits` (T, S), or `mean` and `log_std`, (T, size) each.
        actions: (T, *A).
        space: the actions' space.
        legal: the action mask (T, S), and for MultiBinary two values for each element; None for no mask.

    Raises:
        ValueError: a head that does not fit the space.
    """
    flat = actions.reshape(len(actions), -1)
    if kind == "diagonal_gaussian":
        return _gaussian(scores["mean"], scores["log_std"], flat)
    logits = scores["logits"]
    if kind == "bernoulli":
        return _bernoulli(logits, flat, legal)
    if not isinstance(space, Discrete | MultiDiscrete):
        raise ValueError(f"action_space: {mismatch('a Discrete or MultiDiscrete space', space)}")
    choices = (actions - space.start).reshape(len(actions), -1)
    return _categorical(logits if legal is None else np.where(legal, logits, -np.inf), choices, element_sizes(space))


def element_sizes(space: Discrete | MultiDiscrete) -> list[int]:
    """Return the number of values of each element."""
    return [space.n] if isinstance(space, Discrete) else space.nvec.reshape(-1).tolist()


def _categorical(logits: np.ndarray, choices: np.ndarray, sizes: list[int]) -> np.ndarray:
    total, start = np.zeros(len(logits)), 0
    for position, size in enumerate(sizes):
        part = logits[:, start : start + size]
        part = part - part.max(axis=1, keepdims=True)
        total += part[np.arange(len(part)), choices[:, position]] - np.log(np.exp(part).sum(axis=1))
        start += size
    return total


def _bernoulli(logits: np.ndarray, actions: np.ndarray, legal: np.ndarray | None) -> np.ndarray:
    if legal is not None:
        logits = np.where(legal[:, ::2], logits, np.inf)
        logits = np.where(legal[:, 1::2], logits, -np.inf)
    signs = np.where(actions > 0, -1.0, 1.0)
    found: np.ndarray = -np.logaddexp(0, signs * logits).sum(axis=1)
    return found


def _gaussian(mean: np.ndarray, log_std: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the density of the actions, which recorded actions have after rounding to their dtype."""
    deviations: Any = (actions - mean) / np.exp(log_std)
    density: np.ndarray = -(0.5 * deviations**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(axis=1)
    return density
