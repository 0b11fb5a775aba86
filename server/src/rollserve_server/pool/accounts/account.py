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

_WORKER_SECONDS = ("sampling_seconds", "encoding_seconds", "environment_seconds", "policy_seconds")
_ROUND_SUMS = (
    "num_carried_steps",
    "num_kept_steps",
    "num_superseded_steps",
    "num_cancelled_steps",
    "num_lost_steps",
    "num_idle_steps",
    "num_prefetched_steps",
    "num_discarded_steps",
    "num_discarded_episodes",
    "num_retried_episodes",
    "num_straggler_episodes",
    "num_broken_off_episodes",
    "num_reassigned_episodes",
    "queued_seconds",
    "waiting_seconds",
    "sending_seconds",
    "paused_seconds",
    "num_pauses",
)
"""What the account of a stream has of each round, whatever became of its steps."""


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

    def add(self, other: WorkerAccount, *, is_delivered: bool) -> None:
        """Add the share in another call, whose steps and episodes were delivered or not."""
        for name in ("num_simulated_steps", "num_missing_steps", *_WORKER_SECONDS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if is_delivered:
            self.num_steps += other.num_steps
            self.num_episodes += other.num_episodes


@dataclass
class Account:
    """Counts of all steps of a call, by what became of them.

    See `Account` in `protos/rollserve/v1/episode_batch.proto` for the fields.

    Carried and simulated steps together are as many as delivered, kept, superseded, cancelled, lost, idle, discarded,
    stale, overflow and unsent steps together.
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
    num_non_finite_steps: int = 0
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
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_unsent_steps: int = 0
    lag_step_counts: list[int] = field(default_factory=list)
    worker_idle_seconds: float = 0.0
    update_waiting_seconds: float = 0.0
    client_waiting_seconds: float = 0.0
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

    def add_round(self, other: Account, fate: str | None) -> None:
        """Add the account of a round to that of its stream.

        Args:
            other: account of the round.
            fate: attribute that counts the steps that the round's call delivered, if they were discarded.
        """
        self.seed, self.policy_version, self.env_version = other.seed, other.policy_version, other.env_version
        for name in _ROUND_SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for counts, others in ((self.retry_reasons, other.retry_reasons), (self.dropped_infos, other.dropped_infos)):
            counts.update(others)
        self.env_failures.add_prefetched(other.env_failures)
        self.env_failures.num_skipped += other.env_failures.num_skipped
        self.workers += [WorkerAccount() for _ in range(len(other.workers) - len(self.workers))]
        for share, added in zip(self.workers, other.workers, strict=False):
            share.add(added, is_delivered=fate is None)
        if fate is None:
            self.message_bytes += other.message_bytes
            self.raw_bytes += other.raw_bytes
            self.num_non_finite_steps += other.num_non_finite_steps
        else:
            setattr(self, fate, getattr(self, fate) + other.num_steps)

    def add_prefetched(self, prefetched: Account) -> None:
        """Add what became of steps simulated between calls; steps that workers still hold are not part of it."""
        self.num_prefetched_steps += prefetched.num_simulated_steps
        self.num_carried_steps += prefetched.num_lost_steps + prefetched.num_idle_steps
        self.num_lost_steps += prefetched.num_lost_steps
        self.num_idle_steps += prefetched.num_idle_steps
        self.num_retried_episodes += prefetched.num_retried_episodes
        self.retry_reasons.update(prefetched.retry_reasons)
        self.env_failures.add_prefetched(prefetched.env_failures)
