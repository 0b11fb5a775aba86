"""The loop that runs episodes of environments with many agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.errors import EnvFailedError
from rollserve_server.sampling.collect.many_rows import ManyRows
from rollserve_server.sampling.collect.rowwise import RowwiseCollector
from rollserve_server.sampling.collect.running import RunningEpisode
from rollserve_server.sampling.collect.waiting import WaitingForAnyRow
from rollserve_server.sampling.record.lives import ManyEpisode

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.envs import ManyEnvs

__all__ = ["ManyCollector"]


class ManyCollector(RowwiseCollector[ManyEpisode, RunningEpisode]):
    """Runs each episode in a row of its own, up to its end or a number of environment steps.

    Any row may run any episode, which is a function of the root seed, its index, the policies and the environment.
    """

    def __init__(
        self,
        root_seed: int,
        envs: ManyEnvs,
        agents: PolicyAgents,
        max_episode_length: int | None = None,
        num_retries: int = 0,
    ) -> None:
        super().__init__(root_seed, num_retries)
        self._rows = ManyRows(root_seed, envs, agents, max_episode_length)
        self._running = self._rows.running
        self._waiting = WaitingForAnyRow(envs.num_rows)

    def step(self) -> list[ManyEpisode]:
        """Step all rows that have an episode, and return the episodes that ended."""
        stepped = self._rows.step()
        self.num_simulated_steps += stepped.num_steps
        for error in stepped.failures:
            self._abandon(error)
        for episode in stepped.episodes:
            self._end(episode.row)
        return stepped.episodes

    def release(self, episode: ManyEpisode) -> None:
        """Forget a finished episode, whose steps are its own."""

    def _begin_episode(self, row: int, index: int) -> bool:
        try:
            self._rows.begin(row, index)
        except EnvFailedError as error:
            self._retry(row, index, error)
            return False
        return True

    def _forget(self, row: int) -> int:
        return self._rows.forget(row)
