"""The work in progress, by the pool's number for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.envs import ManyEnvs
from rollserve_server.sampling.work.episodes import EpisodeWork
from rollserve_server.sampling.work.fragments import FragmentWork
from rollserve_server.sampling.work.populations import PopulationWork

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent, PolicyAgents, PopulationAgent
    from rollserve_server.envs import RowEnvs, VectorEnvs
    from rollserve_server.sampling.collect.evaluator import Evaluator
    from rollserve_server.sampling.protocol.episodes import SequenceSpec
    from rollserve_server.sampling.protocol.fragments import FragmentAssignment, FragmentOrder
    from rollserve_server.sampling.protocol.populations import Members, Population
    from rollserve_server.sampling.worker.agents import InstalledAgents
    from rollserve_server.sampling.worker.environments import InstalledEnvs
    from rollserve_server.settings import WorkerSettings

__all__ = ["Works"]

_Work = TypeVar("_Work", EpisodeWork, FragmentWork, PopulationWork)


class Works:
    """Opens, finds, stops and closes works. Each has rows for itself, and shares its agent."""

    def __init__(
        self,
        worker_index: int,
        settings: WorkerSettings,
        envs: InstalledEnvs,
        agents: InstalledAgents,
        new_buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        self._worker_index = worker_index
        self._settings = settings
        self._envs = envs
        self._agents = agents
        self._new_buffer = new_buffer
        self._works: dict[int, EpisodeWork | FragmentWork | PopulationWork] = {}
        # Numbers of works and of fragment calls. `stop` adds to it from other threads.
        self._stopped: set[int] = set()

    def for_episodes(self, sequence: SequenceSpec) -> EpisodeWork:
        """Return the work on a sequence, opened if it is new.

        Raises:
            DomainError: environments or the agent cannot be made.
        """
        if sequence.work_id not in self._works:
            envs = self._envs[sequence.env_version].take(sequence.max_episode_length)
            with self._giving_back_on_error(sequence.env_version, envs):
                self._works[sequence.work_id] = self._episode_work(sequence, envs)
        return self.find(EpisodeWork, sequence.work_id)

    def _episode_work(self, sequence: SequenceSpec, envs: RowEnvs | VectorEnvs | ManyEnvs) -> EpisodeWork:
        settings = self._settings, self._new_buffer
        if isinstance(envs, ManyEnvs):
            agents = self._agents.built_policies(sequence.policy_version, sequence.exploration, envs)
            return EpisodeWork(sequence, envs, agents, None, *settings)
        versions = sequence.policy_version, sequence.env_version
        agent = self._agents.built(*versions, sequence.exploration, envs)
        build_evaluator = functools.partial(self._agents.evaluator, *versions, sequence.exploration, envs)
        return EpisodeWork(sequence, envs, agent, build_evaluator, *settings)

    def for_fragments(self, order: FragmentOrder) -> FragmentWork:
        """Return the work on a row sequence, opened with the order's states if it is new.

        Raises:
            DomainError: environments cannot be made.
        """
        sequence = order.sequence
        if sequence.work_id not in self._works:
            assert order.states is not None  # noqa: S101  # the pool knows which works are open
            limit = None if sequence.soft_horizon else sequence.max_episode_length
            envs = self._envs[sequence.env_version].take_for_fragments(limit)
            work = FragmentWork(sequence, envs, order.states, self._worker_index, self._settings, self._new_buffer)
            self._works[sequence.work_id] = work
        return self.find(FragmentWork, sequence.work_id)

    def agent_builder(
        self, work: FragmentWork, assignment: FragmentAssignment
    ) -> Callable[[], Agent] | Callable[[], PolicyAgents]:
        """Return a function that builds the agent of an assignment, or its policies."""
        version, exploration = assignment.policy_version, assignment.exploration
        if isinstance(work.envs, ManyEnvs):
            return functools.partial(self._agents.built_policies, version, exploration, work.envs)
        return functools.partial(self._agents.built, version, work.spec.env_version, exploration, work.envs)

    def evaluator_builder(self, work: FragmentWork, assignment: FragmentAssignment) -> Callable[[], Evaluator] | None:
        """Return a function that builds the evaluator of an assignment; None where there are many agents."""
        if isinstance(work.envs, ManyEnvs):
            return None
        versions = assignment.policy_version, work.spec.env_version
        return functools.partial(self._agents.evaluator, *versions, assignment.exploration, work.envs)

    def open_population(self, population: Population, members: Members) -> None:
        """Open the work on a population, given the parameters of its members, which have been checked.

        Raises:
            DomainError: environments or the agent cannot be made.
        """
        envs = self._envs[population.env_version].take_single_rows()
        with self._giving_back_on_error(population.env_version, envs):
            agent: PopulationAgent | PolicyAgents
            if isinstance(envs, ManyEnvs):
                version, exploration = population.policy_version, population.exploration
                agent = self._agents.built_policies(version, exploration, envs, members)
            else:
                agent = self._agents.built_population(population, members[""], envs)
            self._works[population.work_id] = PopulationWork(population, envs, agent, self._settings.env_retries)

    def stop(self, number: int) -> None:
        """Stop a work, or a fragment call. May be called from any thread."""
        self._stopped.add(number)

    def stop_all(self) -> None:
        """Stop all works. May be called from any thread."""
        self._stopped.update(list(self._works))

    def is_stopped(self, *numbers: int) -> bool:
        """Return whether any of these works or calls is stopped."""
        return not self._stopped.isdisjoint(numbers)

    def forget_stopped_calls(self, call_id: int) -> None:
        """Forget stopped calls before this one: a call may be stopped after it has ended."""
        for number in tuple(self._stopped):
            if number < call_id and number not in self._works:
                self._stopped.discard(number)

    def close(self, work_id: int) -> None:
        """Close a work, if it is open: other works can use its rows."""
        self._stopped.discard(work_id)
        work = self._works.pop(work_id, None)
        if work is not None:
            self._envs.give_back(work.spec.env_version, work.envs)

    def close_all(self) -> None:
        """Close all works."""
        for work_id in list(self._works):
            self.close(work_id)

    def close_envs(self) -> None:
        """Close the environments of all works."""
        for work in self._works.values():
            work.envs.close()

    def find(self, kind: type[_Work], work_id: int) -> _Work:
        """Return the work of a number, which has been opened and is of this kind."""
        work = self._works[work_id]
        assert isinstance(work, kind)  # noqa: S101  # no two works have the same number
        return work

    @contextlib.contextmanager
    def _giving_back_on_error(self, env_version: int, envs: RowEnvs | VectorEnvs | ManyEnvs) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._envs.give_back(env_version, envs)
            raise
