"""The state of a sampler as a message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollserve_server import __version__
from rollserve_server.envs import describe_space
from rollserve_server.errors import shorten, without_folders
from rollserve_server.gateway.messages.samplers import quota_to_proto
from rollserve_wire.environments import env_spec_to_proto, reproducibility_to_proto
from rollserve_wire.records import duration_to_proto, message_from_record
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.envs import ProfileDescription
    from rollserve_server.gateway.messages.privacy import PrivateArguments
    from rollserve_server.pool import PoolStatus, WorkerStatus
    from rollserve_server.samplers import Sampler

__all__ = ["status_to_proto"]

_MAX_FAILURE, _MAX_FAILURES = 1000, 1 << 16
"""Characters of a worker's last failure, and of the last failures of all workers."""


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
        observation_space=space_to_proto(describe_space(status.env.observation_space)),
        action_space=space_to_proto(describe_space(status.env.action_space)),
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
        quota=quota_to_proto(sampler.quota),
        agents=status.env.agents,
        packages=status.packages,
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
