"""Installed versions of the agent, and the agents that are built from them for rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rollserve_server.activity import Phase, current_activity
from rollserve_server.agents import (
    MEMBER_VERSION,
    PolicyAgents,
    PolicySet,
    build_agent,
    build_population,
    load_agent,
    load_policies,
)
from rollserve_server.envs import VectorEnvs
from rollserve_server.sampling.collect.evaluator import Evaluator
from rollserve_server.sampling.protocol.populations import NO_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from rollserve_server.agents import Agent, AgentSpec, Exploration, HeldPolicy, PolicySpec, PopulationAgent
    from rollserve_server.envs import ManyEnvs, RowEnvs
    from rollserve_server.sampling.protocol.populations import Members, Population

__all__ = ["InstalledAgents"]

_MAX_BUILT_AGENTS = 4
"""Number of agents that are kept built: each has a copy of the parameters."""


class InstalledAgents:
    """Installed versions of the agent."""

    def __init__(self) -> None:
        self._specs: dict[int, AgentSpec] = {}
        # By version, environment's version, exploration, number of rows, and whether the rows are stepped together.
        self._built: dict[tuple[int, int, Exploration, int, bool], Agent] = {}

    @property
    def versions(self) -> set[int]:
        """Installed versions."""
        return set(self._specs)

    def install(self, version: int, spec: AgentSpec) -> None:
        """Install a version, which has been checked to fit its environment.

        Raises:
            NotFoundError, InvalidValueError: as `load_agent`.
        """
        current_activity().begin(Phase.LOADING)
        self._specs[version] = load_policies(spec) if isinstance(spec, PolicySet) else load_agent(spec)
        self.forget_built()

    def retain(self, versions: Collection[int]) -> None:
        """Evict all other versions."""
        for version in self._specs.keys() - set(versions):
            del self._specs[version]
        self.forget_built()

    def forget_built(self) -> None:
        """Forget built agents; works that use them keep them."""
        self._built.clear()

    def built(self, version: int, env_version: int, exploration: Exploration, envs: RowEnvs | VectorEnvs) -> Agent:
        """Return an agent for the rows. Works may share it: it reads and writes its memory within one step only."""
        return self._built_for(version, env_version, exploration, envs, is_joint=isinstance(envs, VectorEnvs))

    def built_policies(
        self, version: int, exploration: Exploration, envs: ManyEnvs, members: Members = NO_MEMBERS
    ) -> PolicyAgents:
        """Return policies for rows with many agents, some of them as members of a population. Each work has its own."""
        spec = self._specs[version]
        assert isinstance(spec, PolicySet)  # noqa: S101  # the pool has checked that it fits

        def build(name: str, policy: HeldPolicy[PolicySpec], agent: int, num_places: int) -> Agent:
            spaces = envs.observation_spaces[agent], envs.action_spaces[agent]
            built = build_agent(policy.spec, *spaces, num_places, exploration=exploration)
            if policy.version != MEMBER_VERSION:
                return built
            return build_population(policy.spec, members[name], built, *spaces, num_places, exploration)

        current_activity().begin(Phase.LOADING)
        return PolicyAgents(spec, envs.agents, envs.max_acting, envs.num_rows, build)

    def evaluator(
        self, version: int, env_version: int, exploration: Exploration, envs: RowEnvs | VectorEnvs
    ) -> Evaluator:
        """Return an evaluator of observations, whose bits do not depend on how many it evaluates at once."""
        agent = self._built_for(version, env_version, exploration, envs, is_joint=False)
        return Evaluator(agent, envs.num_rows)

    def built_population(
        self, population: Population, parameters: Mapping[str, np.ndarray], envs: RowEnvs
    ) -> PopulationAgent:
        """Return an agent that acts as the members of a population; their parameters (K, *shape) have been checked."""
        current_activity().begin(Phase.LOADING)
        return build_population(
            self._single(population.policy_version),
            parameters,
            self.built(population.policy_version, population.env_version, population.exploration, envs),
            envs.observation_space,
            envs.action_space,
            envs.num_rows,
            population.exploration,
        )

    def _built_for(
        self,
        version: int,
        env_version: int,
        exploration: Exploration,
        envs: RowEnvs | VectorEnvs,
        *,
        is_joint: bool,
    ) -> Agent:
        key = version, env_version, exploration, envs.num_rows, is_joint
        if key not in self._built:
            while len(self._built) >= _MAX_BUILT_AGENTS:
                del self._built[next(iter(self._built))]
            current_activity().begin(Phase.LOADING)
            self._built[key] = build_agent(
                self._single(version),
                envs.observation_space,
                envs.action_space,
                envs.num_rows,
                together=is_joint,
                exploration=exploration,
            )
        return self._built[key]

    def _single(self, version: int) -> PolicySpec:
        spec = self._specs[version]
        assert not isinstance(spec, PolicySet)  # noqa: S101  # the pool has checked that it fits
        return spec
