"""Environments of PettingZoo's AEC interface, where agents act one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.envs.many.turns import Turn, TurnEnv, check_agents, positions_of
from rollserve_server.envs.outcomes import ReturnedError, copied, flag_of, reward_of
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pettingzoo import AECEnv

__all__ = ["AecTurns"]


class AecTurns(TurnEnv):
    """An AEC environment. A step is the action of one agent.

    The turns are what `env.last()` returns when an agent is selected: a reward is the sum of the agent's rewards since
    its last action. Agents that have ended make their step without an action at once, and it counts as none.
    """

    max_acting = 1

    def __init__(self, env: AECEnv[Any, Any, Any]) -> None:
        self._env = env
        self.agents = tuple(env.possible_agents)
        self.observation_spaces = tuple(map(env.observation_space, self.agents))
        self.action_spaces = tuple(map(env.action_space, self.agents))
        self.state_space = getattr(env, "state_space", None)
        self._positions = positions_of(self.agents)
        # Rewards that agents have got where an episode was cut, and that their next turns add up again.
        self._paid: dict[Any, float] = {}

    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[Turn]:
        """Begin an episode, and return the first turn, after the turns of agents that have ended before it."""
        self._paid = {}
        self._env.reset(seed=seed, options=options)
        return self._turns()

    def step(self, actions: Mapping[int, Any]) -> Sequence[Turn]:
        """Make the step of the selected agent, and return the next turn, after the turns of agents that have ended."""
        (action,) = actions.values()
        self._env.step(action)
        return self._turns()

    def cut(self) -> Sequence[Turn]:
        """Return the turns of all agents but the selected one, as if they were selected now."""
        env, turns = self._env, []
        for agent in env.agents:
            if agent != env.agent_selection:
                reward = env._cumulative_rewards.get(agent, 0.0)  # wrappers of PettingZoo pass it on
                result = env.observe(agent), reward, env.terminations[agent], env.truncations[agent]
                turns.append(_kept(self._turn(agent, *result, env.infos.get(agent))))
                self._paid[agent] = reward_of(reward)
        return turns

    def state(self) -> Any:
        """Return the global state."""
        return self._env.state()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _turns(self) -> list[Turn]:
        """Return the turns up to the next agent that acts; each that has ended makes its last step."""
        env, turns = self._env, []
        check_agents(env.agents, self._positions)
        while env.agents:
            agent = env.agent_selection
            if agent not in env.agents:
                raise ReturnedError(f"agent_selection: {mismatch(f'one of agents, {list(env.agents)}', repr(agent))}")
            turn = self._turn(agent, *env.last())
            if not turn.ended:
                turns.append(turn)
                break
            turns.append(_kept(turn))
            env.step(None)
            if agent in env.agents:
                expected = f"an agent {agent!r} that has ended to leave them with its step"
                raise ReturnedError(f"agents: {mismatch(expected, list(env.agents))}")
            check_agents(env.agents, self._positions)
        return turns

    def _turn(
        self, agent: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping[Any, Any] | None
    ) -> Turn:
        """Return a turn of an agent, which has its rewards before a cut already."""
        try:
            left = reward_of(reward) - self._paid.pop(agent, 0.0)
            ends = flag_of("terminated", terminated), flag_of("truncated", truncated)
        except ReturnedError as error:
            raise ReturnedError(f"agent {agent!r}: {error}") from None
        return Turn(self._positions[agent], observation, left, *ends, info or {})


def _kept(turn: Turn) -> Turn:
    """Return a turn as it stays while the environment makes others, for which it may use the same arrays."""
    return turn._replace(observation=copied(turn.observation), info=copied(turn.info))
