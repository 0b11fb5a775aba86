"""Environments with many agents, over both interfaces of PettingZoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from charges import in_probe
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseWrapper

RUNNER, GUARD = (
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Dict({"observation": spaces.Box(0, 9, (2,), np.int64), "action_mask": spaces.Box(0, 1, (4,), np.int8)}),
)
SPACES = {
    "runner_0": (RUNNER, spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "runner_1": (RUNNER, spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "guard": (GUARD, spaces.Discrete(4)),
    "late": (RUNNER, spaces.Discrete(3)),
}

_FAILED: set[int] = set()
"""Seeds of episodes that have failed once."""


RESET_FAULTS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "only observations": lambda seen, infos: seen,
    "observations in a list": lambda seen, infos: (list(seen.values()), infos),
    "list of infos at reset": lambda seen, infos: (seen, list(infos.values())),
}
"""Results of a reset, by the fault."""

STEP_FAULTS: dict[str, Callable[[list[Any]], None]] = {
    "no infos": lambda result: result.__setitem__(4, None),
    "list of rewards": lambda result: result.__setitem__(1, list(result[1].values())),
    "one flag for all": lambda result: result.__setitem__(2, False),
    "no termination": lambda result: result[2].pop("guard"),
    "no truncations": lambda result: result[3].clear(),
    "info 0": lambda result: result[4].update(guard=0),
    "info text": lambda result: result[4].update(guard=""),
    "info flag": lambda result: result[4].update(guard=False),
    "info list": lambda result: result[4].update(guard=[]),
    "infos left out": lambda result: result.__setitem__(4, {"guard": None, "common": 3}),
}
"""Changes of what the second step returns, by the fault; the last one is none to PettingZoo."""


class Crowd(ParallelEnv[str, Any, Any]):
    """Agents with different spaces. Some come late, end early, die for two steps, or are absent for one.

    `agents` has them in reverse order. The reward of an agent that acts depends on its action. Agent `late` appears at
    step 3; all but the guard die with chance 0.1 per step, and are back two steps later; runners leave for a step now
    and then without having ended.
    """

    metadata = {"name": "crowd"}  # noqa: RUF012

    def __init__(self, length: int = 12, fault: str = "") -> None:
        self.possible_agents = list(SPACES)
        self._length, self._fault = length, fault

    def observation_space(self, agent: str) -> Any:
        return SPACES[agent][0]

    def action_space(self, agent: str) -> Any:
        return SPACES[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._rng, self._step = np.random.default_rng(seed), 0
        self._back = dict.fromkeys(SPACES, 0) | {"late": 3}
        self._seed = seed or 0
        self._state = 0.0
        self._absent: set[str] = set()
        self.agents = [agent for agent in reversed(SPACES) if agent != "late"]
        seen, infos = {agent: self._observe(agent) for agent in self.agents}, {a: {"start": 1} for a in self.agents}
        if self._fault in RESET_FAULTS and not in_probe():
            return RESET_FAULTS[self._fault](seen, infos)
        return seen, infos

    def step(self, actions: dict[str, Any]) -> Any:
        if list(actions) != self.agents:
            raise RuntimeError(f"actions of {list(actions)}, not of {self.agents}")
        self._step += 1
        self._state += float(sum(np.sum(action) for action in actions.values()))
        ends = self._step == self._length
        acted = list(self.agents)
        terminated = {agent: bool(self._rng.random() < 0.1) and agent != "guard" for agent in acted}
        truncated = dict.fromkeys(acted, ends)
        absent = {agent for agent in acted if "runner" in agent and not ends and self._rng.random() < 0.2}
        for agent in absent:
            terminated[agent] = False
        for agent in acted:
            self._back[agent] = (
                self._step + (2 if agent in absent else 3) if terminated[agent] or agent in absent else 0
            )
        self.agents = (
            []
            if ends
            else [
                agent
                for agent in reversed(SPACES)
                if (agent in acted and not terminated[agent] and agent not in absent)
                or (agent not in acted and self._back[agent] <= self._step + 1)
            ]
        )
        rewards = {agent: float(np.sum(actions[agent])) + 0.1 * self._step for agent in acted}
        seen = {agent: self._observe(agent) for agent in SPACES if agent in self.agents or agent in acted}
        infos = {agent: {"step": self._step} for agent in self.agents}
        if ends:  # absent agents end, too
            for agent in sorted(self._absent):
                if agent not in acted:
                    terminated[agent], seen[agent], rewards[agent] = True, self._observe(agent), 0.5
        self._absent = (self._absent | absent) - set(self.agents)
        self._break(terminated, rewards)
        result = [seen, rewards, terminated, truncated, infos]
        if self._fault in STEP_FAULTS and self._step == 2 and not in_probe():
            STEP_FAULTS[self._fault](result)
        return tuple(result)

    @property
    def state_space(self) -> Any:
        return spaces.Box(-np.inf, np.inf, (2, 2), np.float32)

    def state(self) -> Any:
        if self._fault == "stateless" and self._step > 1:
            return np.zeros(3, np.float32)
        return np.array([[self._step, len(self.agents)], [self._state, self._seed % 1000]], np.float32)

    def close(self) -> None:
        pass

    def _observe(self, agent: str) -> Any:
        if agent != "guard":
            return np.array([self._step, self._state, self._rng.standard_normal()], np.float32)
        mask = np.ones(4, np.int8)
        mask[self._step % 4] = 0
        return {"observation": self._rng.integers(0, 10, 2), "action_mask": mask}

    def _break(self, terminated: dict[str, bool], rewards: dict[str, float]) -> None:
        if self._fault == "raises" and self._step == 3:
            raise RuntimeError("no more of this")
        if self._fault == "flaky" and self._step == 3 and self._seed % 3 == 0 and self._seed not in _FAILED:
            _FAILED.add(self._seed)
            raise RuntimeError("not this time")
        if self._fault == "unknown" and self._step == 2:
            self.agents.append("stranger")
        if self._fault == "stays" and self._step == 2 and self.agents:
            terminated[self.agents[0]] = True
        if self._fault == "twice" and self._step == 2:
            self.agents.append(self.agents[0])
        if self._fault in ("no reward", "odd flag") and self._step == 2:
            if self._fault == "odd flag":
                terminated["guard"] = "False"  # type: ignore[assignment]
            else:
                del rewards["guard"]
        if self._fault == "no number" and self._step == 2:
            rewards["guard"] = np.nan
        if self._fault == "vanishes" and self._step == 2:
            self.agents = []


class Relay(AECEnv[str, Any, Any]):
    """Agents that act in an order that the seed shuffles each round; each step rewards all of them.

    Agent i ends, by the task or by a limit, after i + 2 of its own actions; infos have masks for two of three actions.
    With `shares`, the observations of all agents of all environments are in one array.
    """

    _shared = np.zeros(2)

    metadata = {"name": "relay"}  # noqa: RUF012

    def __init__(self, num_agents: int = 3, fault: str = "", shares: bool = False) -> None:
        super().__init__()
        self._shares = shares
        self.possible_agents = [f"relay_{number}" for number in range(num_agents)]
        self._fault = fault

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        observation = self._shared if self._shares else np.empty(2)
        observation[:] = self._num_actions[agent], self._state
        return observation

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._rng, self._state, self._num_steps = np.random.default_rng(seed), 0.0, 0
        self.agents = list(self.possible_agents)
        self._num_actions = dict.fromkeys(self.agents, 0)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self._info() for agent in self.agents}
        self._waiting: list[str] = []
        self._select()

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._remove(agent)
            return
        if not self.infos[agent]["action_mask"][action]:
            raise RuntimeError(f"illegal action {action}")
        self._num_steps += 1
        self._cumulative_rewards[agent] = 0.0
        self._num_actions[agent] += 1
        self._state += float(action) + self._rng.random()
        self.rewards = {each: self._rng.random() * (position + 1) for position, each in enumerate(self.agents)}
        number = self.possible_agents.index(agent)
        if self._num_actions[agent] == number + 2:
            (self.terminations if number % 2 else self.truncations)[agent] = True
        self.infos[agent] = self._info()
        self._accumulate_rewards()
        self._select()
        if self._fault == "odd reward" and self._num_steps == 2:
            self._cumulative_rewards[self.agent_selection] = "1.5"  # type: ignore[assignment]
        if self._fault == "odd info" and self._num_steps == 2:
            self.infos[self.agent_selection] = 0  # type: ignore[assignment]
        if self._fault == "out_of_turn" and self._num_steps == 2:
            self.agent_selection = "nobody"

    def close(self) -> None:
        pass

    def _remove(self, agent: str) -> None:
        self.agents.remove(agent)
        for values in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
            del values[agent]
        self._waiting = [each for each in self._waiting if each in self.agents]
        if self.agents:
            self._select()

    def _select(self) -> None:
        if not self._waiting:
            self._waiting = list(self._rng.permutation(self.agents))
        self.agent_selection = str(self._waiting.pop())

    def _info(self) -> dict[str, Any]:
        mask = np.ones(3, np.int8)
        mask[self._rng.integers(3)] = 0
        return {"action_mask": mask}


class HalvedRewards(BaseWrapper[str, Any, Any]):
    """Halves what each agent's rewards add up to."""

    def last(self, observe: bool = True) -> Any:
        observation, reward, *rest = self.env.last(observe)
        return (observation, reward / 2, *rest)


