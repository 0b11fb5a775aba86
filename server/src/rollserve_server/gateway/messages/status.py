"""The state of a sampler. The fields stand in the order of the protos, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve.environments import env_spec_to_proto
from rollserve.reproducibility import reproducibility_to_proto
from rollserve.spaces import space_to_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server import __version__
from rollserve_server.envs import describe_space
from rollserve_server.errors import shorten
from rollserve_server.gateway.messages.times import duration_to_proto

if TYPE_CHECKING:
    from rollserve_server.pool import PoolStatus, WorkerStatus

__all__ = ["status_to_proto"]


def status_to_proto(sampler: str, status: PoolStatus) -> pb.GetSamplerResponse:
    """Return the state of a sampler.

    Args:
        sampler: the sampler's name.
        status: the state of its pool.
    """
    return pb.GetSamplerResponse(
        sampler=sampler,
        server_version=__version__,
        environments=map(env_spec_to_proto, status.env_specs),
        environment_version=status.env_version,
        observation_space=space_to_proto(describe_space(status.env.observation_space)),
        action_space=space_to_proto(describe_space(status.env.action_space)),
        agent_kinds=status.agent_kinds,
        policy_version=status.policy_version,
        seed=status.seed,
        next_episode_index=status.next_index,
        workers=map(_worker_to_proto, status.workers),
        counters=_counters_to_proto(status),
        reproducibility=reproducibility_to_proto(status.env.reproducibility),
        episodes_per_row=status.env.num_episodes_per_row or 0,
        min_healthy_worker_count=status.min_healthy_workers,
    )


def _worker_to_proto(worker: WorkerStatus) -> pb.Worker:
    return pb.Worker(
        worker_index=worker.index,
        health=_health_to_proto(worker),
        row_count=worker.num_rows,
        simulated_step_count=worker.num_simulated_steps,
        process_id=worker.identity.process_id,
        host=worker.identity.host,
        restart_count=worker.num_restarts,
        last_failure=shorten(worker.last_failure),
    )


def _health_to_proto(worker: WorkerStatus) -> pb.WorkerHealth.ValueType:
    if worker.is_leaving:
        return pb.WORKER_HEALTH_LEAVING
    if worker.healthy:
        return pb.WORKER_HEALTH_HEALTHY
    return pb.WORKER_HEALTH_FAILED if worker.given_up else pb.WORKER_HEALTH_LOST


def _counters_to_proto(status: PoolStatus) -> pb.Counters:
    counters = status.counters
    return pb.Counters(
        completed_call_count=counters.num_completed_calls,
        failed_call_count=counters.num_failed_calls,
        cancelled_call_count=counters.num_cancelled_calls,
        step_count=counters.num_steps,
        episode_count=counters.num_episodes,
        simulated_step_count=status.num_simulated_steps,
        message_bytes=counters.message_bytes,
        uptime=duration_to_proto(status.uptime_seconds),
        worker_restart_count=status.num_worker_restarts,
        environment_failure_count=counters.num_env_failures,
        retried_episode_count=counters.num_retried_episodes,
        failed_episode_count=counters.num_failed_episodes,
    )
