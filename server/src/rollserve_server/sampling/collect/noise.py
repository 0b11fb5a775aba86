"""Random numbers of episodes, which are a function of a root seed and an episode's index only.

Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the root
seed and a purpose are its key, and the index is one word of its counter. So every episode has 2**64 streams of 2**128
numbers each, and moving to a stream takes less than 1 µs. The numbers of actions, their noise, are drawn ahead so that
a step needs no call of a generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rollserve_server.agents import Agent

__all__ = ["BlockNoise", "EpisodeGenerator", "LaneNoise", "RowNoise", "unused_noise"]

_ENV_SEED, _ACTIONS, _POLICIES = 0, 1, 2
"""Purposes."""

_DRAW_STEPS = 64
"""Number of steps whose noise is drawn at once. It determines the numbers: an agent that needs several kinds of them
draws 64 steps of one kind, then of the next.
"""


def unused_noise(num_rows: int, agent: Agent) -> np.ndarray:
    """Return noise (M, K) that an agent accepts, for rows whose actions nobody uses."""
    noise = np.zeros((num_rows, agent.noise_width))
    if agent.factors is not None:
        noise[:, 0] = agent.factors[0]
    return noise


class EpisodeGenerator:
    """A generator that can be moved to any stream of any episode.

    Attributes:
        actions: generator of action noise.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._counter, self._key = np.zeros(4, np.uint64), np.zeros(2, np.uint64)
        self._state: dict[str, Any] = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.actions = np.random.Generator(self._bits)

    def begin(self, root_seed: int, episode_index: int, part: int = 0) -> None:
        """Move `actions` to the beginning of a stream of an episode.

        Args:
            root_seed: root seed of the sequence.
            episode_index: index of the episode.
            part: number of the stream among the episode's streams of action noise.
        """
        self._move(_ACTIONS, root_seed, episode_index, part)

    def env_seed(self, root_seed: int, episode_index: int) -> int:
        """Return the seed for the environment's reset; `begin` has to be called before `actions` are used again.

        The seed is from 0 to 2**31 - 1, the range that every environment accepts.
        """
        self._move(_ENV_SEED, root_seed, episode_index, 0)
        return int(self._bits.random_raw()) >> 33

    def policy_numbers(self, root_seed: int, episode_index: int, count: int) -> np.ndarray:
        """Return the numbers (count,) from 0 up to 1 to draw policies with; then as after `env_seed`."""
        self._move(_POLICIES, root_seed, episode_index, 0)
        return self.actions.random(count)

    def _move(self, purpose: int, root_seed: int, episode_index: int, part: int) -> None:
        self._key[:] = root_seed, purpose
        # Drawing increments the two lower words.
        self._counter[2:] = episode_index, part
        self._bits.state = self._state  # type: ignore[assignment]  # numpy does not publish its type


class RowNoise:
    """Noise of M rows, each at its own step of its own episode.

    Attributes:
        agent: agent that draws the noise; another one may take its place if both have the same `noise_kind`.
    """

    def __init__(self, num_rows: int, agent: Agent) -> None:
        self.agent = agent
        # Made when a row has its first episode, because it takes longer than the rest of a short call.
        self._generators: dict[int, EpisodeGenerator] = {}
        self._drawn = np.zeros((num_rows, _DRAW_STEPS, agent.noise_width))
        if agent.factors is not None:  # also in rows that have no episode yet
            self._drawn[:, :, 0] = agent.factors[0]
        # For each row, the position of its next step in all rows' numbers, which take their steps one after the other.
        self._starts = np.arange(num_rows) * _DRAW_STEPS
        self._positions = self._starts.copy()
        self._numbers = self._drawn.reshape(num_rows * _DRAW_STEPS, agent.noise_width)
        # Number of steps that all rows can make before one of them needs the next draw.
        self._num_ahead = _DRAW_STEPS
        self._indices = np.zeros(num_rows, np.int64)

    def begin(self, row: int, root_seed: int, episode_index: int, first_step: int = 0) -> int:
        """Begin an episode in a row, and return the seed for its environment.

        With `first_step`, the noise goes on at that step, as if the agent had acted from the beginning.
        """
        self._indices[row] = episode_index
        if row not in self._generators:
            self._generators[row] = EpisodeGenerator()
        env_seed = self._generators[row].env_seed(root_seed, episode_index)
        self._generators[row].begin(root_seed, episode_index)
        num_draws, position = divmod(first_step, _DRAW_STEPS)
        for _ in range(num_draws + 1):
            self._draw(row)
        self._positions[row] += position
        self._num_ahead = min(self._num_ahead, _DRAW_STEPS - position)
        return env_seed

    def next(self) -> np.ndarray:
        """Return the noise (M, K) of each row's next step."""
        if not self._num_ahead:
            for row in np.flatnonzero(self._positions == self._starts + _DRAW_STEPS).tolist():
                self._draw(row)
            self._num_ahead = _DRAW_STEPS - int((self._positions - self._starts).max())
        self._num_ahead -= 1
        noise: np.ndarray = self._numbers.take(self._positions, axis=0)
        self._positions += 1
        return noise

    def _draw(self, row: int) -> None:
        if row in self._generators:
            self.agent.draw_noise(self._generators[row].actions, self._drawn[row])
            if self.agent.factors is not None:
                self._drawn[row, :, 0] = self.agent.factors[self._indices[row] % len(self.agent.factors)]
        self._positions[row] = self._starts[row]


