"""The head of an MLP, which may have a head for each leaf of the action space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.agents.exploration import DEFAULT_EXPLORATION
from rollserve_server.agents.heads.building import build_head, build_hybrid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium import Space

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.specs.heads import HeadKind, HeadSettings
    from rollserve_server.agents.specs.mlp import MlpSpec

__all__ = ["heads_of", "log_std_names", "mlp_head"]

_GAUSSIANS = ("diagonal_gaussian", "squashed_gaussian")


def mlp_head(
    spec: MlpSpec,
    action_space: Space[Any],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
    *,
    is_stacked: bool = False,
) -> Head:
    """Build the head of an MLP.

    Args:
        spec: MLP, whose parameters need not have been checked.
        action_space: action space of one row.
        exploration: how freely the head acts.
        mask: action mask; None without one.
        is_stacked: whether rows differ in log_std, which the head then gets as an output.

    Raises:
        InvalidValueError: the head does not fit the action space.
    """
    if spec.head == "hybrid":
        log_stds = {leaf: spec.parameters.get(name) for leaf, name in log_std_names(spec).items()}
        return build_hybrid(spec.leaf_heads, action_space, log_stds, exploration, mask)
    log_std = None if is_stacked else spec.parameters.get("log_std")
    return build_head(spec.head, action_space, log_std, spec.settings, exploration, mask)


def heads_of(spec: MlpSpec) -> Iterator[tuple[str, str, HeadKind, HeadSettings]]:
    """Yield each head: the leaf that it is for, its field in errors, its kind and its settings."""
    if spec.head != "hybrid":
        yield "", spec.head, spec.head, spec.settings
    for leaf, (kind, settings) in spec.leaf_heads.items():
        yield leaf, f"hybrid.leaves[{leaf!r}].{kind}", kind, settings


def log_std_names(spec: MlpSpec) -> dict[str, str]:
    """Return the names of the parameters that have a constant log_std, by the leaf of the action space."""
    return {
        leaf: f"log_std/{leaf}" if leaf else "log_std"
        for leaf, _, kind, settings in heads_of(spec)
        if kind in _GAUSSIANS and not settings.predicted_log_std
    }
