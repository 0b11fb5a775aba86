"""Accounts: what became of everything that was simulated for a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollserve_wire.errors import mismatch
from rollserve_wire.moments import moments_of, policy_moments_of
from rollserve_wire.records import record_from_message
from rollserve_wire.representations import briefly, value_html

if TYPE_CHECKING:
    from rollserve_wire.moments import PolicyMoments, RunningMoments
    from rollserve_wire.v1 import episode_batch_pb2

__all__ = ["Account", "EpisodeFailure", "WorkerAccount", "account_from_proto", "account_of_call"]


@briefly
@dataclass(frozen=True)
class WorkerAccount:
    """Account of one worker's share in a call.

    Attributes:
        worker_index: index of the worker.
        num_simulated_steps: steps that the worker simulated while the call ran.
        num_steps: delivered steps that the worker simulated.
        num_episodes: delivered episodes that the worker simulated.
        sampling_seconds: time spent stepping environments and evaluating the policy.
        encoding_seconds: time spent writing messages.
        num_missing_steps: for fragments, steps of the worker's share that it did not simulate because enough other
            workers were done.
    """

    worker_index: int
    num_simulated_steps: int
    num_steps: int
    num_episodes: int
    sampling_seconds: float
    encoding_seconds: float
    num_missing_steps: int = 0


@briefly
@dataclass(frozen=True)
class EpisodeFailure:
    """An episode whose environment raised an error.

    Attributes:
        episode_index: index of the episode. Where rows are stepped together, the lowest index among the block's
            episodes that had not ended. In a population, k * M + j for episode j of member k, with M episodes each.
        worker_index: index of the worker that ran the episode last.
        num_attempts: number of failed attempts on that worker.
        skipped: whether the call went on without the episode. Otherwise a later attempt succeeded, or the episode is
            beyond the last one that the call delivered.
        text: position of the failure and the environment's last error, in up to 256 characters.
    """

    episode_index: int
    worker_index: int
    num_attempts: int
    skipped: bool
    text: str


@briefly
@dataclass(frozen=True)
class Account:
    """Account of everything that was simulated for a call.

    The numbers add up: carried and simulated steps together equal the delivered, kept, superseded, cancelled, lost,
    idle, discarded, stale, overflow and unsent steps.

    Attributes:
        num_steps: delivered steps.
        num_episodes: delivered episodes; for fragments, the episodes that ended in this call.
        num_simulated_steps: steps simulated while the call ran, for this call and beyond its end.
        num_carried_steps: steps simulated earlier whose fate this account reports: kept by earlier calls, from calls
            that ended without an account or made after their account, or delivered before an interruption.
        num_kept_steps: steps of episodes beyond the last delivered one, kept for the next call.
        num_superseded_steps: discarded steps that earlier calls had kept and that no call can use any more.
        num_cancelled_steps: discarded steps of calls that were cancelled or failed.
        num_lost_steps: discarded steps whose worker is gone, whose environment raised an error, or which another
            worker finished first. Such episodes are simulated again, unless they are skipped. For fragments, also steps
            that were simulated again to bring rows back to their position.
        num_idle_steps: discarded steps of rows that are stepped together and had to continue with the others: rows that
            had finished their episodes of the block, or ran an episode that the call did not need.
        num_prefetched_steps: carried steps that were simulated between calls, because of `prefetch`.
        num_discarded_steps: steps discarded because of `blackhole`, or by an evaluation that returns no episodes.
        num_discarded_episodes: episodes that ended in these steps.
        shared_message_bytes: bytes of messages received through shared memory instead of the connection.
        num_retried_episodes: number of retries of episodes after something had failed.
        retry_reasons: number of retries by reason, a constant of the server such as `environment_failed`,
            `worker_lost`, `worker_hung` or `worker_out_of_memory`.
        num_straggler_episodes: episodes that were started a second time on another worker, because the first run took
            far longer than others. Nothing has failed, so they are no retries.
        num_missing_steps: for fragments with `fraction_of_workers`, requested steps that were not simulated.
        num_reassigned_episodes: for exact episodes, delivered episodes that another worker simulated than the one in
            `worker_indices`, because that one was missing; after an interruption, those since then.
        num_non_finite_steps: delivered steps with a NaN or an infinity in their reward, their observation, or the
            observation after the last step of an episode or fragment; with many agents, the agents' steps. After an
            interruption, those since then.
        num_rounds: for streams, rounds that the server has sent.
        num_stale_steps: for streams, steps of rounds that were discarded because they were older than `max_policy_lag`
            when they were to be sent, or to be handed out.
        num_overflow_steps: for streams, steps of rounds that were discarded to make room.
        num_unsent_steps: for streams, steps of rounds that were sampled and not handed out when the stream ended.
        lag_step_counts: for streams, steps by the lag of their rounds when they were sent: the number at position i had
            a lag of i updates of the agent; at position 15, of 15 or more.
        worker_idle_seconds: for streams, time that workers had nothing to do in a round or between two, summed over the
            workers; without the time that the stream waited for its client.
        update_waiting_seconds: for streams, time that no round was sampled, because of `max_steps_per_version`.
        client_waiting_seconds: for streams, time that sampling waited, because enough was sampled and not sent.
        num_failed_episodes: episodes that the call skipped, with `skip_failed_episodes`, because their environments
            raised errors in every attempt.
        episode_failures: the first 64 episodes whose environments raised errors; after an interruption, those since
            then.
        num_broken_off_episodes: for fragments, episodes that broke off because their rows could not be brought back to
            their position.
        row_step_count: for fragments, number of steps that each row had made in the sequence before the call.
        num_resumptions: number of interruptions of the stream, each followed by another call that continued it.
        seed: root seed of the sequence of episodes. With `first_episode_index`, or for fragments with `row_step_count`,
            it repeats the call.
        first_episode_index: index of the first delivered episode; 0 for fragments, whose episodes are in
            `EpisodeBatch.episode_indices`.
        policy_version: version that acted.
        env_version: version of the environment.
        dropped_infos: number of values that the batch lacks because they are no numbers or not of one shape, by the
            name of the info; for a stream, what its messages lack; after an interruption, since then.
        workers: share of each worker.
        queued_seconds: time in the queue until admission.
        waiting_seconds: time spent waiting for workers, after admission.
        sending_seconds: time spent waiting for the client to read messages.
        elapsed_seconds: time on the server since admission.
        observation_moments: moments of the delivered observations, as recorded, of the leaves that are Box or
            MultiBinary; None without the option `observation_moments`.
        return_moments: moments of the discounted returns after each delivered step; None without the option
            `return_discount`. Of a stream that was interrupted, both are None: compute them from its batches, by
            `RunningMoments` and `RunningReturns`.
        policy_moments: in an environment with many agents, moments of each delivered policy by name, which the two
            attributes above do not have. Of a stream that was interrupted, empty.
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
    num_reassigned_episodes: int = 0
    observation_moments: RunningMoments | Any = None
    return_moments: RunningMoments | Any = None
    policy_moments: Mapping[str, PolicyMoments] = field(default_factory=dict)
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_unsent_steps: int = 0
    lag_step_counts: tuple[int, ...] = ()
    worker_idle_seconds: float = 0.0
    update_waiting_seconds: float = 0.0
    client_waiting_seconds: float = 0.0
    num_non_finite_steps: int = 0

    def _repr_html_(self) -> str:
        return value_html(self)

    @property
    def num_dropped_steps(self) -> int:
        """Number of steps that were thrown away: superseded, cancelled, lost, idle, discarded, or of unused rounds."""
        dropped = self.num_superseded_steps + self.num_cancelled_steps + self.num_lost_steps
        unused = self.num_stale_steps + self.num_overflow_steps + self.num_unsent_steps
        return dropped + self.num_idle_steps + self.num_discarded_steps + unused


def account_of_call(account: Account | None) -> Account:
    """Return the account that a batch has; raise ValueError for a batch that is no whole result of a call."""
    if account is None:
        raise ValueError(f"account: {mismatch('the whole result of a call', 'a batch without an account')}")
    return account


def account_from_proto(message: episode_batch_pb2.Account) -> Account:
    """Return the account that a message describes."""
    workers = tuple(record_from_message(WorkerAccount, worker) for worker in message.workers)
    failures = tuple(record_from_message(EpisodeFailure, failure) for failure in message.episode_failures)
    observation_moments, return_moments = moments_of(message)
    return record_from_message(
        Account,
        message,
        workers=workers,
        episode_failures=failures,
        observation_moments=observation_moments,
        return_moments=return_moments,
        policy_moments=policy_moments_of(message),
        lag_step_counts=tuple(message.lag_step_counts),
    )
