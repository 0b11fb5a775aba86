"""Heads whose episodes explore with different factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from rollserve_server.agents.heads.head import Head

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SampledHead", "VariedHead"]


class SampledHead(Head, Protocol):
    """A head that samples actions, with one exploration factor for all rows or one for each."""

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Choose an action for each row; `factors` (M,) replaces the factor that the head was made with."""
        ...


class VariedHead:
    """A head whose episodes differ in their exploration factor, which is the first noise number."""

    def __init__(self, head: SampledHead, factors: Sequence[float]) -> None:
        """Act as `head` does, in episode i with `factors[i % len(factors)]`."""
        self._head = head
        self.factors = np.array(factors)
        self.inputs = head.inputs
        self.noise_width = 1 + head.noise_width
        self.infos = head.infos
        self.act_best = head.act_best

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise[:, 1:]`; the caller sets `noise[:, 0]` to the factor."""
        drawn = np.empty((len(noise), self._head.noise_width))
        self._head.draw_noise(generator, drawn)
        noise[:, 1:] = drawn

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Sample actions with the exploration factor applied; `noise[:, 0]` holds the factor."""
        return self._head.act(outputs, noise[:, 1:], noise[:, 0].astype(np.float32))
