"""The base of the loops that run whole episodes, and failed attempts at episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve_server.errors import EpisodeFailedError, shorten
from rollserve_server.sampling.protocol import EpisodeFailure
from rollserve_server.sampling.record.episodes import Recorder
from rollserve_server.sampling.record.infos import InfoReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollserve_server.agents import Agent
    from rollserve_server.sampling.collect.stepping import JointRows, SingleRows
    from rollserve_server.sampling.protocol import EpisodeRange
    from rollserve_server.sampling.record.episodes import Episode

__all__ = ["Attempts", "Collector", "EpisodeCollector", "with_episode"]

_Episode = TypeVar("_Episode")

_Failed = TypeVar("_Failed", bound=EpisodeFailedError)

_MAX_FINAL_CHARACTERS = 1000
"""Length to which the text of a final error is shortened: environments may raise errors with texts of any length."""

_MAX_PASSING_CHARACTERS = 256
"""Length to which the text of an error is shortened whose episode runs again."""


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

    def __init__(self, root_seed: int, rows: SingleRows | JointRows, agent: Agent, num_retries: int) -> None:
        """Start without episodes.

        Args:
            root_seed: root seed of the sequence.
            rows: rows whose environments nothing else uses.
            agent: agent that acts.
            num_retries: how often an episode may run again whose environment failed.
        """
        super().__init__(root_seed, num_retries)
        envs = rows.envs
        self.infos = InfoReader(envs.text_info_bytes)
        self.recorder = rows.columns = Recorder(envs.num_rows, rows.column_keys(agent, self.infos), self.infos)
        rows.set_agent(agent)

    def release(self, episode: Episode) -> None:
        """Forget a finished episode: its steps may be overwritten."""
        self.recorder.release(episode)


class Attempts:
    """Failed attempts at work units, which run again until they have failed too often.

    Attributes:
        num_failures: number of attempts that have failed.
    """

    def __init__(self, num_retries: int) -> None:
        """Start without failures; a unit may run again `num_retries` times."""
        self.num_failures = 0
        self._num_retries = num_retries
        self._num_failed: Counter[int] = Counter()
        self._failures: list[EpisodeFailure] = []
        self._num_lost_steps = 0

    def fail(self, key: int, indices: Iterable[int], error: EpisodeFailedError, num_lost_steps: int = 0) -> bool:
        """Record a failed attempt; return whether another attempt is allowed.

        Args:
            key: number of the unit.
            indices: indices of the unit's episodes that have not ended.
            error: the error, with the episode in its text.
            num_lost_steps: number of the episodes' steps that are thrown away.
        """
        self.num_failures += 1
        self._num_failed[key] += 1
        num_attempts = self._num_failed[key]
        is_final = num_attempts > self._num_retries
        if is_final:
            del self._num_failed[key]
        max_characters = _MAX_FINAL_CHARACTERS if is_final else _MAX_PASSING_CHARACTERS
        text = shorten(error.message, max_characters)
        self._failures.append(EpisodeFailure(tuple(indices), num_attempts, is_final, text))
        self._num_lost_steps += num_lost_steps
        return not is_final

    def succeed(self, key: int) -> None:
        """Forget the failed attempts at a unit, which has succeeded."""
        self._num_failed.pop(key, None)

    def take(self) -> tuple[tuple[EpisodeFailure, ...], int]:
        """Return the failures, and the number of steps thrown away for them, since the last call."""
        taken = tuple(self._failures), self._num_lost_steps
        self._failures, self._num_lost_steps = [], 0
        return taken


def with_episode(error: _Failed, index: int, env_seed: int, num_steps: int) -> _Failed:
    """Return the error with the episode that it was raised in, after `num_steps` steps."""
    where = f"episode {index} (environment seed {env_seed}), after {num_steps} steps"
    return type(error)(f"{where}: {error.message}", error.row, index)
