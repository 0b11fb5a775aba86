"""The random numbers of each row's episode, or of all rows, drawn ahead so that a step costs no generator call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.collect.seeding import EpisodeGenerator

if TYPE_CHECKING:
    from rollserve_server.agents import Agent

__all__ = ["BlockNoise", "RowNoise"]

_BLOCK_STEPS = 64
"""Part of the contract of reproducibility: an agent that draws several kinds of numbers draws them
block by block."""


class RowNoise:
    """Noise for M rows, each somewhere in its own episode."""

    def __init__(self, num_rows: int, agent: Agent) -> None:
        self._agent = agent
        # Made when a row first has an episode: that takes longer than all else that a short call does here.
        self._generators: dict[int, EpisodeGenerator] = {}
        self._blocks = np.zeros((num_rows, _BLOCK_STEPS, agent.noise_width))
        if agent.factors is not None:  # also of rows that nobody looks at
            self._blocks[:, :, 0] = agent.factors[0]
        self._positions = np.zeros(num_rows, np.intp)
        self._rows = np.arange(num_rows)
        # How many steps all rows can make until one has come to the end of its block.
        self._num_ahead = _BLOCK_STEPS
        self._indices = np.zeros(num_rows, np.int64)

    def begin(self, row: int, root_seed: int, episode_index: int, first_step: int = 0) -> int:
        """Starts an episode in a row; returns the seed for its environment.

        From a later step on, the numbers are those that this agent would have had there if it had acted all along.
        """
        self._indices[row] = episode_index
        if row not in self._generators:
            self._generators[row] = EpisodeGenerator()
        env_seed = self._generators[row].begin(root_seed, episode_index)
        num_blocks, position = divmod(first_step, _BLOCK_STEPS)
        for _ in range(num_blocks + 1):
            self._draw(row)
        self._positions[row] = position
        self._num_ahead = min(self._num_ahead, _BLOCK_STEPS - position)
        return env_seed

    def next(self) -> np.ndarray:
        """(M, K), the numbers for each row's next step."""
        if not self._num_ahead:
            for row in np.flatnonzero(self._positions == _BLOCK_STEPS).tolist():
                self._draw(row)
            self._num_ahead = _BLOCK_STEPS - int(self._positions.max())
        self._num_ahead -= 1
        noise: np.ndarray = self._blocks[self._rows, self._positions]
        self._positions += 1
        return noise

    def _draw(self, row: int) -> None:
        if row in self._generators:
            self._agent.draw_noise(self._generators[row].actions, self._blocks[row])
            if self._agent.factors is not None:
                self._blocks[row, :, 0] = self._agent.factors[self._indices[row] % len(self._agent.factors)]
        self._positions[row] = 0


class BlockNoise:
    """Noise for M rows that are in one block, all at the same step of it."""

    def __init__(self, num_rows: int, agent: Agent) -> None:
        self._agent = agent
        self._generator = EpisodeGenerator()
        self._block = np.zeros((_BLOCK_STEPS, num_rows, agent.noise_width))
        self._numbers = self._block.reshape(_BLOCK_STEPS * num_rows, agent.noise_width)
        self._key = (0, 0)
        self._next_part, self._position = 0, _BLOCK_STEPS

    def begin(self, root_seed: int, block_start: int, first_step: int = 0) -> int:
        """Starts a block; returns the seed for its environment.

        From a later step on, the numbers are those that this agent would have had there if it had acted all along.
        """
        self._key = (root_seed, block_start)
        self._next_part, self._position = divmod(first_step, _BLOCK_STEPS)
        if self._position:
            position = self._position
            self._draw()
            self._position = position
        else:
            self._position = _BLOCK_STEPS
        return self._generator.begin(root_seed, block_start)

    def next(self, indices: np.ndarray) -> np.ndarray:
        """(M, K), the numbers for the rows' next step, of episodes of these indices (M,); overwritten later."""
        if self._position == _BLOCK_STEPS:
            self._draw()
        self._position += 1
        noise: np.ndarray = self._block[self._position - 1]
        if self._agent.factors is not None:
            noise[:, 0] = self._agent.factors[indices % len(self._agent.factors)]
        return noise

    def _draw(self) -> None:
        # Each part has a stream of its own, so that it can be gone to without drawing those before.
        self._generator.begin(*self._key, self._next_part)
        self._agent.draw_noise(self._generator.actions, self._numbers)
        self._next_part += 1
        self._position = 0
