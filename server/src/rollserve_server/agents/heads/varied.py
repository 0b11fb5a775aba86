"""Heads that make another head explore with different factors, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.heads.head import Choice, Head, SampledHead

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BestHead", "VariedHead"]


class BestHead(Head):
    """A head that always chooses the best action."""

    noise_width = 0

    def __init__(self, head: SampledHead) -> None:
        """Choose the best actions of `head`."""
        self._head = head
        self.inputs, self.infos = head.inputs, head.infos

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose the best actions."""
        return self._head.act_best(outputs)


class VariedHead(Head):
    """A head whose episodes differ in their exploration factor, which is the first noise number."""

    def __init__(self, head: SampledHead, factors: Sequence[float]) -> None:
        """Act as `head` does, in episode i with `factors[i % len(factors)]`."""
        self._head = head
        self.factors = np.array(factors)
        self.inputs, self.infos = head.inputs, head.infos
        self.noise_width = 1 + head.noise_width

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise[:, 1:]`; the caller sets `noise[:, 0]` to the factor."""
        drawn = np.empty((len(noise), self._head.noise_width))
        self._head.draw_noise(generator, drawn)
        noise[:, 1:] = drawn

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Sample actions with the exploration factor applied; `noise[:, 0]` holds the factor."""
        return self._head.act(outputs, noise[:, 1:], noise[:, 0].astype(np.float32))
