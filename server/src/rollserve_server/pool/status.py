"""What a pool tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve import EnvSpec
    from rollserve_server.sampling import EnvDescription, WorkerIdentity

__all__ = ["Counters", "PoolStatus", "WorkerStatus"]


@dataclass(frozen=True)
class WorkerStatus:
    """A worker, and what it has done."""

    healthy: bool
    identity: WorkerIdentity
    num_rows: int
    num_simulated_steps: int


@dataclass
class Counters:
    """What a pool has done since its start: calls by their end, and what was delivered."""

    num_completed_calls: int = 0
    num_failed_calls: int = 0
    num_cancelled_calls: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    message_bytes: int = 0


@dataclass(frozen=True)
class PoolStatus:
    """The state of a pool.

    `env_specs` and `agent_kinds` have one element where all workers have the same, and else one for each worker; where
    rows differ, `env_specs` has one for each row of each worker.
    """

    env_specs: Sequence[EnvSpec]
    env_version: int
    env: EnvDescription
    agent_kinds: Sequence[str]
    policy_version: int
    seed: int
    next_index: int
    workers: Sequence[WorkerStatus]
    counters: Counters
    uptime_seconds: float
