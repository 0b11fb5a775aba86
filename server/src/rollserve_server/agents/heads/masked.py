"""A head that takes legal actions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import ACTION_MASK
from rollserve_server.agents.heads.head import Choice, SampledHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.agent import ActionMask

__all__ = ["MaskedHead"]


class MaskedHead(SampledHead):
    """A head that sees minus infinity in place of the scores of masked actions.

    It gets the mask (M, S) bool after the network's outputs. Its infos have the scores as the network gave them.
    """

    def __init__(self, head: SampledHead, mask: ActionMask) -> None:
        """Choose as `head` does, which has one input with S scores and takes minus infinity for impossible."""
        self._head = head
        self.inputs, self.noise_width, self.noise_kind = head.inputs, head.noise_width, head.noise_kind
        self.infos = (*head.infos, mask.spec)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise."""
        self._head.draw_noise(generator, noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample legal actions."""
        return self._with_infos(self._head.act([self._masked(outputs)], noise, factors), outputs)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the best legal actions."""
        return self._with_infos(self._head.act_best([self._masked(outputs)]), outputs)

    def _masked(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        scores, legal = outputs
        return np.where(legal, scores, np.float32(-np.inf))

    def _with_infos(self, choice: Choice, outputs: Sequence[np.ndarray]) -> Choice:
        actions, infos = choice
        infos[self.inputs[0].name], infos[ACTION_MASK] = outputs
        return actions, infos