class Phoenix(AECEnv[str, Any, Any]):
    """Two agents whose observations count all steps: both act twice and die, and then one is back.

    It is back with the step without an action of the other one. Before an agent acts, it has got 5.
    """

    metadata = {"name": "phoenix"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["phoenix", "mortal"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, np.inf, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.array([self._num_steps], np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._num_steps, self._lives_left = 0, 2
        self.agents: list[str] = []
        self._cumulative_rewards, self.terminations, self.truncations, self.infos = {}, {}, {}, {}
        self._begin("phoenix", "mortal")

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        self._num_steps += 1
        if self.terminations[agent]:
            self.agents.remove(agent)
            if not self.agents and self._lives_left:
                self._begin("phoenix")
        else:
            self._cumulative_rewards[agent] = 0.0
            for each in self.agents:
                self._cumulative_rewards[each] += self._num_steps
            self._num_left -= 1
            if not self._num_left:
                self.terminations = dict.fromkeys(self.agents, True)
        if self.agents:
            self.agent_selection = self.agents[self._num_left % len(self.agents)]

    def close(self) -> None:
        pass

    def _begin(self, *agents: str) -> None:
        self._lives_left -= 1
        self._num_left = 2 * len(agents)
        self.agents = list(agents)
        self.agent_selection = agents[0]
        self._cumulative_rewards.update(dict.fromkeys(agents, 5.0))
        for values in (self.terminations, self.truncations):
            values.update(dict.fromkeys(agents, False))
        self.infos.update({agent: {} for agent in agents})
