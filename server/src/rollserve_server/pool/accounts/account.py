"""The account of a call: what became of every step that was simulated for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts.env_failures import EnvFailures

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.moments import DeliveredMoments
    from rollserve_server.sampling import EpisodeFailure, Population, SequenceSpec

__all__ = ["ENVIRONMENT_FAILED", "Account", "WorkerAccount"]

ENVIRONMENT_FAILED = "environment_failed"
"""Retry reason, beside the reasons of errors about workers."""


@dataclass
class WorkerAccount:
    """A worker's share of a call: its steps and episodes, and its time.

    The seconds of sampling are spent on environments, on the policy, and on recording what both return.
    """

    num_simulated_steps: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    sampling_seconds: float = 0.0
    encoding_seconds: float = 0.0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
    num_missing_steps: int = 0


@dataclass
class Account:
    """Counts of all steps of a call, by what became of them.

    See `Account` in `protos/rollserve/v1/episode_batch.proto` for the fields.

    Carried and simulated steps together are as many as delivered, kept, superseded, cancelled, lost, idle and discarded
    steps together.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    workers: list[WorkerAccount]
    num_carried_steps: int = 0
    num_kept_steps: int = 0
    num_superseded_steps: int = 0
    num_cancelled_steps: int = 0
    num_lost_steps: int = 0
    num_idle_steps: int = 0
    num_prefetched_steps: int = 0
    num_discarded_steps: int = 0
    num_discarded_episodes: int = 0
    num_retried_episodes: int = 0
    num_straggler_episodes: int = 0
    num_broken_off_episodes: int = 0
    num_reassigned_episodes: int = 0
    row_step_count: int = 0
    message_bytes: int = 0
    raw_bytes: int = 0
    dropped_infos: Counter[str] = field(default_factory=Counter)
    queued_seconds: float = 0.0
    waiting_seconds: float = 0.0
    sending_seconds: float = 0.0
    paused_seconds: float = 0.0
    num_pauses: int = 0
    elapsed_seconds: float = 0.0
    retry_reasons: Counter[str] = field(default_factory=Counter)
    env_failures: EnvFailures = field(default_factory=EnvFailures)
    moments: DeliveredMoments | None = None

    @classmethod
    def begin(cls, work: SequenceSpec | Population, first_episode_index: int, num_workers: int) -> Account:
        """Return the account of a call that has done nothing of its work yet."""
        workers = [WorkerAccount() for _ in range(num_workers)]
        return cls(work.root_seed, first_episode_index, work.policy_version, work.env_version, workers)

    @property
    def num_simulated_steps(self) -> int:
        """Number of steps simulated while the call ran."""
        return sum(worker.num_simulated_steps for worker in self.workers)

    @property
    def num_steps(self) -> int:
        """Number of steps delivered."""
        return sum(worker.num_steps for worker in self.workers)

    @property
    def num_missing_steps(self) -> int:
        """Number of steps that a fragment call requested and did not make."""
        return sum(worker.num_missing_steps for worker in self.workers)

    @property
    def num_episodes(self) -> int:
        """Number of episodes delivered."""
        return sum(worker.num_episodes for worker in self.workers)

    def count_retried(self, reason: str, num_episodes: int) -> None:
        """Count episodes that run again, and why."""
        self.num_retried_episodes += num_episodes
        if num_episodes:
            self.retry_reasons[reason] += num_episodes

    def count_env_failure(self, worker: int, failure: EpisodeFailure) -> None:
        """Count an error that a worker's environment raised."""
        self.env_failures.add(worker, failure)
        if not failure.is_final:
            self.count_retried(ENVIRONMENT_FAILED, len(failure.indices))

    def add_prefetched(self, prefetched: Account) -> None:
        """Add what became of steps simulated between calls; steps that workers still hold are not part of it."""
        self.num_prefetched_steps += prefetched.num_simulated_steps
        self.num_carried_steps += prefetched.num_lost_steps + prefetched.num_idle_steps
        self.num_lost_steps += prefetched.num_lost_steps
        self.num_idle_steps += prefetched.num_idle_steps
        self.num_retried_episodes += prefetched.num_retried_episodes
        self.retry_reasons.update(prefetched.retry_reasons)
        self.env_failures.add_prefetched(prefetched.env_failures)
