"""The head of models that give actions themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec
from rollserve_server.agents.heads.head import Choice, Head
from rollserve_server.agents.roles import leaf_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.envs import Leaf

__all__ = ["ActionsHead"]


class ActionsHead(Head):
    """A head that returns the model's actions unchanged."""

    noise_width = 0

    def __init__(self, leaves: Sequence[Leaf], *, has_log_prob: bool, mask: ActionMask | None = None) -> None:
        """Read the leaves of the action space and, if the model gives it, the log-probability.

        With a mask, the head gets the legal actions after these, and returns them as an info; it does not apply them.
        """
        self._leaves = leaves
        actions = (InfoSpec(leaf_role("action", leaf), leaf.dtype, (math.prod(leaf.shape),)) for leaf in leaves)
        log_prob = [InfoSpec("log_prob", FLOAT32, (1,))] if has_log_prob else []
        self.inputs = (*actions, *log_prob)
        self._mask = mask
        self.infos = (*((LOG_PROB,) if has_log_prob else ()), *(() if mask is None else mask.infos))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Return the actions, with their log-probability if the model gives it."""
        num_leaves = len(self._leaves)
        actions = [
            output.reshape(-1, *leaf.shape) for output, leaf in zip(outputs[:num_leaves], self._leaves, strict=True)
        ]
        infos = {} if self._mask is None else self._mask.recorded(outputs[-1])
        if LOG_PROB in self.infos:
            infos[LOG_PROB.name] = outputs[num_leaves].reshape(-1)
        return actions, infos
