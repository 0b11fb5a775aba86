"""What a pool tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve import EnvSpec
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.sampling import EnvDescription, WorkerIdentity

__all__ = ["Counters", "PoolStatus", "WorkerStatus", "WorkerTotals"]


@dataclass(frozen=True)
class WorkerStatus:
    """A worker, and what it has done.

    Attributes:
        index: its number.
        healthy: whether it is there.
        is_leaving: whether it takes no new calls, and goes when no call uses it.
        identity: where it runs, or has run.
        num_rows: how many environments it steps at once.
        num_simulated_steps: what it, and those before it in its place, have simulated.
        given_up: whether it is not there, and is not to be replaced for now.
        num_restarts: how often it was replaced, or that was tried.
        last_failure: what the last one was lost for, or could not be started for; empty if that never happened.
    """

    index: int
    healthy: bool
    is_leaving: bool
    identity: WorkerIdentity
    num_rows: int
    num_simulated_steps: int
    given_up: bool = False
    num_restarts: int = 0
    last_failure: str = ""


@dataclass(frozen=True)
class WorkerTotals:
    """What is counted of the workers of a place, whoever had them, or of several places together.

    Attributes:
        num_simulated_steps, num_restarts, last_failure: see WorkerStatus.
    """

    num_simulated_steps: int = 0
    num_restarts: int = 0
    last_failure: str = ""

    def plus(self, *others: WorkerTotals) -> WorkerTotals:
        """The sums, without the failures."""
        everyone = (self, *others)
        return WorkerTotals(
            sum(each.num_simulated_steps for each in everyone), sum(each.num_restarts for each in everyone)
        )


@dataclass
class Counters:
    """What a pool has done since its start: calls by their end, what was delivered, and what went wrong on the way."""

    num_completed_calls: int = 0
    num_failed_calls: int = 0
    num_cancelled_calls: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    message_bytes: int = 0
    num_env_failures: int = 0
    num_retried_episodes: int = 0
    num_failed_episodes: int = 0

    def count_delivered(self, account: Account) -> None:
        """Counts what came of a call, which has ended one way or the other."""
        self.num_steps += account.num_steps
        self.num_episodes += account.num_episodes
        self.message_bytes += account.message_bytes

    def count_faults(self, account: Account) -> None:
        """Counts what went wrong in a call, which has ended one way or the other."""
        self.num_env_failures += account.env_failures.num_failures
        self.num_retried_episodes += account.num_retried_episodes
        self.num_failed_episodes += account.env_failures.num_skipped


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
    num_simulated_steps: int
    num_worker_restarts: int
    uptime_seconds: float
    min_healthy_workers: int = 0
