"""Environments of PettingZoo's parallel interface, where all agents act in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.envs.many.turns import Turn, TurnEnv, check_agents, positions_of
from rollserve_server.envs.outcomes import ReturnedError, flag_of, parts_of_step, reward_of
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pettingzoo import ParallelEnv

__all__ = ["ParallelTurns"]


class ParallelTurns(TurnEnv):
    """A parallel environment.

    An agent that leaves `env.agents` without being terminated or truncated is absent: it does not act, and its rewards
    add up until it comes back. If it does not, what followed its last action stays unknown. Rewards of agents that are
    not alive belong to no life, and are ignored, as in a loop over `env.agents`.
    """

    def __init__(self, env: ParallelEnv[Any, Any, Any]) -> None:
        self._env = env
        self.agents = tuple(env.possible_agents)
        self.observation_spaces = tuple(map(env.observation_space, self.agents))
        self.action_spaces = tuple(map(env.action_space, self.agents))
        self.max_acting = len(self.agents)
        self.state_space = getattr(env, "state_space", None)
        self._positions = positions_of(self.agents)
        # Rewards of the agents that are alive and absent.
        self._absent: dict[Any, float] = {}

    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[Turn]:
        """Begin an episode, and return the first turns."""
        self._absent = {}
        observations, infos = self._env.reset(seed=seed, options=options)
        check_agents(self._env.agents, self._positions)
        return [self._turn(agent, observations, 0.0, infos=infos) for agent in self._ordered(self._env.agents)]

    def step(self, actions: Mapping[int, Any]) -> Sequence[Turn]:
        """Make a step with an action of each agent that acts, and return the next turns."""
        # In the order of `agents`, as in a plain loop: environments may heed it.
        names = {agent: actions[self._positions[agent]] for agent in self._env.agents}
        observations, rewards, terminated, truncated, infos = parts_of_step(self._env.step(names))
        present = set(self._env.agents)
        check_agents(self._env.agents, self._positions)
        turns = []
        for agent in self._ordered({*names, *self._absent, *present}):
            try:
                flags = tuple(
                    flag_of(name, values.get(agent, False))
                    for name, values in (("terminated", terminated), ("truncated", truncated))
                )
                reward = self._absent.pop(agent, 0.0) + reward_of(rewards.get(agent, 0.0))
            except ReturnedError as error:
                raise ReturnedError(f"agent {agent!r}: {error}") from None
            if agent not in rewards and agent in names and (any(flags) or agent in present):
                raise ReturnedError(f"rewards: {mismatch(f'one for agent {agent!r}', f'some for {list(rewards)}')}")
            if any(flags) and agent in present:
                expected = f"an agent {agent!r} that is terminated or truncated to leave them"
                raise ReturnedError(f"agents: {mismatch(expected, list(self._env.agents))}")
            if any(flags) or agent in present:
                turns.append(self._turn(agent, observations, reward, *flags, infos=infos))
            else:
                self._absent[agent] = reward
        return turns

    def cut(self) -> Sequence[Turn]:
        """Return no turns: all present agents have had theirs."""
        self._absent = {}
        return ()

    def state(self) -> Any:
        """Return the global state."""
        return self._env.state()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

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
    ) -> Turn:
        if agent not in observations:
            raise ReturnedError(
                f"observations: {mismatch(f'one for agent {agent!r}', f'some for {list(observations)}')}"
            )
        info = infos.get(agent) or {}
        return Turn(self._positions[agent], observations[agent], reward, terminated, truncated, info)
