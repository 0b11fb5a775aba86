"""Heads built for an action space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.exploration import DEFAULT_EXPLORATION
from rollserve_server.agents.heads.discrete import (
    BernoulliHead,
    CategoricalHead,
    EpsilonGreedyHead,
    LegalEpsilonGreedyHead,
    MultiCategoricalHead,
)
from rollserve_server.agents.heads.gaussian import DiagonalGaussianHead, SquashedGaussianHead
from rollserve_server.agents.heads.hybrid import HybridHead, LeafPart
from rollserve_server.agents.heads.masked import MaskedHead
from rollserve_server.agents.heads.varied import BestHead, VariedHead
from rollserve_server.agents.specs.heads import DEFAULT_HEAD_SETTINGS
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError, listed, within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gymnasium import Space

    from rollserve_server.agents.agent import ActionMask, LeafMask
    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.heads.head import Head, SampledHead
    from rollserve_server.agents.specs.heads import HeadKind, HeadSettings, LeafHead

__all__ = ["build_head", "build_hybrid"]

_SPACES: Mapping[HeadKind, str] = {
    "categorical": "Discrete",
    "boltzmann": "Discrete",
    "epsilon_greedy": "Discrete",
    "multi_categorical": "MultiDiscrete",
    "bernoulli": "MultiBinary",
    "diagonal_gaussian": "a Box of floats",
    "squashed_gaussian": "a Box of floats with bounds",
}
"""Action space that each kind of head needs."""


def build_head(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None = None,
    settings: HeadSettings = DEFAULT_HEAD_SETTINGS,
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> Head:
    """Build a head.

    Args:
        kind: kind of the head.
        action_space: action space of one row.
        log_std: log_std of a Gaussian, (size,), if it is constant; None if the network predicts it.
        settings: settings of the head.
        exploration: how freely the head acts; factors that the kind does not use are ignored.
        mask: action mask; None without one.

    Raises:
        InvalidValueError: the head does not fit the action space; the field is `head`.
    """
    factors = exploration.factors(kind, settings)
    is_varied = len(factors) > 1
    factor, leaf_mask = 1.0 if is_varied else factors[0], None if mask is None else mask.leaves[0]
    head = _build(kind, action_space, log_std, settings, factor, leaf_mask)
    if is_varied:
        return VariedHead(head, factors)
    return BestHead(head) if exploration.deterministic else head


def build_hybrid(
    leaf_heads: Mapping[str, LeafHead],
    action_space: Space[Any],
    log_stds: Mapping[str, np.ndarray | None],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> HybridHead:
    """Build a head with a head for each leaf of a Dict or Tuple action space.

    Args:
        leaf_heads: kinds and settings by the name of the leaf.
        action_space: action space of one row.
        log_stds: constant log_std of Gaussians, by the name of the leaf.
        exploration: how freely the heads act; each uses the factors that its kind has.
        mask: action mask; None without one.

    Raises:
        InvalidValueError: a head is missing or does not fit its leaf, or episodes differ in too many ways; the field is
            `head`, or within `hybrid`.
    """
    leaves = leaves_of_space(action_space)
    if not isinstance(action_space, spaces.Dict | spaces.Tuple):
        raise InvalidValueError.of(
            "head", expected=f"a head for {action_space}", got="hybrid, which needs Dict or Tuple"
        )
    names = [leaf.name for leaf in leaves]
    if set(leaf_heads) != set(names):
        expected, got = (f"heads for {listed(sorted(each))}" for each in (names, leaf_heads))
        raise InvalidValueError.of("hybrid.leaves", expected=expected, got=got)
    parts, masks = [], {} if mask is None else {each.name: each for each in mask.leaves}
    for leaf in leaves:
        kind, settings = leaf_heads[leaf.name]
        factors = exploration.factors(kind, settings)
        factor = factors[0] if len(factors) == 1 else 1.0
        with within(f"hybrid.leaves[{leaf.name!r}]"):
            head = _build(kind, leaf.space, log_stds.get(leaf.name), settings, factor, masks.get(leaf.name))
        columns = masks[leaf.name].columns if leaf.name in masks else None
        parts.append(LeafPart(leaf.name, head, factors if len(factors) > 1 else (), columns))
    return HybridHead(parts, deterministic=exploration.deterministic)


def _build(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None,
    settings: HeadSettings,
    factor: float,
    mask: LeafMask | None,
) -> SampledHead:
    """Build the head of a leaf."""
    head = _build_free(kind, action_space, log_std, settings, factor, is_masked=mask is not None)
    return head if mask is None else MaskedHead(head, mask)  # heads of leaves with a mask have one input


def _build_free(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None,
    settings: HeadSettings,
    factor: float,
    *,
    is_masked: bool,
) -> SampledHead:
    match kind, action_space:
        case "categorical", spaces.Discrete():
            return CategoricalHead(action_space, factor)
        case "boltzmann", spaces.Discrete():
            return CategoricalHead(action_space, factor, "q_values")
        case "epsilon_greedy", spaces.Discrete():
            return (LegalEpsilonGreedyHead if is_masked else EpsilonGreedyHead)(action_space, factor)
        case "multi_categorical", spaces.MultiDiscrete():
            return MultiCategoricalHead(action_space, factor)
        case "bernoulli", spaces.MultiBinary():
            return BernoulliHead(action_space, factor)
        case "diagonal_gaussian", spaces.Box() if _is_float(action_space):
            return DiagonalGaussianHead(action_space, log_std, settings, factor)
        case "squashed_gaussian", spaces.Box() if _is_float(action_space) and action_space.is_bounded():
            return SquashedGaussianHead(action_space, log_std, settings, factor)
    raise InvalidValueError.of(
        "head", expected=f"a head for {action_space}", got=f"{kind}, which needs {_SPACES[kind]}"
    )


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)
