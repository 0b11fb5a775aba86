"""The state of samplers as messages, and the requests that create them."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server import __version__
from rollserve_server.envs import environment_from_proto, requested, space_to_proto
from rollserve_server.errors import InvalidValueError, shorten, without_folders
from rollserve_server.fields import MAX_WORKERS, in_field, in_range, optional, timestamp_of
from rollserve_server.samplers import SamplerRequest
from rollserve_server.settings import Quota
from rollserve_wire.environments import env_spec_to_proto, reproducibility_to_proto
from rollserve_wire.records import duration_to_proto, message_from_record
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.envs import ProfileDescription
    from rollserve_server.gateway.messages.environments import PrivateArguments
    from rollserve_server.pool import PoolStatus, ScalingStatus, WorkerStatus
    from rollserve_server.samplers import Sampler


__all__ = ["CreationRequest", "created_to_proto", "creation_request_from_proto", "status_to_proto", "summary_to_proto"]


_MAX_FAILURE, _MAX_FAILURES = 1000, 1 << 16
"""Characters of a worker's last failure, and of the last failures of all workers."""

_NAME = re.compile(r"[a-z0-9-]{1,63}")
_MAX_CALLS, _MAX_BYTES, _MAX_ROWS = 64, 1 << 62, 1 << 31
_MIN_LEASE_SECONDS, _MAX_LEASE_SECONDS = 1.0, 1e9
_MAX_STEPS_PER_SECOND = 1e12


def status_to_proto(
    sampler: Sampler, status: PoolStatus, private: PrivateArguments, *, with_processes: bool, with_all: bool = False
) -> pb.GetSamplerResponse:
    """Return the state of a sampler.

    Args:
        sampler: the sampler.
        status: the state of its pool.
        private: arguments of environments that are left out.
        with_processes: whether the client gets to know the workers' machines and processes.
        with_all: whether it gets to know private arguments, and folders in texts of errors.
    """
    specs = status.env_specs if with_all else map(private.without, status.env_specs)
    return message_from_record(
        pb.GetSamplerResponse,
        status,
        sampler=sampler.name,
        server_version=__version__,
        environments=map(env_spec_to_proto, specs),
        hidden_arguments=() if with_all else private.hidden(status.env_specs),
        observation_space=space_to_proto(status.env.observation_space),
        action_space=space_to_proto(status.env.action_space),
        next_episode_index=status.next_index,
        workers=_workers_to_proto(status.workers, with_processes=with_processes, with_folders=with_all),
        counters=_counters_to_proto(status),
        reproducibility=reproducibility_to_proto(status.env.reproducibility),
        episodes_per_row=status.env.num_episodes_per_row or 0,
        min_healthy_worker_count=status.min_healthy_workers,
        policy_age=duration_to_proto(_age(status.policy_updated_seconds)),
        profiles=(_profile_to_proto(profile) for profile in status.profiles),
        owner=sampler.owner,
        lease=None if sampler.lease is None else duration_to_proto(sampler.lease.seconds),
        quota=_quota_to_proto(sampler.quota),
        agents=status.env.agents,
        packages=status.packages,
        scaling=None if status.scaling is None else _scaling_to_proto(status.scaling),
    )


def _scaling_to_proto(scaling: ScalingStatus) -> pb.Scaling:
    return pb.Scaling(
        min_worker_count=scaling.min_workers,
        max_worker_count=scaling.max_workers,
        wanted_worker_count=scaling.num_wanted,
        held_by=scaling.held_by,
    )


def _profile_to_proto(profile: ProfileDescription) -> pb.EnvironmentProfile:
    return pb.EnvironmentProfile(
        name=profile.name, description=profile.description, arguments_schema_json=profile.schema_json
    )


def _workers_to_proto(workers: Sequence[WorkerStatus], *, with_processes: bool, with_folders: bool) -> list[pb.Worker]:
    num_failures = sum(bool(worker.last_failure) for worker in workers)
    max_characters = min(_MAX_FAILURE, _MAX_FAILURES // max(num_failures, 1))
    shown = {"with_processes": with_processes, "with_folders": with_folders}
    return [_worker_to_proto(worker, max_characters, **shown) for worker in workers]


def _worker_to_proto(
    worker: WorkerStatus, max_characters: int, *, with_processes: bool, with_folders: bool
) -> pb.Worker:
    last_failure = shorten(worker.last_failure, max_characters)
    return message_from_record(
        pb.Worker,
        worker,
        worker_index=worker.index,
        health=_health_to_proto(worker),
        process_id=worker.identity.process_id if with_processes else 0,
        host=worker.identity.host if with_processes else "",
        last_failure=last_failure if with_folders else without_folders(last_failure),
    )


def _health_to_proto(worker: WorkerStatus) -> pb.WorkerHealth.ValueType:
    if worker.is_leaving:
        return pb.WORKER_HEALTH_LEAVING
    if worker.healthy:
        return pb.WORKER_HEALTH_HEALTHY
    return pb.WORKER_HEALTH_FAILED if worker.given_up else pb.WORKER_HEALTH_LOST


def _counters_to_proto(status: PoolStatus) -> pb.Counters:
    return message_from_record(
        pb.Counters,
        status.counters,
        simulated_step_count=status.num_simulated_steps,
        uptime=duration_to_proto(status.uptime_seconds),
        worker_restart_count=status.num_worker_restarts,
    )


def _age(unix_seconds: float) -> float:
    """Return the seconds since a time; 0 for none, and for a time to come, when the clock was set."""
    return max(time.time() - unix_seconds, 0.0) if unix_seconds else 0.0


class CreationRequest(NamedTuple):
    """A request for a new sampler, of whose name an equal one may exist."""

    sampler: SamplerRequest
    exist_ok: bool


def creation_request_from_proto(
    request: samplers_pb2.CreateSamplerRequest, allowed_paths: Collection[Path]
) -> CreationRequest:
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
    seed = optional(request, "seed")
    sampler = SamplerRequest(request.sampler, env, num_workers, seed, lease_seconds, quota)
    return CreationRequest(sampler, request.exist_ok)


def created_to_proto(sampler: Sampler, *, existed: bool) -> samplers_pb2.CreateSamplerResponse:
    """Return the response to the creation of a sampler."""
    status = sampler.pool.status()
    env = status.env
    return samplers_pb2.CreateSamplerResponse(
        existed=existed,
        environment_version=status.env_version,
        observation_space=space_to_proto(env.observation_space),
        action_space=space_to_proto(env.action_space),
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
        quota=_quota_to_proto(sampler.quota),
    )
    if sampler.lease is not None:
        summary.lease.CopyFrom(duration_to_proto(sampler.lease.seconds))
        summary.lease_left.CopyFrom(duration_to_proto(sampler.lease.seconds_left))
    return summary


def _quota_to_proto(quota: Quota) -> samplers_pb2.SamplerQuota:
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
