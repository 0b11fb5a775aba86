"""Totals over the life of a sampler: of its calls, and of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account

__all__ = ["Counters", "WorkerTotals"]


@dataclass(frozen=True)
class WorkerTotals:
    """Totals of the workers that one slot has had, or of several slots together.

    Attributes:
        num_simulated_steps: number of steps simulated.
        num_restarts: number of attempts to replace a worker.
        last_failure: why the last worker was lost or could not be started; empty if that never happened.
    """

    num_simulated_steps: int = 0
    num_restarts: int = 0
    last_failure: str = ""

    def plus(self, *others: WorkerTotals) -> WorkerTotals:
        """Return the sums, without failures."""
        totals = (self, *others)
        return WorkerTotals(sum(each.num_simulated_steps for each in totals), sum(each.num_restarts for each in totals))


@dataclass
class Counters:
    """Counts of a sampler's calls: deliveries, endings and failures.

    Attributes:
        num_discarded_rounds: number of rounds of streams that were sampled whole and not sent whole. They count neither
            as calls nor as delivered; `num_discarded_steps` and `num_discarded_episodes` are what they had.
    """

    num_completed_calls: int = 0
    num_failed_calls: int = 0
    num_cancelled_calls: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    message_bytes: int = 0
    raw_bytes: int = 0
    num_env_failures: int = 0
    num_retried_episodes: int = 0
    num_failed_episodes: int = 0
    num_straggler_episodes: int = 0
    num_discarded_rounds: int = 0
    num_discarded_steps: int = 0
    num_discarded_episodes: int = 0
    num_non_finite_steps: int = 0

    def count_round(self, account: Account, *, is_sent: bool) -> None:
        """Add a round of a stream that was sampled whole: as a completed call if it was sent."""
        if is_sent:
            self.num_completed_calls += 1
            self.count_delivered(account)
        else:
            self.num_discarded_rounds += 1
            self.num_discarded_steps += account.num_steps
            self.num_discarded_episodes += account.num_episodes

    def count_delivered(self, account: Account) -> None:
        """Add what an ended call has delivered."""
        self.num_steps += account.num_steps
        self.num_episodes += account.num_episodes
        self.message_bytes += account.message_bytes
        self.raw_bytes += account.raw_bytes
        self.num_non_finite_steps += account.num_non_finite_steps

    def count_faults(self, account: Account) -> None:
        """Add what went wrong in an ended call, or took too long."""
        self.num_env_failures += account.env_failures.num_failures
        self.num_retried_episodes += account.num_retried_episodes
        self.num_failed_episodes += account.env_failures.num_skipped
        self.num_straggler_episodes += account.num_straggler_episodes
