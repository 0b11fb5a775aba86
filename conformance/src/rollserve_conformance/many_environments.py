"""The environments with many agents of the cases, one for each interface of PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

__all__ = ["ConformanceCrowd", "ConformanceRing"]

_WIDTH = 256


class ConformanceCrowd(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo is not typed everywhere
    """Agents with different spaces that come late, end early and appear again, or are absent for a step.

    `runner_0` ends early and appears again two steps later, which begins another life. `runner_1` leaves for one step
    in four without having ended. `guard` has masks of its actions and infos with gaps, and is there all the time.
    `late` appears with step 2.
    """

    metadata = {"name": "crowd"}  # noqa: RUF012  # as PettingZoo has it
    render_mode = None

    def __init__(self, *, max_length: int = 12, wide: bool = False, scale: float = 1.0) -> None:
        """Make the spaces.

        Args:
            max_length: the longest episode.
            wide: whether the runners' observations have 256 numbers instead of 3.
            scale: factor of the rewards.
        """
        runner = spaces.Box(-100, 100, (_WIDTH if wide else 3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
        mask = spaces.Box(0, 1, (4,), np.int8)
        guard = spaces.Dict({"position": spaces.Discrete(7, start=-2), "action_mask": mask}), spaces.Discrete(4)
        late = spaces.Box(0, 255, (2, 3), np.uint8), spaces.Discrete(3)
        self._spaces = {"runner_0": runner, "runner_1": runner, "guard": guard, "late": late}
        self.possible_agents = list(self._spaces)
        self.state_space = spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
        self._max_length, self._scale = max_length, scale

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's observations."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's actions."""
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin an episode of half to all of `max_length`."""
        self._random, self._step, self._sum = np.random.default_rng(seed), 0, 0.0
        self._length = int(self._random.integers(1 + self._max_length // 2, self._max_length, endpoint=True))
        self._end_of_runner = int(self._random.integers(2, 6))
        self.agents = ["runner_0", "runner_1", "guard"]
        infos = {agent: {"start": self._length} for agent in self.agents}
        return {agent: self._observe(agent) for agent in self.agents}, infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Make a step; the actions add up to the global state."""
        self._step += 1
        self._sum += sum(float(np.sum(action)) for action in actions.values())
        is_over, acted = self._step >= self._length, list(actions)
        terminated = {agent: agent == "runner_0" and self._step == self._end_of_runner for agent in acted}
        truncated = dict.fromkeys(acted, is_over)
        rewards = {agent: self._scale * float(self._random.normal()) + self._step for agent in acted}
        self.agents = [] if is_over else [agent for agent in self.possible_agents if self._is_there(agent)]
        seen = {agent: self._observe(agent) for agent in self.possible_agents if agent in {*acted, *self.agents}}
        return seen, rewards, terminated, truncated, {agent: self._infos(agent) for agent in seen}

    def state(self) -> np.ndarray:
        """Return the global state."""
        return np.array([[self._step, len(self.agents)], [self._sum, self._length]], np.float32)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _is_there(self, agent: str) -> bool:
        """Whether an agent acts in the step that follows."""
        if agent == "runner_0":
            return not 0 <= self._step - self._end_of_runner < 2
        return self._step >= 2 if agent == "late" else agent == "guard" or self._step % 4 != 3

    def _observe(self, agent: str) -> Any:
        if agent == "guard":
            mask = np.ones(4, np.int8)
            mask[self._random.integers(4)] = 0
            return {"position": np.int64(self._random.integers(-2, 5)), "action_mask": mask}
        space = self._spaces[agent][0]
        values = self._random.uniform(0, 100, space.shape or ())
        values.flat[0] = self._step
        return values.astype(space.dtype)

    def _infos(self, agent: str) -> dict[str, Any]:
        infos: dict[str, Any] = {"distance": float(self._random.random())}
        if agent == "guard" and self._step % 3 == 0:
            infos["alarm"] = bool(self._random.random() < 0.5)
        return infos


class ConformanceRing(AECEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo is not typed everywhere
    """Three agents that act in turns, from any of them on; each action rewards all of them.

    The agent at position i is terminated (1) or truncated (0 and 2) after i + 2 of its own actions.
    """

    metadata = {"name": "ring"}  # noqa: RUF012  # as PettingZoo has it
    render_mode = None

    def __init__(self, *, wide: bool = False) -> None:
        """Make the spaces; with `wide`, observations have 256 numbers instead of 2."""
        super().__init__()
        self.possible_agents = ["first", "second", "third"]
        self._observations = spaces.Box(-np.inf, np.inf, (_WIDTH if wide else 2,), np.float64)
        self._actions = spaces.Discrete(3)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's observations."""
        return self._observations

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's actions."""
        return self._actions

    def observe(self, agent: str) -> np.ndarray:
        """Return the agent's number of actions, what all have added up, and numbers of the step."""
        values = self._numbers.copy()
        values[:2] = self._counts[agent], self._sum
        return values

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode."""
        self._random, self._sum = np.random.default_rng(seed), 0.0
        self._numbers = self._random.normal(size=self._observations.shape)
        self.agents = list(self.possible_agents)
        self._counts = dict.fromkeys(self.agents, 0)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[int(self._random.integers(3))]

    def step(self, action: Any) -> None:
        """Make the action of the selected agent, or let it leave if it has ended."""
        agent = self.agent_selection
        behind = self._behind(agent)
        if self.terminations[agent] or self.truncations[agent]:
            self.agents.remove(agent)
            for values in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
                del values[agent]
        else:
            self._act(agent, int(action))
        if self.agents:
            self.agent_selection = next(each for each in behind if each in self.agents)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _act(self, agent: str, action: int) -> None:
        self._cumulative_rewards[agent] = 0.0
        self._counts[agent] += 1
        self._sum += action + float(self._random.random())
        self._numbers = self._random.normal(size=self._observations.shape)
        self.rewards = {each: float(self._random.normal()) for each in self.agents}
        position = self.possible_agents.index(agent)
        if self._counts[agent] == position + 2:
            (self.terminations if position == 1 else self.truncations)[agent] = True
        self.infos[agent] = {"sum": self._sum}
        self._accumulate_rewards()

    def _behind(self, agent: str) -> list[str]:
        """Return the agents in the order of their turns, the given one last."""
        start = self.possible_agents.index(agent) + 1
        return self.possible_agents[start:] + self.possible_agents[:start]
