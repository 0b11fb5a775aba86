"""What a call did with everything that was simulated for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve.v1 import episode_batch_pb2

__all__ = ["Account", "EpisodeFailure", "WorkerAccount", "account_from_proto"]


@dataclass(frozen=True)
class WorkerAccount:
    """One worker's share in a call.

    Attributes:
        worker_index: the number of the worker.
        num_simulated_steps: steps that it simulated while the call ran.
        num_steps: steps delivered that it simulated.
        num_episodes: episodes delivered that it simulated.
        sampling_seconds: time spent stepping environments and evaluating the policy.
        encoding_seconds: time spent writing messages.
        num_missing_steps: of fragments, steps of its share that it did not make, because enough others were done.
    """

    worker_index: int
    num_simulated_steps: int
    num_steps: int
    num_episodes: int
    sampling_seconds: float
    encoding_seconds: float
    num_missing_steps: int = 0


@dataclass(frozen=True)
class EpisodeFailure:
    """An episode whose environment raised an error.

    Attributes:
        episode_index: its index; of rows that are stepped together, the lowest of those of the block that had not
            ended. In a population, k * M + j for episode j of member k, where each has M.
        worker_index: the worker that ran it last.
        num_attempts: how often it failed there.
        skipped: whether the call went on without it. Else it went well in the end, or it is beyond the call's last
            episode.
        text: where it was and what the environment said last, up to 256 characters.
    """

    episode_index: int
    worker_index: int
    num_attempts: int
    skipped: bool
    text: str


@dataclass(frozen=True)
class Account:
    """The last word of a call.

    Carried and simulated steps together are as many as those that were delivered, kept, superseded, cancelled, lost,
    idle or discarded.

    Attributes:
        num_steps: steps delivered.
        num_episodes: episodes delivered; of those delivered in fragments, the ones that ended.
        num_simulated_steps: steps simulated while the call ran, for it and beyond its end.
        num_carried_steps: steps simulated earlier that this account tells the end of: kept by calls before, of calls
            that ended without an account, or delivered before an interruption.
        num_kept_steps: steps of episodes beyond the last delivered one that are kept for the next call.
        num_superseded_steps: steps thrown away that calls before had kept, and no call can use any more.
        num_cancelled_steps: steps thrown away of calls that were cancelled or failed.
        num_lost_steps: steps thrown away because the worker that held them is gone, or their environment raised an
            error, and so simulated again unless their episode was given up, or because another worker was sooner with
            the same; of fragments, also steps that were simulated once more to bring rows to where they stood.
        num_idle_steps: steps thrown away of rows that are stepped together, and had to go on with the others: they had
            finished the episodes that a block has of them, or were in one that is not wanted.
        num_prefetched_steps: of the carried ones, those that were simulated between calls, with `prefetch`.
        num_discarded_steps: steps thrown away because the call asked for that, with `blackhole`.
        num_discarded_episodes: episodes that those steps ended.
        shared_message_bytes: how many bytes of messages came through shared memory, instead of being sent.
        num_retried_episodes: episodes that ran again, or a second time.
        retry_reasons: why, by constants of the server such as `environment_failed`, `worker_lost`,
            `worker_hung` and `straggler`, and how many.
        num_straggler_episodes: episodes that were begun a second time on another worker, because the first took far
            longer than others did.
        num_missing_steps: of fragments with `fraction_of_workers`, steps that were asked for and not made.
        num_failed_episodes: episodes that the call went on without, with `skip_failed_episodes`, because their
            environments raised errors in every attempt.
        episode_failures: the first 64 episodes whose environments raised errors; after an interruption, those since
            then.
        num_broken_off_episodes: of fragments, episodes that broke off because their rows could not be brought to where
            they stood.
        row_step_count: of fragments, how many steps each row made in the sequence before the call.
        num_resumptions: how often the stream was interrupted, and taken up again by another call.
        seed: the root seed of the sequence of episodes; the call can be repeated with it and
            `first_episode_index`, or of fragments `row_step_count`.
        first_episode_index: the index of the first episode delivered.
        policy_version: the version that acted.
        env_version: the version of the environment.
        dropped_infos: by name, how many values of infos could not be delivered.
        workers: what each worker did.
        queued_seconds: how long the call waited for its turn.
        waiting_seconds: how long it waited then for workers.
        sending_seconds: how long it waited for the client to take messages.
        elapsed_seconds: how long it took on the server from its turn on.
    """

    num_steps: int
    num_episodes: int
    num_simulated_steps: int
    num_carried_steps: int
    num_kept_steps: int
    num_superseded_steps: int
    num_cancelled_steps: int
    num_lost_steps: int
    num_idle_steps: int
    num_retried_episodes: int
    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    dropped_infos: Mapping[str, int]
    workers: tuple[WorkerAccount, ...]
    queued_seconds: float
    waiting_seconds: float
    sending_seconds: float
    elapsed_seconds: float
    num_broken_off_episodes: int = 0
    row_step_count: int = 0
    num_resumptions: int = 0
    num_prefetched_steps: int = 0
    num_discarded_steps: int = 0
    num_discarded_episodes: int = 0
    shared_message_bytes: int = 0
    num_failed_episodes: int = 0
    retry_reasons: Mapping[str, int] = field(default_factory=dict)
    episode_failures: tuple[EpisodeFailure, ...] = ()
    num_straggler_episodes: int = 0
    num_missing_steps: int = 0

    @property
    def num_dropped_steps(self) -> int:
        """Steps thrown away: superseded, cancelled, lost, idle or discarded."""
        by_others = self.num_superseded_steps + self.num_cancelled_steps + self.num_lost_steps
        return by_others + self.num_idle_steps + self.num_discarded_steps


def account_from_proto(message: episode_batch_pb2.Account) -> Account:
    """The account that the message holds."""
    workers = tuple(
        WorkerAccount(
            worker_index=worker.worker_index,
            num_simulated_steps=worker.simulated_step_count,
            num_steps=worker.step_count,
            num_episodes=worker.episode_count,
            sampling_seconds=worker.sampling.ToNanoseconds() / 1e9,
            encoding_seconds=worker.encoding.ToNanoseconds() / 1e9,
            num_missing_steps=worker.missing_step_count,
        )
        for worker in message.workers
    )
    return Account(
        num_steps=message.step_count,
        num_episodes=message.episode_count,
        num_simulated_steps=message.simulated_step_count,
        num_kept_steps=message.kept_step_count,
        num_carried_steps=message.carried_step_count,
        num_superseded_steps=message.superseded_step_count,
        num_cancelled_steps=message.cancelled_step_count,
        num_lost_steps=message.lost_step_count,
        num_idle_steps=message.idle_step_count,
        num_retried_episodes=message.retried_episode_count,
        seed=message.seed,
        first_episode_index=message.first_episode_index,
        policy_version=message.policy_version,
        env_version=message.environment_version,
        dropped_infos=dict(message.dropped_infos),
        workers=workers,
        queued_seconds=message.queued.ToNanoseconds() / 1e9,
        waiting_seconds=message.waiting.ToNanoseconds() / 1e9,
        sending_seconds=message.sending.ToNanoseconds() / 1e9,
        elapsed_seconds=message.elapsed.ToNanoseconds() / 1e9,
        num_broken_off_episodes=message.broken_off_episode_count,
        row_step_count=message.row_step_count,
        num_prefetched_steps=message.prefetched_step_count,
        num_discarded_steps=message.discarded_step_count,
        num_discarded_episodes=message.discarded_episode_count,
        shared_message_bytes=message.shared_message_bytes,
        num_failed_episodes=message.failed_episode_count,
        retry_reasons=dict(message.retry_reasons),
        num_straggler_episodes=message.straggler_episode_count,
        num_missing_steps=message.missing_step_count,
        episode_failures=tuple(map(_episode_failure_from_proto, message.episode_failures)),
    )


def _episode_failure_from_proto(message: episode_batch_pb2.EpisodeFailure) -> EpisodeFailure:
    return EpisodeFailure(
        message.episode_index, message.worker_index, message.attempt_count, message.skipped, message.text
    )
