"""Accounts of calls as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve._codec.records import message_from_record
from rollserve.v1 import episode_batch_pb2
from rollserve_server.errors import without_folders

if TYPE_CHECKING:
    from rollserve_server.pool import Account, FailedEpisode

__all__ = ["account_to_proto"]


def account_to_proto(account: Account, *, shared_message_bytes: int = 0) -> episode_batch_pb2.Account:
    """Return the account of a call.

    Args:
        account: the pool's account.
        shared_message_bytes: size of the messages that went through shared memory.
    """
    return message_from_record(
        episode_batch_pb2.Account,
        account,
        workers=[
            message_from_record(episode_batch_pb2.WorkerAccount, worker, worker_index=index)
            for index, worker in enumerate(account.workers)
        ],
        shared_message_bytes=shared_message_bytes,
        failed_episode_count=account.env_failures.num_skipped,
        episode_failures=map(_failed_episode_to_proto, account.env_failures.reported.values()),
    )


def _failed_episode_to_proto(failed: FailedEpisode) -> episode_batch_pb2.EpisodeFailure:
    return episode_batch_pb2.EpisodeFailure(
        episode_index=failed.index,
        worker_index=failed.worker,
        attempt_count=failed.num_attempts,
        skipped=failed.is_skipped,
        text=without_folders(failed.short_text),
    )
