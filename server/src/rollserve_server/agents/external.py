"""Agents whose actions come from outside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from rollserve_server.agents.agent import Agent, InfoSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.agent import Decision
    from rollserve_server.envs import Leaf

__all__ = ["ExternalAgent"]


class ExternalAgent(Agent):
    """An agent whose actions and infos come from outside, for one step at a time, of M rows or of the first of them."""

    def __init__(self, action_leaves: Sequence[Leaf], infos: tuple[InfoSpec, ...], num_rows: int) -> None:
        """Begin without actions, given the leaves of the action space, the infos, and M."""
        self.noise_width = 0
        self.infos = infos
        self.num_leaves = len(action_leaves)
        self._actions = [InfoSpec(leaf.name, leaf.dtype, leaf.shape) for leaf in action_leaves]
        self._num_rows = num_rows
        self._decision: Decision = ((), {})

    def use(self, actions: Sequence[bytes], infos: Sequence[bytes]) -> None:
        """Take the actions and infos of the next step, whose sizes have been checked."""
        columns = [self._column(*each) for each in zip(self._actions, actions, strict=True)]
        named = {spec.name: self._column(spec, data) for spec, data in zip(self.infos, infos, strict=True)}
        self._decision = columns, named

    def _column(self, spec: InfoSpec, data: bytes) -> np.ndarray:
        """Return (M, *shape), with zeros behind the given rows."""
        shape, given = (self._num_rows, *spec.shape), np.frombuffer(data, spec.dtype)
        if len(given) == math.prod(shape):
            return given.reshape(shape)
        column = np.zeros(shape, spec.dtype)
        column.reshape(-1)[: len(given)] = given
        return column

    @override
    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        pass

    @override
    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        return self._decision
