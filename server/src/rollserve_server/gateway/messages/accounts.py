"""Accounts of calls as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import without_folders
from rollserve_wire.records import message_from_record
from rollserve_wire.tensors import tensor_to_proto
from rollserve_wire.v1 import datasets_pb2, episode_batch_pb2

if TYPE_CHECKING:
    from rollserve_server.pool import Account, DeliveredMoments, FailedEpisode, FormMoments, Recorded

__all__ = ["account_to_proto", "moments_to_proto", "recording_to_proto"]


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
        **moments_to_proto(account.moments),
    )


def recording_to_proto(recorded: Recorded) -> datasets_pb2.Recording:
    """Return what a recording has made of a dataset, without the account of a call."""
    return datasets_pb2.Recording(
        dataset=recorded.dataset,
        episode_count=recorded.num_episodes,
        step_count=recorded.num_steps,
        byte_count=recorded.num_bytes,
        added_episode_count=recorded.num_added_episodes,
        added_step_count=recorded.num_added_steps,
        seed=recorded.seed,
        next_episode_index=recorded.next_episode_index,
    )


def moments_to_proto(moments: DeliveredMoments | None) -> dict[str, Any]:
    """Return the fields of an account or a round that have moments, None for moments that nobody asked for."""
    fields: dict[str, Any] = {"observation_moments": None, "return_moments": None, "policy_moments": None}
    if moments is None:
        return fields
    totals = moments.totals()
    of_policies = [
        episode_batch_pb2.PolicyMoments(policy=each.form.policy, **_fields_of(each))
        for each in totals
        if each.form.policy
    ]
    return fields | ({"policy_moments": of_policies} if of_policies else _fields_of(totals[0]))


def _fields_of(moments: FormMoments) -> dict[str, Any]:
    shapes, returns = dict(moments.form.leaves), moments.returns
    return {
        "observation_moments": [
            episode_batch_pb2.NamedMoments(name=name, moments=_moments(row, shapes[name]))
            for name, row in moments.observations.items()
        ],
        "return_moments": None if returns is None else _moments(returns, ()),
    }


def _moments(row: np.ndarray, shape: tuple[int, ...]) -> episode_batch_pb2.Moments:
    mean, m2 = (tensor_to_proto(part.reshape(shape)) for part in np.split(row[1:], 2))
    return episode_batch_pb2.Moments(count=int(row[0]), mean=mean, m2=m2)


def _failed_episode_to_proto(failed: FailedEpisode) -> episode_batch_pb2.EpisodeFailure:
    return episode_batch_pb2.EpisodeFailure(
        episode_index=failed.index,
        worker_index=failed.worker,
        attempt_count=failed.num_attempts,
        skipped=failed.is_skipped,
        text=without_folders(failed.short_text),
    )
