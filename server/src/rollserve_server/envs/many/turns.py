"""Environments with many agents that take turns: one interface, and PettingZoo's two behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve_server.envs.outcomes import (
    ReturnedError,
    copied,
    flag_of,
    form_of,
    parts_of_reset,
    parts_of_step,
    plain_infos,
    reward_of,
)
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space
    from pettingzoo import AECEnv, ParallelEnv

__all__ = ["AecTurns", "AgentTurn", "ParallelTurns", "TurnEnv"]


_STEP_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")
"""Mappings that the step of a parallel environment returns."""


class AgentTurn(NamedTuple):
    """Turn of an agent: what it gets before it acts, or when it has ended.

    Attributes:
        agent: position of the agent among the environment's possible agents.
        observation: the observation.
        reward: sum of the rewards since the agent's last action, or since it appeared.
        terminated: whether the agent has reached a terminal state.
        truncated: whether a limit outside the task has ended the agent's life.
        info: the environment's infos for the agent.
        columns: for each leaf of the observation space, the observation (*O) of an agent that has ended and appears
            again in the same step, where the next turn takes its place in the columns of `ManyEnvs`; otherwise None.
    """

    agent: int
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[Any, Any]
    columns: Sequence[np.ndarray] | None = None

    @property
    def ended(self) -> bool:
        """Whether the agent acts no more, unless it appears again."""
        return self.terminated or self.truncated


class TurnEnv(ABC):
    """An environment with many agents. In each step, the agents act whose last turns have not ended them.

    An agent's life goes from its first turn to the turn that ends it; an agent that appears again has another life.

    Attributes:
        agents: names of the possible agents, in the environment's order.
        observation_spaces: observation space of each agent.
        action_spaces: action space of each agent.
        max_acting: largest number of agents that act in the same step.
        state_space: space of the global state; None if the environment announces none.
    """

    agents: tuple[str, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    max_acting: int
    state_space: Space[Any] | None

    @abstractmethod
    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[AgentTurn]:
        """Begin an episode, and return the first turns. Raises what the environment raises."""

    @abstractmethod
    def step(self, actions: Mapping[int, Any]) -> Sequence[AgentTurn]:
        """Make a step with an action of each agent that acts, and return the next turns.

        Without a turn of an agent that goes on, the episode is over.

        Raises:
            ReturnedError: the environment breaks the rules of PettingZoo.
            BaseException: what the environment raises.
        """

    @abstractmethod
    def cut(self) -> Sequence[AgentTurn]:
        """Return the turns of the agents that wait for theirs, because the caller ends the episode here.

        The next episode may begin in the same state: rewards that were returned are not returned again, and rewards of
        absent agents are forgotten.
        """

    @abstractmethod
    def state(self) -> Any:
        """Return the global state. Raises what the environment raises."""

    @abstractmethod
    def close(self) -> None:
        """Close the environment."""


class _PettingZooTurns(TurnEnv):
    """An environment of PettingZoo's, whichever interface it has."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.agents = tuple(env.possible_agents)
        self.observation_spaces = tuple(map(env.observation_space, self.agents))
        self.action_spaces = tuple(map(env.action_space, self.agents))
        self.state_space = getattr(env, "state_space", None)
        self._positions: dict[Any, int] = {agent: position for position, agent in enumerate(self.agents)}

    def state(self) -> Any:
        """Return the global state."""
        return self._env.state()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _check_agents(self) -> None:
        """Raise ReturnedError if an agent has appeared that is not among the possible ones, or appears twice."""
        agents, known = self._env.agents, self._positions
        for agent in agents:
            if agent not in known:
                raise ReturnedError(f"agents: {mismatch(f'some of possible_agents, {list(known)}', repr(agent))}")
        if len(set(agents)) < len(agents):
            raise ReturnedError(f"agents: {mismatch('each agent once', list(agents))}")


