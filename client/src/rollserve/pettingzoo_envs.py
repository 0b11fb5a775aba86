"""A sampler's environment with many agents behind PettingZoo's own interfaces."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pettingzoo

from rollserve_wire.columns import is_mask, leaves_of, mask_name
from rollserve_wire.errors import InvalidArgumentError, PreconditionError, mismatch
from rollserve_wire.gymnasium_spaces import gymnasium_space, space_values, value_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from rollserve.multi_agent_batch import MultiAgentBatch
    from rollserve.multi_agent_step import AgentTurns, MultiAgentStep
    from rollserve.session import Session

__all__ = ["AecEnv", "ParallelEnv"]


class _RowEnv:
    """The only row of a sampler, whose episodes a session runs one after the other."""

    _in_turn: bool

    def __init__(self, drive: Callable[..., Session[Any, Any]], options: dict[str, Any]) -> None:
        """Begin a session, which says what the agents are.

        Args:
            drive: the method of the sampler for many agents.
            options: its arguments.

        Raises:
            InvalidArgumentError: the sampler has several rows, or its environment the other interface.
        """
        self.metadata: dict[str, Any] = {"name": "rollserve", "render_modes": []}
        self.agents: list[str] = []
        self._drive, self._drive_options = drive, options
        self._begin({})
        self._check()
        self.possible_agents = list(self._session.agents)
        spaces: tuple[Any, Any] = self._session.observation_space, self._session.action_space
        self._own_spaces = [{agent: space[agent] for agent in self.possible_agents} for space in spaces]
        self.observation_spaces, self.action_spaces = (
            {agent: gymnasium_space(space) for agent, space in its.items()} for its in self._own_spaces
        )

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self.action_spaces[agent]

    @property
    def env_seed(self) -> int:
        """Seed of the last reset of the environment."""
        return int(self._step.env_seeds[0])

    def batch(self) -> MultiAgentBatch:
        """Return what was recorded since the last call, in the present session; see `Session.batch`."""
        return self._session.batch()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _begin(self, seed: Mapping[str, int]) -> None:
        """Begin a session, and with it an episode."""
        self._session: Session[MultiAgentBatch, MultiAgentStep] = self._drive(**{**self._drive_options, **seed})
        self._step = self._session.observe()
        self._is_new = True

    def _check(self) -> None:
        """Raise InvalidArgumentError unless the sampler has one row, whose environment has this interface."""
        num_rows, in_turn = self._session.num_rows, self._session.in_turn
        if (num_rows, in_turn) == (1, self._in_turn):
            return
        self._session.close()
        if num_rows > 1:
            hint = "make it with num_rows=1 on one worker, or act in all rows with sampler.multi_agent.drive"
            raise InvalidArgumentError.of("environment", expected="a single row", got=f"{num_rows} rows", hint=hint)
        names = {True: "one with multi_agent='aec'", False: "one with multi_agent='parallel'"}
        raise InvalidArgumentError.of("environment", expected=names[self._in_turn], got=names[in_turn])

    def _restart(self, seed: int | None) -> None:
        """Begin the row's next episode, or the first one of another session if the present one has not ended."""
        if seed is not None or not self._is_new:
            self._session.close()
            self._begin({} if seed is None else {"seed": int(seed)})
        self._is_new = False

    def _act(self, actions: Mapping[str, Any]) -> None:
        """Make a step, and those behind it in which none of the agents acts."""
        if self._is_new:
            text = mismatch("an episode that has begun", "none", "call reset() first")
            raise PreconditionError(f"step: {text}", code="FAILED_PRECONDITION", field="step")
        (before,) = self._step.episode_indices
        rows = {
            agent: {name: leaf[None] for name, leaf in value_leaves(action, self._own_spaces[1][agent]).items()}
            for agent, action in actions.items()
        }
        self._step = self._session.step(rows)
        self._is_new = bool(self._step.episode_indices[0] != before)

    @property
    def _acting(self) -> Mapping[str, AgentTurns]:
        """The turns of the agents that act next in the episode: none if it has ended."""
        return {} if self._is_new else self._step.turns

    def _observation(self, agent: str, turns: AgentTurns) -> Any:
        """Return the observation of an agent's last turn."""
        leaves = {name: column[-1] for name, column in leaves_of(turns.observations).items()}
        return space_values(leaves, self._own_spaces[0][agent])


