"""The state of a pool, as `GetSampler` reports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.accounts.counters import WorkerTotals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.envs import ProfileDescription
    from rollserve_server.pool.accounts.counters import Counters
    from rollserve_server.sampling import EnvDescription, WorkerIdentity
    from rollserve_wire.environments import EnvSpec

__all__ = ["PoolStatus", "WorkerStatus"]


@dataclass(frozen=True, kw_only=True)
class WorkerStatus(WorkerTotals):
    """The state of a slot, and the totals of the workers that it has had.

    Attributes:
        index: index of the slot.
        healthy: whether it has a worker.
        is_leaving: whether it takes no new calls, and goes when no call uses it.
        given_up: whether it has no worker and gets none for now, because too many were lost.
        identity: where the worker runs, or the last one ran.
        num_rows: number of environments that step at once.
    """

    index: int
    healthy: bool
    is_leaving: bool
    given_up: bool
    identity: WorkerIdentity
    num_rows: int


@dataclass(frozen=True)
class PoolStatus:
    """The state of a pool.

    Attributes:
        env_specs: one for all workers, one for each worker, or one for each row of each worker.
        env_version: version of the environment.
        env: spaces of the environment, and how rows are stepped.
        agent_kinds: one for all workers, or one for each worker; empty before there is an agent.
        policy_version: version of the agent; 0 before there is one.
        policy_updated_seconds: when that version was accepted, in seconds since 1970; 0 before there is one.
        seed: root seed of the own sequence that calls use one after the other.
        next_index: index of its next episode.
        workers: the slots, in the order of their indices; behind them slots that are leaving.
        counters: totals of calls.
        num_simulated_steps: number of steps that all workers have simulated, also workers of removed slots.
        num_worker_restarts: number of attempts to replace a worker, also in slots that are gone.
        uptime_seconds: age of the sampler.
        num_running_calls: number of sampling calls and evaluations that run.
        num_queued_calls: number of sampling calls and evaluations that queue.
        min_healthy_workers: number of workers that must be healthy for a call or an update to begin.
        profiles: environments that clients may request by profiles.
        policies: current version of each policy by name, where the agent is policies by name.
    """

    env_specs: Sequence[EnvSpec]
    env_version: int
    env: EnvDescription
    agent_kinds: Sequence[str]
    policy_version: int
    policy_updated_seconds: float
    seed: int
    next_index: int
    workers: Sequence[WorkerStatus]
    counters: Counters
    num_simulated_steps: int
    num_worker_restarts: int
    uptime_seconds: float
    num_running_calls: int
    num_queued_calls: int
    min_healthy_workers: int = 0
    profiles: Sequence[ProfileDescription] = ()
    policies: Mapping[str, int] = field(default_factory=dict)

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the workers' packages by name; where workers differ, all of them, joined by ` and `."""
        versions: dict[str, dict[str, None]] = {}
        for worker in self.workers:
            for name, version in worker.identity.packages:
                versions.setdefault(name, {})[version] = None
        return {name: " and ".join(sorted(versions[name])) for name in sorted(versions)}
