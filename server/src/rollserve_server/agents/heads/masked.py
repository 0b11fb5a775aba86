"""A head that takes legal actions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import ACTION_MASK
from rollserve_server.agents.heads.head import Choice, SampledHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.agent import LeafMask

__all__ = ["MaskedHead"]


class MaskedHead(SampledHead):
    """A head that sees minus infinity in place of the scores of masked actions.

    For a MultiBinary leaf, whose scores are the logits of ones, it sees infinity where zeros are masked. It gets the
    legal values of its leaf (M, values) bool after the network's outputs. Its infos have the scores as the network gave
    them.
    """

    def __init__(self, head: SampledHead, mask: LeafMask) -> None:
        """Choose as `head` does, which has one input with scores and takes minus infinity for impossible."""
        self._head, self._mask = head, mask
        self.inputs, self.noise_width, self.noise_kind = head.inputs, head.noise_width, head.noise_kind
        self.infos = (*head.infos, mask.spec._replace(name=ACTION_MASK))

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
        if self._mask.is_binary:
            scores, legal = np.where(legal[:, ::2], scores, np.float32(np.inf)), legal[:, 1::2]
        return np.where(legal, scores, np.float32(-np.inf))

    def _with_infos(self, choice: Choice, outputs: Sequence[np.ndarray]) -> Choice:
        actions, infos = choice
        name, (scores, legal) = self.inputs[0].name, outputs
        infos[name], infos[ACTION_MASK] = scores.reshape(infos[name].shape), legal
        return actions, infos
