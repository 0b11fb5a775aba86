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
        host: the machine that it runs on; empty while it has never started.
        leaving: whether a `resize` has taken it away, and calls that began before still use it.
        has_failed: whether it was lost as often as the server allows within an hour, and is left out until that is
            over; one that is neither healthy nor has failed is being replaced.
        num_restarts: how often it was replaced, or that was tried.
        last_failure: what the last one in its place was lost for, or could not be started for; empty if that never
            happened.
    """

    worker_index: int
    healthy: bool
    num_rows: int
    num_simulated_steps: int
    process_id: int
    host: str
    leaving: bool = False
    has_failed: bool = False
    num_restarts: int = 0
    last_failure: str = ""


@dataclass(frozen=True)
class Counters:
    """What a sampler has done since its start: calls by their end, what they delivered, and what went wrong on the way.

    Attributes:
        num_env_failures: errors that environments raised in episodes, of calls and evaluations that have ended.
        num_retried_episodes: episodes of those that ran again.
        num_failed_episodes: episodes that those went on without.
        num_worker_restarts: how often workers were replaced, or that was tried; also those that are gone.
    """

    num_completed_calls: int
    num_failed_calls: int
    num_cancelled_calls: int
    num_steps: int
    num_episodes: int
    num_simulated_steps: int
    message_bytes: int
    uptime_seconds: float
    num_env_failures: int = 0
    num_retried_episodes: int = 0
    num_failed_episodes: int = 0
    num_worker_restarts: int = 0


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
        workers: the workers, in the order of their indices; behind them those that are leaving.
        counters: what it has done.
        min_healthy_workers: how many workers have to be healthy for a call or an update to begin.
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
    min_healthy_workers: int = 0

    @property
    def num_workers(self) -> int:
        """How many workers there are for calls that begin now."""
        return sum(not worker.leaving for worker in self.workers)


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
            leaving=worker.health == pb.WORKER_HEALTH_LEAVING,
            has_failed=worker.health == pb.WORKER_HEALTH_FAILED,
            num_restarts=worker.restart_count,
            last_failure=worker.last_failure,
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
        num_env_failures=message.counters.environment_failure_count,
        num_retried_episodes=message.counters.retried_episode_count,
        num_failed_episodes=message.counters.failed_episode_count,
        num_worker_restarts=message.counters.worker_restart_count,
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
        min_healthy_workers=message.min_healthy_worker_count,
    )
