"""Samplers of a server: their limits, and what each is in brief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollserve_wire.records import message_from_record, record_from_message
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import samplers_pb2

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

__all__ = ["Quota", "SamplerSummary", "quota_from_proto", "quota_to_proto", "samplers_from_proto", "seconds_of"]


@briefly
@dataclass(frozen=True)
class Quota:
    """Limits of a sampler. In requests, 0 stands for the operator's maximum; in answers, for no limit.

    Attributes:
        num_workers: number of workers that `resize` may set; in requests, 0 stands for the number at the start.
        num_rows: number of rows of all workers together, for a call.
        result_bytes: bytes of results that may be on their way from the workers to clients.
        num_calls: number of calls that sample at the same time; others queue.
        steps_per_second: steps per second of all calls together; faster calls are slowed down.
    """

    num_workers: int = 0
    num_rows: int = 0
    result_bytes: int = 0
    num_calls: int = 0
    steps_per_second: float = 0.0


@briefly
@dataclass(frozen=True)
class SamplerSummary:
    """A sampler of a server, in brief.

    Attributes:
        sampler: name of the sampler.
        owner: principal that created it; empty for the default one.
        created_seconds: when it was created, in seconds since 1970; for the default one, when the server started.
        env_ids: ids of its environments, each once.
        num_workers: number of workers for calls that begin now.
        policy_version: version of the policy; 0 as long as there is no agent.
        lease_seconds: time without a call after which it is deleted; None for never.
        lease_left_seconds: the part of it that is left; None for never.
        quota: its limits.
    """

    sampler: str
    owner: str
    created_seconds: float
    env_ids: Sequence[str]
    num_workers: int
    policy_version: int
    lease_seconds: float | None
    lease_left_seconds: float | None
    quota: Quota


def quota_to_proto(quota: Quota) -> samplers_pb2.SamplerQuota:
    """Return limits as a message."""
    return message_from_record(samplers_pb2.SamplerQuota, quota)


def quota_from_proto(message: samplers_pb2.SamplerQuota) -> Quota:
    """Return the limits in a message."""
    return record_from_message(Quota, message)


def samplers_from_proto(message: samplers_pb2.ListSamplersResponse) -> Sequence[SamplerSummary]:
    """Return the samplers in a message."""
    return tuple(
        SamplerSummary(
            sampler=summary.sampler,
            owner=summary.owner,
            created_seconds=summary.created.ToNanoseconds() / 1e9,
            env_ids=tuple(summary.environment_ids),
            num_workers=summary.worker_count,
            policy_version=summary.policy_version,
            lease_seconds=seconds_of(summary, "lease"),
            lease_left_seconds=seconds_of(summary, "lease_left"),
            quota=quota_from_proto(summary.quota),
        )
        for summary in message.samplers
    )


def seconds_of(message: Any, field: str) -> float | None:
    """Return the seconds of a duration in a message; None if it is not set."""
    if not message.HasField(field):
        return None
    duration: Duration = getattr(message, field)
    return duration.ToNanoseconds() / 1e9
