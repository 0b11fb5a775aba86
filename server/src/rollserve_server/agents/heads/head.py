"""The base of all heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rollserve_server.agents.agent import InfoSpec, NoiseKind

__all__ = ["Choice", "Head", "SampledHead"]

Choice = tuple[list[np.ndarray], dict[str, np.ndarray]]
"""An array (M, *A) for each leaf of the action space, and an array (M, *I) for each info, by name."""


class Head(ABC):
    """A head, which turns a network's outputs into actions.

    Attributes:
        inputs: network outputs that the head reads; one row of each is flat.
        noise_width: K, random numbers per action.
        noise_kind: how noise is drawn; see `Agent.noise_kind`.
        factors: exploration factors, or None; see `Agent.factors`.
        infos: infos that the head returns.
    """

    inputs: tuple[InfoSpec, ...]
    noise_width: int
    noise_kind: NoiseKind | None = None
    factors: np.ndarray | None = None
    infos: tuple[InfoSpec, ...]

    @abstractmethod
    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise`, (steps, K) float64, for the next steps of one episode."""

    @abstractmethod
    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose an action for each row.

        Args:
            outputs: an array (M, size) for each of `inputs`, of its dtype; then, for a masked head, the legal actions.
            noise: (M, K) float64.
        """


class SampledHead(Head):
    """A head that samples actions, with one exploration factor for all rows or one for each."""

    @abstractmethod
    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Choose an action for each row; `factors` (M,) replaces the factor that the head was made with."""

    @abstractmethod
    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the best action for each row, without chance and with a log-probability of 0."""