class ParallelTurns(_PettingZooTurns):
    """A parallel environment.

    An agent that leaves `env.agents` without being terminated or truncated is absent: it does not act, and its rewards
    add up until it comes back. If it does not, what followed its last action stays unknown. Rewards of agents that are
    not alive belong to no life, and are ignored, as in a loop over `env.agents`.
    """

    def __init__(self, env: ParallelEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.max_acting = len(self.agents)
        # Rewards of the agents that are alive and absent.
        self._absent: dict[Any, float] = {}

    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[AgentTurn]:
        """Begin an episode, and return the first turns."""
        self._absent = {}
        parts = parts_of_reset(self._env.reset(seed=seed, options=options))
        observations, infos = map(_by_agent, ("observations", "infos"), parts)
        self._check_agents()
        return [self._turn(agent, observations, 0.0, infos=infos) for agent in self._ordered(self._env.agents)]

    def step(self, actions: Mapping[int, Any]) -> Sequence[AgentTurn]:
        """Make a step with an action of each agent that acts, and return the next turns."""
        # In the order of `agents`, as in a plain loop: environments may heed it.
        names = {agent: actions[self._positions[agent]] for agent in self._env.agents}
        parts = parts_of_step(self._env.step(names))
        observations, rewards, terminated, truncated, infos = map(_by_agent, _STEP_PARTS, parts)
        present = set(self._env.agents)
        self._check_agents()
        turns = []
        for agent in self._ordered({*names, *self._absent, *present}):
            if agent in names and (agent in present or agent in terminated or agent in truncated):
                _check_entry("terminations", terminated, agent)
                _check_entry("truncations", truncated, agent)
            try:
                flags = tuple(
                    flag_of(name, values.get(agent, False))
                    for name, values in (("terminated", terminated), ("truncated", truncated))
                )
                reward = self._absent.pop(agent, 0.0) + reward_of(rewards.get(agent, 0.0))
            except ReturnedError as error:
                raise ReturnedError(f"agent {agent!r}: {error}") from None
            if agent in names and (any(flags) or agent in present):
                _check_entry("rewards", rewards, agent)
            if any(flags) and agent in present:
                expected = f"an agent {agent!r} that is terminated or truncated to leave them"
                raise ReturnedError(f"agents: {mismatch(expected, list(self._env.agents))}")
            if any(flags) or agent in present:
                turns.append(self._turn(agent, observations, reward, *flags, infos=infos))
            else:
                self._absent[agent] = reward
        return turns

    def cut(self) -> Sequence[AgentTurn]:
        """Return no turns: all present agents have had theirs."""
        self._absent = {}
        return ()

    def _ordered(self, agents: Any) -> list[Any]:
        return sorted(agents, key=self._positions.__getitem__)

    def _turn(
        self,
        agent: Any,
        observations: Mapping[Any, Any],
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        *,
        infos: Mapping[Any, Any],
    ) -> AgentTurn:
        _check_entry("observations", observations, agent)
        info = _info(agent, infos.get(agent))
        return AgentTurn(self._positions[agent], observations[agent], reward, terminated, truncated, info)


class AecTurns(_PettingZooTurns):
    """An AEC environment. A step is the action of one agent.

    The turns are what `env.last()` returns when an agent is selected: a reward is the sum of the agent's rewards since
    its last action. Agents that have ended make their step without an action at once, and it counts as none.
    """

    max_acting = 1

    def __init__(self, env: AECEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        # Rewards that agents have got where an episode was cut, and that their next turns add up again.
        self._paid: dict[Any, float] = {}

    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[AgentTurn]:
        """Begin an episode, and return the first turn, after the turns of agents that have ended before it."""
        self._paid = {}
        self._env.reset(seed=seed, options=options)
        return self._turns()

    def step(self, actions: Mapping[int, Any]) -> Sequence[AgentTurn]:
        """Make the step of the selected agent, and return the next turn, after the turns of agents that have ended."""
        (action,) = actions.values()
        self._env.step(action)
        return self._turns()

    def cut(self) -> Sequence[AgentTurn]:
        """Return the turns of all agents but the selected one, as if they were selected now."""
        env, turns = self._env, []
        for agent in env.agents:
            if agent != env.agent_selection:
                reward = env._cumulative_rewards.get(agent, 0.0)  # wrappers of PettingZoo pass it on
                result = env.observe(agent), reward, env.terminations[agent], env.truncations[agent]
                turns.append(_kept(self._turn(agent, *result, env.infos.get(agent))))
                self._paid[agent] = reward_of(reward)
        return turns

    def _turns(self) -> list[AgentTurn]:
        """Return the turns up to the next agent that acts; each that has ended makes its last step."""
        env, turns = self._env, []
        self._check_agents()
        while env.agents:
            agent = env.agent_selection
            if agent not in env.agents:
                raise ReturnedError(f"agent_selection: {mismatch(f'one of agents, {list(env.agents)}', repr(agent))}")
            turn = self._turn(agent, *parts_of_step(env.last()))
            if not turn.ended:
                turns.append(turn)
                break
            turns.append(_kept(turn))
            env.step(None)
            if agent in env.agents:
                expected = f"an agent {agent!r} that has ended to leave them with its step"
                raise ReturnedError(f"agents: {mismatch(expected, list(env.agents))}")
            self._check_agents()
        return turns

    def _turn(self, agent: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> AgentTurn:
        """Return a turn of an agent, which has its rewards before a cut already."""
        try:
            left = reward_of(reward) - self._paid.pop(agent, 0.0)
            ends = flag_of("terminated", terminated), flag_of("truncated", truncated)
        except ReturnedError as error:
            raise ReturnedError(f"agent {agent!r}: {error}") from None
        return AgentTurn(self._positions[agent], observation, left, *ends, _info(agent, info))


def _by_agent(name: str, values: Any) -> Mapping[Any, Any]:
    """Return what a parallel environment returned for its agents; raise ReturnedError unless it is a mapping."""
    if isinstance(values, Mapping):
        return values
    raise ReturnedError(f"{name}: {mismatch('a mapping with a value for each agent', form_of(values))}")


def _check_entry(name: str, values: Mapping[Any, Any], agent: Any) -> None:
    """Raise ReturnedError if a parallel environment has returned no value for an agent."""
    if agent not in values:
        raise ReturnedError(f"{name}: {mismatch(f'one for agent {agent!r}', f'some for {list(values)}')}")


def _info(agent: Any, info: Any) -> Mapping[Any, Any]:
    """Return an agent's infos, which may be None; raise ReturnedError for what are none."""
    try:
        return info if isinstance(info, Mapping) else plain_infos(info)
    except ReturnedError as error:
        raise ReturnedError(f"agent {agent!r}: {error}") from None


def _kept(turn: AgentTurn) -> AgentTurn:
    """Return a turn with copies of its arrays, which the environment may use for other turns."""
    return turn._replace(observation=copied(turn.observation), info=copied(turn.info))