class BlockNoise:
    """Noise of M rows in one block, all at the same step.

    Attributes:
        agent: as in `RowNoise`.
    """

    def __init__(self, num_rows: int, agent: Agent) -> None:
        self.agent = agent
        self._generator = EpisodeGenerator()
        self._drawn = np.zeros((_DRAW_STEPS, num_rows, agent.noise_width))
        self._numbers = self._drawn.reshape(_DRAW_STEPS * num_rows, agent.noise_width)
        self._key = (0, 0)
        self._next_draw, self._position = 0, _DRAW_STEPS

    def begin(self, root_seed: int, block_start: int, first_step: int = 0) -> int:
        """Begin a block, and return the seed for its environment.

        With `first_step`, the noise goes on at that step, as if the agent had acted from the beginning.
        """
        self._key = (root_seed, block_start)
        self._next_draw, position = divmod(first_step, _DRAW_STEPS)
        if position:
            self._draw()
        self._position = position or _DRAW_STEPS
        return self._generator.env_seed(root_seed, block_start)

    def next(self, indices: np.ndarray) -> np.ndarray:
        """Return the noise (M, K) of the rows' next step. The array is overwritten later.

        Args:
            indices: (M,), indices of the rows' episodes.
        """
        if self._position == _DRAW_STEPS:
            self._draw()
        self._position += 1
        noise: np.ndarray = self._drawn[self._position - 1]
        if self.agent.factors is not None:
            noise[:, 0] = self.agent.factors[indices % len(self.agent.factors)]
        return noise

    def _draw(self) -> None:
        # Each draw has its own stream, so that earlier draws need not be repeated to reach it.
        self._generator.begin(*self._key, self._next_draw)
        self.agent.draw_noise(self._generator.actions, self._numbers)
        self._next_draw += 1
        self._position = 0


class LaneNoise:
    """Noise of L lanes, each at its own step of its own episode; only some of them act at a time."""

    def __init__(self, num_lanes: int, agent: Agent) -> None:
        self._agent = agent
        self._generators: dict[int, EpisodeGenerator] = {}
        self._drawn = np.zeros((num_lanes, _DRAW_STEPS, agent.noise_width))
        self._positions = np.zeros(num_lanes, np.int64)
        self._indices = np.zeros(num_lanes, np.int64)

    def begin(self, lane: int, root_seed: int, episode_index: int, part: int, first_step: int = 0) -> None:
        """Begin an episode in a lane, whose noise is one part of the episode's; `first_step` as in `RowNoise.begin`."""
        self._indices[lane] = episode_index
        if lane not in self._generators:
            self._generators[lane] = EpisodeGenerator()
        self._generators[lane].begin(root_seed, episode_index, part)
        self._positions[lane] = _DRAW_STEPS
        num_draws, position = divmod(first_step, _DRAW_STEPS)
        for _ in range(num_draws + (position > 0)):
            self._draw(lane)
        self._positions[lane] = position or _DRAW_STEPS

    def next(self, lanes: np.ndarray) -> np.ndarray:
        """Return the noise (lanes, K) of the next step of some lanes."""
        for lane in lanes[self._positions[lanes] == _DRAW_STEPS].tolist():
            self._draw(lane)
        noise: np.ndarray = self._drawn[lanes, self._positions[lanes]]
        self._positions[lanes] += 1
        return noise

    def _draw(self, lane: int) -> None:
        agent = self._agent
        agent.draw_noise(self._generators[lane].actions, self._drawn[lane])
        if agent.factors is not None:
            self._drawn[lane, :, 0] = agent.factors[self._indices[lane] % len(agent.factors)]
        self._positions[lane] = 0
