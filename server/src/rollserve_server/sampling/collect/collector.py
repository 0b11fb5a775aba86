"""The base of the loops that run whole episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from rollserve_server.sampling.collect.attempts import Attempts
from rollserve_server.sampling.collect.inputs import mask_input
from rollserve_server.sampling.collect.recurrent_states import RecurrentStates
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_server.sampling.record.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs, VectorEnvs
    from rollserve_server.sampling.protocol.episodes import EpisodeRange
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.step_columns import StepColumns

__all__ = ["Collector", "EpisodeCollector", "column_keys", "write_untransformed"]

_Episode = TypeVar("_Episode")


class EpisodeCollector(ABC, Generic[_Episode]):
    """Runs episodes of one sequence in rows of environments, and records their steps.

    Attributes:
        attempts: failed attempts at episodes or blocks.
        num_simulated_steps: number of steps that rows have made.
        num_idle_steps: number of those steps that rows made only because they are stepped together with others.
    """

    def __init__(self, root_seed: int, num_retries: int) -> None:
        """Start without episodes.

        Args:
            root_seed: root seed of the sequence.
            num_retries: how often an episode may run again whose environment failed.
        """
        self.attempts = Attempts(num_retries)
        self.num_simulated_steps = self.num_idle_steps = 0
        self._root_seed = root_seed

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Number of episodes, or of blocks, that wait for rows."""

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Number of requested episodes that have rows and have not ended."""

    @abstractmethod
    def episode_index(self, row: int) -> int | None:
        """Return the index of the episode that a row runs or begins, or of its block; None if it has none."""

    @abstractmethod
    def enqueue(self, ranges: Iterable[EpisodeRange]) -> None:
        """Add episodes, which begin when rows are free, the lowest index first."""

    @abstractmethod
    def begin(self, before: int | None = None) -> bool:
        """Begin waiting episodes in free rows, up to one whose environment fails.

        Args:
            before: upper bound: only for the sake of episodes with lower indices; None for no bound.

        Returns:
            Whether there are rows to step.
        """

    @abstractmethod
    def step(self) -> list[_Episode]:
        """Step the rows that have episodes, and return the requested episodes that ended.

        Raises:
            AgentFailedError: the agent failed.
        """

    @abstractmethod
    def cancel(self, index: int) -> int:
        """Forget an episode that waits or runs, and return the number of its recorded steps."""

    @abstractmethod
    def release(self, episode: _Episode) -> None:
        """Forget a finished episode."""


class Collector(EpisodeCollector["Episode"]):
    """Runs episodes with one agent in each row.

    Attributes:
        infos: reader of the environments' infos.
        recorder: recorder of the steps.
    """

    def __init__(self, root_seed: int, envs: RowEnvs | VectorEnvs, agent: Agent, num_retries: int) -> None:
        """Start without episodes.

        Args:
            root_seed: root seed of the sequence.
            envs: environments that nothing else uses.
            agent: agent that acts.
            num_retries: how often an episode may run again whose environment failed.
        """
        super().__init__(root_seed, num_retries)
        self._agent = agent
        self._recurrent_states = RecurrentStates(envs.num_rows, agent)
        self._mask = mask_input(agent, envs.num_rows)
        self.infos = InfoReader(envs.text_info_bytes)
        self.recorder = Recorder(envs.num_rows, column_keys(envs, agent, self.infos), self.infos)

    def release(self, episode: Episode) -> None:
        """Forget a finished episode: its steps may be overwritten."""
        self.recorder.release(episode)


def column_keys(envs: RowEnvs | VectorEnvs, agent: Agent, reader: InfoReader) -> Iterator[ColumnKey]:
    """Yield the keys of the columns that every step has; one reader gives equal columns of two agents one key."""
    for leaf in envs.observation_leaves:
        yield "observations", reader.key(leaf.name, leaf.dtype, leaf.shape)
    for leaf in envs.action_leaves:
        yield "actions", reader.key(leaf.name, leaf.dtype, leaf.shape)
    for leaf in envs.environment_action_leaves:
        yield "environment_actions", reader.key(leaf.name, leaf.dtype, leaf.shape)
    yield "rewards", reader.key("", np.dtype(np.float64), ())
    if envs.raw_rewards is not envs.rewards:
        yield "raw_rewards", reader.key("", np.dtype(np.float64), ())
    for info in agent.infos:
        yield "agent_infos", reader.key(info.name, info.dtype, info.shape)
    for name, initial in agent.states:
        yield "states", reader.key(name, initial.dtype, initial.shape)


def write_untransformed(columns: Recorder | StepColumns, envs: RowEnvs | VectorEnvs) -> None:
    """Write what environments got and returned in the current step, where transforms change it."""
    if envs.environment_actions:
        columns.write("environment_actions", envs.environment_actions)
    if envs.raw_rewards is not envs.rewards:
        columns.write("raw_rewards", (envs.raw_rewards,))
