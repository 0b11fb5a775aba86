"""Messages about samplers: requests for new samplers, and what clients learn of the present ones."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.envs import describe_space, requested
from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.environments import environment_from_proto
from rollserve_server.gateway.messages.fields import MAX_WORKERS, in_field, in_range, optional, timestamp_of
from rollserve_server.samplers import SamplerRequest
from rollserve_server.settings import Quota
from rollserve_wire.environments import reproducibility_to_proto
from rollserve_wire.records import duration_to_proto
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import samplers_pb2

if TYPE_CHECKING:
    from rollserve_server.samplers import Sampler

__all__ = ["created_to_proto", "quota_to_proto", "sampler_request_from_proto", "summary_to_proto"]

_NAME = re.compile(r"[a-z0-9-]{1,63}")
_MAX_CALLS, _MAX_BYTES, _MAX_ROWS = 64, 1 << 62, 1 << 31
_MIN_LEASE_SECONDS, _MAX_LEASE_SECONDS = 1.0, 1e9
_MAX_STEPS_PER_SECOND = 1e12


def sampler_request_from_proto(
    request: samplers_pb2.CreateSamplerRequest, allowed_paths: Collection[Path]
) -> SamplerRequest:
    """Return what a request asks for.

    Raises:
        InvalidValueError: a part is missing, malformed or out of range.
        NotAllowedError: an argument of the environment is a path that is not allowed.
    """
    if not _NAME.fullmatch(request.sampler):
        expected = "1 to 63 of the characters a to z, 0 to 9 and -"
        raise InvalidValueError.of("sampler", expected=expected, got=repr(request.sampler))
    if not request.HasField("environment"):
        raise InvalidValueError.of("environment", expected="an environment", got="none")
    with in_field("environment"):
        env = environment_from_proto(request.environment, allowed_paths)
    num_workers = in_range("worker_count", request.worker_count, 1, MAX_WORKERS)
    lease_seconds = _lease_seconds(request) if request.HasField("lease") else None
    with in_field("quota"):
        quota = _quota_from_proto(request.quota)
    return SamplerRequest(request.sampler, env, num_workers, optional(request, "seed"), lease_seconds, quota)


def created_to_proto(sampler: Sampler, *, existed: bool) -> samplers_pb2.CreateSamplerResponse:
    """Return the response to the creation of a sampler."""
    status = sampler.pool.status()
    env = status.env
    return samplers_pb2.CreateSamplerResponse(
        existed=existed,
        environment_version=status.env_version,
        observation_space=space_to_proto(describe_space(env.observation_space)),
        action_space=space_to_proto(describe_space(env.action_space)),
        reproducibility=reproducibility_to_proto(env.reproducibility),
        row_count=env.num_rows,
        episodes_per_row=env.num_episodes_per_row or 0,
        has_transforms=any(spec.transforms for spec in status.env_specs),
        agents=env.agents,
    )


def summary_to_proto(sampler: Sampler) -> samplers_pb2.SamplerSummary:
    """Return a sampler in brief."""
    status = sampler.pool.status()
    created = timestamp_of(sampler.created_seconds)
    summary = samplers_pb2.SamplerSummary(
        sampler=sampler.name,
        owner=sampler.owner,
        created=created,
        environment_ids=dict.fromkeys(requested(spec).id for spec in status.env_specs),
        worker_count=sampler.pool.num_workers,
        policy_version=status.policy_version,
        quota=quota_to_proto(sampler.quota),
    )
    if sampler.lease is not None:
        summary.lease.CopyFrom(duration_to_proto(sampler.lease.seconds))
        summary.lease_left.CopyFrom(duration_to_proto(sampler.lease.seconds_left))
    return summary


def quota_to_proto(quota: Quota) -> samplers_pb2.SamplerQuota:
    """Return limits as a message."""
    return samplers_pb2.SamplerQuota(
        worker_count=quota.num_workers,
        row_count=quota.num_rows,
        result_bytes=quota.result_bytes,
        call_count=quota.num_calls,
        steps_per_second=quota.steps_per_second,
    )


def _quota_from_proto(quota: samplers_pb2.SamplerQuota) -> Quota:
    rate = quota.steps_per_second
    if not 0 <= rate <= _MAX_STEPS_PER_SECOND:  # false for NaN, too
        raise InvalidValueError.of("steps_per_second", expected=f"from 0 to {_MAX_STEPS_PER_SECOND:g}", got=rate)
    return Quota(
        in_range("worker_count", quota.worker_count, 0, MAX_WORKERS),
        in_range("row_count", quota.row_count, 0, _MAX_ROWS),
        in_range("result_bytes", quota.result_bytes, 0, _MAX_BYTES),
        in_range("call_count", quota.call_count, 0, _MAX_CALLS),
        rate,
    )


def _lease_seconds(request: samplers_pb2.CreateSamplerRequest) -> float:
    seconds = request.lease.seconds + request.lease.nanos / 1e9
    if seconds and not _MIN_LEASE_SECONDS <= seconds <= _MAX_LEASE_SECONDS:
        expected = f"0 for no lease, or from {_MIN_LEASE_SECONDS:g} to {_MAX_LEASE_SECONDS:g} s"
        raise InvalidValueError.of("lease", expected=expected, got=f"{seconds:g} s")
    return seconds
