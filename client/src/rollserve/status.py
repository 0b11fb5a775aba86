"""The state of a sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve.environments import EnvSpec, env_spec_from_proto
from rollserve.reproducibility import Reproducibility, reproducibility_from_proto
from rollserve.spaces import Space, space_from_proto
from rollserve.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Counters", "SamplerStatus", "WorkerStatus", "status_from_proto"]


@dataclass(frozen=True)
class WorkerStatus:
    """The state of a worker.

    Attributes:
        worker_index: its number, from 0.
        healthy: whether it takes work.
        num_rows: how many environments it steps at once.
        num_simulated_steps: steps that it has simulated.
        process_id: its process.
        host: the machine that it runs on.
    """

    worker_index: int
    healthy: bool
    num_rows: int
    num_simulated_steps: int
    process_id: int
    host: str


@dataclass(frozen=True)
class Counters:
    """What a sampler has done since its start: calls by their end, and what they delivered."""

    num_completed_calls: int
    num_failed_calls: int
    num_cancelled_calls: int
    num_steps: int
    num_episodes: int
    num_simulated_steps: int
    message_bytes: int
    uptime_seconds: float


@dataclass(frozen=True)
class SamplerStatus:
    """The state of a sampler.

    Attributes:
        sampler: its name.
        server_version: the version of the server's software.
        envs: one environment for all; or one for each worker; or, where rows may differ, one for each row of each
            worker, worker by worker.
        env_version: the version of the environments, 1 for the first.
        observation_space: where observations come from.
        action_space: where actions come from.
        agent_kinds: the kind of each worker's agent, or one for all; empty before there is one.
        policy_version: the version of the policy; 0 before there is one.
        reproducibility: what of the environments' episodes comes again.
        num_episodes_per_row: how many episodes of each row make a block, if that is what comes again; else None.
        seed: the root seed of the sampler's own sequence of episodes.
        next_episode_index: the index in that sequence that the next call begins with.
        workers: the workers.
        counters: what it has done.
    """

    sampler: str
    server_version: str
    envs: Sequence[EnvSpec]
    env_version: int
    observation_space: Space
    action_space: Space
    agent_kinds: Sequence[str]
    policy_version: int
    reproducibility: Reproducibility
    num_episodes_per_row: int | None
    seed: int
    next_episode_index: int
    workers: Sequence[WorkerStatus]
    counters: Counters


def status_from_proto(message: pb.GetSamplerResponse) -> SamplerStatus:
    """The status that the message holds."""
    workers = tuple(
        WorkerStatus(
            worker_index=worker.worker_index,
            healthy=worker.health == pb.WORKER_HEALTH_HEALTHY,
            num_rows=worker.row_count,
            num_simulated_steps=worker.simulated_step_count,
            process_id=worker.process_id,
            host=worker.host,
        )
        for worker in message.workers
    )
    counters = Counters(
        num_completed_calls=message.counters.completed_call_count,
        num_failed_calls=message.counters.failed_call_count,
        num_cancelled_calls=message.counters.cancelled_call_count,
        num_steps=message.counters.step_count,
        num_episodes=message.counters.episode_count,
        num_simulated_steps=message.counters.simulated_step_count,
        message_bytes=message.counters.message_bytes,
        uptime_seconds=message.counters.uptime.ToNanoseconds() / 1e9,
    )
    return SamplerStatus(
        sampler=message.sampler,
        server_version=message.server_version,
        envs=tuple(map(env_spec_from_proto, message.environments)),
        env_version=message.environment_version,
        observation_space=space_from_proto(message.observation_space),
        action_space=space_from_proto(message.action_space),
        agent_kinds=tuple(message.agent_kinds),
        policy_version=message.policy_version,
        reproducibility=reproducibility_from_proto(message.reproducibility),
        num_episodes_per_row=message.episodes_per_row or None,
        seed=message.seed,
        next_episode_index=message.next_episode_index,
        workers=workers,
        counters=counters,
    )
