"""Accounts: what became of everything that was simulated, for a call, a sampler and its workers."""

from __future__ import annotations

import logging
import math
import operator
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.errors import shorten
from rollserve_wire.moments import OrderedMoments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollserve_server.sampling import EpisodeFailure, MomentsFormat, Population, SequenceSpec

__all__ = [
    "ENVIRONMENT_FAILED",
    "Account",
    "Counters",
    "DeliveredMoments",
    "FailedEpisode",
    "FormMoments",
    "WorkerAccount",
    "WorkerTotals",
]

_log = logging.getLogger(__name__)
ENVIRONMENT_FAILED = "environment_failed"
"""Retry reason, beside the reasons of errors about workers."""
_WORKER_SECONDS = ("sampling_seconds", "encoding_seconds", "environment_seconds", "policy_seconds")
_ROUND_SUMS = (
    "num_carried_steps",
    "num_kept_steps",
    "num_superseded_steps",
    "num_cancelled_steps",
    "num_lost_steps",
    "num_idle_steps",
    "num_prefetched_steps",
    "num_discarded_steps",
    "num_discarded_episodes",
    "num_retried_episodes",
    "num_straggler_episodes",
    "num_broken_off_episodes",
    "num_reassigned_episodes",
    "queued_seconds",
    "waiting_seconds",
    "sending_seconds",
    "paused_seconds",
    "num_pauses",
)
"""Attributes that the account of a stream has of each round, whatever became of its steps."""
_MAX_REPORTED = 64  # episodes in an account
_MAX_TEXT = 256  # characters of an error in an account
_MAX_LINES, _LINE_SECONDS = 4, 0.25
"""Burst of log lines, and the seconds after which one more is allowed."""


@dataclass(eq=False)
class FailedEpisode:
    """An episode whose environment raised an error, or the first of several that run as one.

    Attributes:
        index: index of the episode; in a population, number of the work unit.
        worker: index of the worker that ran it.
        num_attempts: number of attempts that failed.
        text: the last error, in full.
        is_skipped: whether the call goes on without the episode.
    """

    index: int
    worker: int
    num_attempts: int
    text: str
    is_skipped: bool = False

    @classmethod
    def of(cls, worker: int, failure: EpisodeFailure) -> FailedEpisode:
        """Return the episode of a failure that a worker reported."""
        return cls(failure.indices[0], worker, failure.num_attempts, failure.text)

    @property
    def short_text(self) -> str:
        """The beginning of the error."""
        return shorten(self.text, _MAX_TEXT)

    @property
    def final_text(self) -> str:
        """The error, and the number of attempts."""
        return self.text if self.num_attempts == 1 else f"{self.text} (the last of {self.num_attempts} attempts)"


