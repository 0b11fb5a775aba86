"""The parts of a pool that calls work with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts.counters import Counters
from rollserve_server.pool.calls.step_rate import StepRate

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.episode_log import EpisodeLog
    from rollserve_server.pool.interface.requests import SamplingOptions
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.sequences.row_sequences import RowSequences
    from rollserve_server.pool.sequences.sequences import Sequences
    from rollserve_server.pool.versions.env_updates import EnvUpdates
    from rollserve_server.pool.versions.eviction import Eviction
    from rollserve_server.pool.versions.selection import Selection
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.pool.workers.workers import Workers
    from rollserve_server.settings import PoolSettings

__all__ = ["PoolParts"]


@dataclass
class PoolParts:
    """The parts of a pool that calls work with.

    Attributes:
        settings: what the pool was made with.
        run: name of the sampler's run.
        seed: root seed that all seeds of calls without a seed derive from.
        ids: names for workers' work; none comes twice in the life of a sampler.
        workers: the workers.
        versions: versions that all workers hold.
        selection: chooses versions for calls.
        env_updates: makes environments, also for evaluations.
        eviction: has workers forget versions.
        sequences: sequences of whole episodes.
        row_sequences: sequences of rows, for fragments.
        journal: keeps what outlives the server.
        episode_log: the ended episodes.
        counters: totals of calls.
        num_calls: number of calls that run now, evaluations included.
        step_rate: limit of the steps per second of all calls.
    """

    settings: PoolSettings
    run: str
    seed: int
    ids: Iterator[int]
    workers: Workers
    versions: Versions
    selection: Selection
    env_updates: EnvUpdates
    eviction: Eviction
    sequences: Sequences
    row_sequences: RowSequences
    journal: Journal
    episode_log: EpisodeLog
    counters: Counters = field(default_factory=Counters)
    num_calls: int = 0
    step_rate: StepRate = field(init=False)

    def __post_init__(self) -> None:
        self.step_rate = StepRate(self.settings.quota.steps_per_second)

    @contextlib.contextmanager
    def counting_calls(self) -> Iterator[None]:
        """Count a call for the duration of the block."""
        self.num_calls += 1
        try:
            yield
        finally:
            self.num_calls -= 1

    def max_episode_length(self, options: SamplingOptions) -> int | None:
        """Return the number of steps after which a call's episodes are truncated; None for no limit."""
        return options.max_episode_length or self.settings.worker.max_episode_length
