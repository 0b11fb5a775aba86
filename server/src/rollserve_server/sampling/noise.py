"""The random numbers of each row's episode, drawn ahead in blocks so that a step costs no generator call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.seeding import EpisodeGenerator

if TYPE_CHECKING:
    from rollserve_server.agents import Agent

__all__ = ["RowNoise"]

_BLOCK_STEPS = 64
"""Part of the contract of reproducibility: an agent that draws several kinds of numbers draws them block by block."""


class RowNoise:
    """Noise for M rows, each somewhere in its own episode."""

    def __init__(self, num_rows: int, agent: Agent) -> None:
        self._agent = agent
        self._generators = [EpisodeGenerator() for _ in range(num_rows)]
        self._blocks = np.zeros((num_rows, _BLOCK_STEPS, agent.noise_width))
        self._positions = np.zeros(num_rows, np.intp)
        self._rows = np.arange(num_rows)

    def begin(self, row: int, root_seed: int, episode_index: int) -> int:
        """Starts an episode in a row; returns the seed for its environment."""
        env_seed = self._generators[row].begin(root_seed, episode_index)
        self._draw(row)
        return env_seed

    def next(self) -> np.ndarray:
        """(M, K), the numbers for each row's next step."""
        for row in np.flatnonzero(self._positions == _BLOCK_STEPS):
            self._draw(int(row))
        noise: np.ndarray = self._blocks[self._rows, self._positions]
        self._positions += 1
        return noise

    def _draw(self, row: int) -> None:
        self._agent.draw_noise(self._generators[row].actions, self._blocks[row])
        self._positions[row] = 0