class EnvFailures:
    """Errors that environments raised in one call.

    Attributes:
        num_failures: number of errors.
        num_skipped: number of episodes that the call goes on without.
        reported: by index, the first episodes that failed.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        self.num_skipped = 0
        self.reported: dict[int, FailedEpisode] = {}

    def add(self, worker: int, failure: EpisodeFailure) -> None:
        """Add an error that a worker reported, and log it."""
        self.num_failures += 1
        failed = FailedEpisode.of(worker, failure)
        self._report(failed)
        fate = "given up" if failure.is_final else "runs again"
        _throttled_log.warn(
            "environment failed",
            {"worker": worker, "attempt": failure.num_attempts, "episodes": fate, "error": failed.short_text},
        )

    def skip(self, episodes: Iterable[FailedEpisode]) -> None:
        """Add episodes that the call goes on without; one that stands for several comes once for each of them."""
        for failed in episodes:
            failed.is_skipped = True
            self.num_skipped += 1
            self._report(failed)

    def merge(self, other: EnvFailures) -> None:
        """Put the errors of a prefetch or a round before these; of an episode in both, these count."""
        self.num_failures += other.num_failures
        reported, self.reported = {**other.reported, **self.reported}, {}
        for failed in reported.values():
            self._report(failed)

    def _report(self, failed: FailedEpisode) -> None:
        if failed.index in self.reported or len(self.reported) < _MAX_REPORTED:
            self.reported[failed.index] = failed


class _ThrottledLog:
    """A log that takes a few lines a second, and counts the others."""

    def __init__(self) -> None:
        self._num_left, self._num_silent, self._since = float(_MAX_LINES), 0, 0.0

    def warn(self, event: str, extra: dict[str, object]) -> None:
        now = time.monotonic()
        self._num_left = min(self._num_left + (now - self._since) / _LINE_SECONDS, _MAX_LINES)
        self._since = now
        if self._num_left < 1:
            self._num_silent += 1
            return
        self._num_left -= 1
        silent = {"not_logged_before": self._num_silent} if self._num_silent else {}
        self._num_silent = 0
        _log.warning(event, extra={**extra, **silent})


_throttled_log = _ThrottledLog()


class FormMoments(NamedTuple):
    """The moments that a `MomentsFormat` asks for.

    Attributes:
        form: the format.
        observations: the count, the mean and M2 of each leaf in one array, (1 + 2 K,).
        returns: the count, the mean and M2 of the returns; None without a discount.
    """

    form: MomentsFormat
    observations: dict[str, np.ndarray]
    returns: np.ndarray | None


class DeliveredMoments:
    """Moments of delivered observations and returns, merged in the order of delivery."""

    def __init__(self, forms: Sequence[MomentsFormat]) -> None:
        """Start without steps; messages bring the moments of these formats."""
        self._forms = forms
        sizes = [size for form in forms for size in _sizes(form)]
        self._moments = [OrderedMoments(size) for size in sizes]
        self._widths = [1 + 2 * size for size in sizes]

    def add(self, moments: Sequence[bytes]) -> None:
        """Add the moments of the next message; see `Message.moments`."""
        for ordered, width, data in zip(self._moments, self._widths, moments, strict=False):
            ordered.add(np.frombuffer(data).reshape(-1, width))

    def totals(self) -> list[FormMoments]:
        """Return the moments of all that was added, for each format."""
        found, totals = [], iter([ordered.total() for ordered in self._moments])
        for form in self._forms:
            observations = {name: next(totals) for name, _ in form.leaves}
            found.append(FormMoments(form, observations, None if form.discount is None else next(totals)))
        return found


def _sizes(form: MomentsFormat) -> list[int]:
    """Return the number of elements of each of a format's moments, in the order of `Message.moments`."""
    return [math.prod(shape) for _, shape in form.leaves] + [1] * (form.discount is not None)


