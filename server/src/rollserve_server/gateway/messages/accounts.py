"""Accounts of calls. The fields stand in the order of the protos, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve.v1 import episode_batch_pb2
from rollserve_server.gateway.messages.times import duration_to_proto

if TYPE_CHECKING:
    from rollserve_server.pool import Account, FailedEpisode, WorkerAccount

__all__ = ["account_to_proto"]


def account_to_proto(account: Account, *, shared_message_bytes: int = 0) -> episode_batch_pb2.Account:
    """Return the account of a call.

    Args:
        account: the pool's account.
        shared_message_bytes: size of the messages that went through shared memory.
    """
    return episode_batch_pb2.Account(
        step_count=account.num_steps,
        episode_count=account.num_episodes,
        simulated_step_count=account.num_simulated_steps,
        carried_step_count=account.num_carried_steps,
        kept_step_count=account.num_kept_steps,
        superseded_step_count=account.num_superseded_steps,
        cancelled_step_count=account.num_cancelled_steps,
        lost_step_count=account.num_lost_steps,
        retried_episode_count=account.num_retried_episodes,
        seed=account.seed,
        first_episode_index=account.first_episode_index,
        policy_version=account.policy_version,
        environment_version=account.env_version,
        dropped_infos=account.dropped_infos,
        workers=[_worker_account_to_proto(index, worker) for index, worker in enumerate(account.workers)],
        queued=duration_to_proto(account.queued_seconds),
        waiting=duration_to_proto(account.waiting_seconds),
        sending=duration_to_proto(account.sending_seconds),
        elapsed=duration_to_proto(account.elapsed_seconds),
        broken_off_episode_count=account.num_broken_off_episodes,
        row_step_count=account.row_step_count,
        idle_step_count=account.num_idle_steps,
        discarded_step_count=account.num_discarded_steps,
        discarded_episode_count=account.num_discarded_episodes,
        prefetched_step_count=account.num_prefetched_steps,
        shared_message_bytes=shared_message_bytes,
        failed_episode_count=account.env_failures.num_skipped,
        retry_reasons=account.retry_reasons,
        episode_failures=map(_failed_episode_to_proto, account.env_failures.reported.values()),
        straggler_episode_count=account.num_straggler_episodes,
        missing_step_count=account.num_missing_steps,
    )


def _worker_account_to_proto(worker_index: int, worker: WorkerAccount) -> episode_batch_pb2.WorkerAccount:
    return episode_batch_pb2.WorkerAccount(
        worker_index=worker_index,
        simulated_step_count=worker.num_simulated_steps,
        step_count=worker.num_steps,
        episode_count=worker.num_episodes,
        sampling=duration_to_proto(worker.sampling_seconds),
        encoding=duration_to_proto(worker.encoding_seconds),
        missing_step_count=worker.num_missing_steps,
    )


def _failed_episode_to_proto(failed: FailedEpisode) -> episode_batch_pb2.EpisodeFailure:
    return episode_batch_pb2.EpisodeFailure(
        episode_index=failed.index,
        worker_index=failed.worker,
        attempt_count=failed.num_attempts,
        skipped=failed.is_skipped,
        text=failed.short_text,
    )