class ParallelEnv(_RowEnv, pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # it has no types where it is not installed
    """The only row of a sampler as a `pettingzoo.ParallelEnv`, whose environment runs on the server.

    `Sampler.parallel_env` returns one. A `reset` without a seed begins the next episode of the session if the present
    one has ended; any other one begins another session.

    >>> env = sampler.parallel_env(seed=7)  # doctest: +SKIP
    >>> observations, infos = env.reset()  # doctest: +SKIP
    """

    _in_turn = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode, and return the first observations and infos of its agents.

        Args:
            seed: root seed of this episode and the ones that follow it; by default, they go on.
            options: without effect, because the environment is the server's: see `EnvSpec.reset_options`.
        """
        self._restart(seed)
        self.agents = list(self._acting)
        observations = {agent: self._observation(agent, turns) for agent, turns in self._acting.items()}
        return observations, {agent: _info(turns) for agent, turns in self._acting.items()}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Act with all agents, and return observations, rewards, terminations, truncations and infos by agent.

        Raises:
            InvalidArgumentError: actions of other agents, or that are not in the action space. The row has not stepped.
        """
        self._act({agent: actions[agent] for agent in self.agents if agent in actions})
        turns = {**self._acting, **self._step.ends}
        self.agents = list(self._acting)
        return (
            {agent: self._observation(agent, its) for agent, its in turns.items()},
            {agent: float(its.rewards[-1]) for agent, its in turns.items()},
            {agent: bool(its.terminated[-1]) for agent, its in turns.items()},
            {agent: bool(its.truncated[-1]) for agent, its in turns.items()},
            {agent: _info(its) for agent, its in turns.items()},
        )


class AecEnv(_RowEnv, pettingzoo.AECEnv[str, Any, Any]):  # type: ignore[misc]  # it has no types where it is not installed
    """The only row of a sampler as a `pettingzoo.AECEnv`, whose environment runs on the server.

    `Sampler.aec_env` returns one. A `reset` begins an episode as that of `ParallelEnv` does. `last` is what it is in
    the plain environment. An agent's other values are those of its last turn: its rewards since its action come
    together at its next turn, and `observe` returns None before the first one.

    >>> env = sampler.aec_env(seed=7)  # doctest: +SKIP
    >>> env.reset()  # doctest: +SKIP
    >>> for agent in env.agent_iter():  # doctest: +SKIP
    ...     observation, reward, terminated, truncated, info = env.last()
    ...     env.step(None if terminated or truncated else policy(observation))
    """

    _in_turn = True

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode; arguments as of `ParallelEnv.reset`."""
        self._restart(seed)
        self.agents = list(self.possible_agents)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._observations: dict[str, Any] = {}
        self._take(self._acting)

    def observe(self, agent: str) -> Any:
        """Return the observation of an agent's last turn; None before its first one."""
        return self._observations.get(agent)

    def step(self, action: Any) -> None:
        """Act with the selected agent, or with None for one that has ended.

        Raises:
            InvalidArgumentError: an action that is not in the action space. The row has not stepped.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            self._select()
            return
        self._act({agent: action})
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        ends = self._step.ends
        for absent in [each for each in self.agents if self._is_new and each not in ends]:
            self.agents.remove(absent)
            for values in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
                del values[absent]
        self._take({**ends, **self._acting})

    def _take(self, turns: Mapping[str, AgentTurns]) -> None:
        """Take the turns of agents, and select the next agent."""
        for agent, its in turns.items():
            if agent not in self.agents:
                self.agents.append(agent)
                self._cumulative_rewards[agent] = 0.0
            self.rewards[agent] = float(its.rewards[-1])
            self._cumulative_rewards[agent] += self.rewards[agent]
            self.terminations[agent], self.truncations[agent] = bool(its.terminated[-1]), bool(its.truncated[-1])
            self.infos[agent] = _info(its)
            self._observations[agent] = self._observation(agent, its)
        self._select()

    def _select(self) -> None:
        """Select the next agent: those that have ended first, in their order."""
        ended = (agent for agent in self._step.ends if self.terminations.get(agent) or self.truncations.get(agent))
        self.agent_selection = next(itertools.chain(ended, self._acting), "")


def _info(turns: AgentTurns) -> dict[str, Any]:
    """Return the infos of an agent's last turn, in mappings as the environment has them."""
    nested: dict[str, Any] = {}
    for name, column in turns.infos.items():
        mask: np.ndarray | None = turns.infos.get(mask_name(name))
        if is_mask(name, turns.infos) or (mask is not None and not mask[-1]):
            continue
        *outer, last = name.split("/")
        place = nested
        for each in outer:
            place = place.setdefault(each, {})
        place[last] = column[-1]
    return nested