@dataclass
class WorkerAccount:
    """A worker's share of a call: its steps and episodes, and its time.

    The seconds of sampling are spent on environments, on the policy, and on recording what both return.
    """

    num_simulated_steps: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    sampling_seconds: float = 0.0
    encoding_seconds: float = 0.0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
    num_missing_steps: int = 0

    def add(self, other: WorkerAccount, *, is_delivered: bool) -> None:
        """Add the share in another call, whose steps and episodes were delivered or not."""
        for name in ("num_simulated_steps", "num_missing_steps", *_WORKER_SECONDS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if is_delivered:
            self.num_steps += other.num_steps
            self.num_episodes += other.num_episodes


@dataclass
class Account:
    """Counts of all steps of a call, by what became of them.

    See `Account` in `protos/rollserve/v1/episode_batch.proto` for the fields.

    Carried and simulated steps together are as many as delivered, kept, superseded, cancelled, lost, idle, discarded,
    stale, overflow and unsent steps together.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    workers: list[WorkerAccount]
    num_carried_steps: int = 0
    num_kept_steps: int = 0
    num_superseded_steps: int = 0
    num_cancelled_steps: int = 0
    num_lost_steps: int = 0
    num_idle_steps: int = 0
    num_prefetched_steps: int = 0
    num_discarded_steps: int = 0
    num_discarded_episodes: int = 0
    num_retried_episodes: int = 0
    num_straggler_episodes: int = 0
    num_broken_off_episodes: int = 0
    num_reassigned_episodes: int = 0
    num_non_finite_steps: int = 0
    row_step_count: int = 0
    message_bytes: int = 0
    raw_bytes: int = 0
    dropped_infos: Counter[str] = field(default_factory=Counter)
    queued_seconds: float = 0.0
    waiting_seconds: float = 0.0
    sending_seconds: float = 0.0
    paused_seconds: float = 0.0
    num_pauses: int = 0
    elapsed_seconds: float = 0.0
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_unsent_steps: int = 0
    lag_step_counts: list[int] = field(default_factory=list)
    worker_idle_seconds: float = 0.0
    update_waiting_seconds: float = 0.0
    client_waiting_seconds: float = 0.0
    retry_reasons: Counter[str] = field(default_factory=Counter)
    env_failures: EnvFailures = field(default_factory=EnvFailures)
    moments: DeliveredMoments | None = None

    @classmethod
    def begin(cls, work: SequenceSpec | Population, first_episode_index: int, num_workers: int) -> Account:
        """Return the account of a call that has done nothing of its work yet."""
        workers = [WorkerAccount() for _ in range(num_workers)]
        return cls(work.root_seed, first_episode_index, work.policy_version, work.env_version, workers)

    @property
    def num_simulated_steps(self) -> int:
        """Number of steps simulated while the call ran."""
        return sum(map(operator.attrgetter("num_simulated_steps"), self.workers))

    @property
    def num_steps(self) -> int:
        """Number of steps delivered."""
        return sum(map(operator.attrgetter("num_steps"), self.workers))

    @property
    def num_missing_steps(self) -> int:
        """Number of steps that a fragment call requested and did not make."""
        return sum(map(operator.attrgetter("num_missing_steps"), self.workers))

    @property
    def num_episodes(self) -> int:
        """Number of episodes delivered."""
        return sum(map(operator.attrgetter("num_episodes"), self.workers))

    def count_retried(self, reason: str, num_episodes: int) -> None:
        """Count episodes that run again, and why."""
        self.num_retried_episodes += num_episodes
        if num_episodes:
            self.retry_reasons[reason] += num_episodes

    def count_env_failure(self, worker: int, failure: EpisodeFailure) -> None:
        """Count an error that a worker's environment raised."""
        self.env_failures.add(worker, failure)
        if not failure.is_final:
            self.count_retried(ENVIRONMENT_FAILED, len(failure.indices))

    def add_round(self, other: Account, fate: str | None) -> None:
        """Add the account of a round to the account of its stream.

        Args:
            other: account of the round.
            fate: attribute that counts the steps that the round's call delivered, if they were discarded.
        """
        self.seed, self.policy_version, self.env_version = other.seed, other.policy_version, other.env_version
        for name in _ROUND_SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for counts, others in ((self.retry_reasons, other.retry_reasons), (self.dropped_infos, other.dropped_infos)):
            counts.update(others)
        self.env_failures.merge(other.env_failures)
        self.env_failures.num_skipped += other.env_failures.num_skipped
        self.workers += [WorkerAccount() for _ in range(len(other.workers) - len(self.workers))]
        for share, added in zip(self.workers, other.workers, strict=False):
            share.add(added, is_delivered=fate is None)
        if fate is None:
            self.message_bytes += other.message_bytes
            self.raw_bytes += other.raw_bytes
            self.num_non_finite_steps += other.num_non_finite_steps
        else:
            setattr(self, fate, getattr(self, fate) + other.num_steps)

    def add_prefetched(self, prefetched: Account) -> None:
        """Add what became of steps simulated between calls; steps that workers still hold are not part of it."""
        self.num_prefetched_steps += prefetched.num_simulated_steps
        self.num_carried_steps += prefetched.num_lost_steps + prefetched.num_idle_steps
        self.num_lost_steps += prefetched.num_lost_steps
        self.num_idle_steps += prefetched.num_idle_steps
        self.num_retried_episodes += prefetched.num_retried_episodes
        self.retry_reasons.update(prefetched.retry_reasons)
        self.env_failures.merge(prefetched.env_failures)


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
