"""Kinds and settings of heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

__all__ = ["DEFAULT_HEAD_SETTINGS", "HeadKind", "HeadSettings", "LeafHead", "MlpHeadKind", "OnnxHeadKind"]

HeadKind = Literal[
    "categorical",
    "diagonal_gaussian",
    "squashed_gaussian",
    "multi_categorical",
    "bernoulli",
    "epsilon_greedy",
    "boltzmann",
]
MlpHeadKind = HeadKind | Literal["hybrid"]
OnnxHeadKind = HeadKind | Literal["actions", "hybrid"]


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head. Each kind of head uses some of them.

    Attributes:
        predicted_log_std: whether the network predicts a Gaussian's log_std, as outputs after the mean.
        min_log_std: lower bound to which log_std is clipped.
        max_log_std: upper bound to which log_std is clipped.
        epsilon: probability of a random action, for an epsilon-greedy head.
        temperature: divisor of a Boltzmann head's Q-values.
    """

    predicted_log_std: bool = False
    min_log_std: float = -math.inf
    max_log_std: float = math.inf
    epsilon: float = 0.0
    temperature: float = 1.0


DEFAULT_HEAD_SETTINGS: Final = HeadSettings()


class LeafHead(NamedTuple):
    """The head of a leaf of the action space, in a hybrid head.

    Attributes:
        kind: kind of the head.
        settings: settings of the head.
    """

    kind: HeadKind
    settings: HeadSettings = DEFAULT_HEAD_SETTINGS
