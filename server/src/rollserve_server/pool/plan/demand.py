"""Demand: how many episodes a call needs, as far as the lengths of earlier episodes tell."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from rollserve_server.pool.interface.targets import AtLeast

if TYPE_CHECKING:
    from rollserve_server.pool.plan.claiming import Claiming
    from rollserve_server.pool.plan.ledger import EpisodeSize
    from rollserve_server.pool.plan.length_estimate import LengthEstimate

__all__ = ["Demand"]


class Demand:
    """The number of episodes that a call needs beside the ones it has begun."""

    def __init__(
        self, claiming: Claiming, estimate: LengthEstimate, *, num_partial_steps: int, max_unknown: int
    ) -> None:
        """Count what the ledger has as begun.

        Args:
            claiming: claims of the call; they and the ledger are only read here.
            estimate: estimate of the lengths of the sequence's episodes.
            num_partial_steps: steps of the ledger's unfinished episodes.
            max_unknown: maximum number of episodes that run while their lengths are unknown.
        """
        ledger = claiming.ledger
        self._claiming = claiming
        self._estimate = estimate
        self._max_unknown = max_unknown
        self._first_index = ledger.next_index
        self._num_begun = len(ledger.workers.keys() | ledger.failed.keys())
        self._num_partial_steps = num_partial_steps
        # Of finished episodes: the steps, and the steps as the target counts them.
        self._num_finished_steps = sum(size.num_steps for size in ledger.sizes.values())
        self._num_counted_steps = sum(map(claiming.steps_of, ledger.sizes.values()))

    def num_more(self, num_running: int) -> int:
        """Return how many more episodes the call needs; below 0 if more run than it needs.

        Args:
            num_running: number of episodes that have begun and not ended.
        """
        if not isinstance(self._claiming.target, AtLeast):
            assert self._claiming.stop_index is not None  # noqa: S101
            return self._claiming.stop_index - self._first_index - self._num_begun
        num_missing_steps = self._in_env_steps(self._claiming.target.num_steps - self._num_counted_steps)
        # The expected length of an episode that has made s steps lies between the mean, if all lengths are equal, and
        # the mean plus s, if it may end at any time.
        if num_running:
            num_missing_steps -= round(self._estimate.spread * self._num_partial_steps)
        mean = self._estimate.mean
        if mean is None:
            return min(math.ceil(num_missing_steps), self._max_unknown) - num_running
        return math.ceil(num_missing_steps / mean) - num_running

    def stop_index(self, num_more: int) -> int:
        """Return the index before which episodes may begin, if the call needs that many more.

        Where episodes belong to workers, an earlier episode of one worker may begin after later ones of others, which
        it blocks: so the index is never below the number of episodes that have begun.
        """
        stop = self._first_index + self._num_begun + max(num_more, 0)
        return stop if self._claiming.stop_index is None else min(stop, self._claiming.stop_index)

    def needed_before(self) -> int | None:
        """Return the index before which all needed episodes are; None if that is not known."""
        mean = self._estimate.mean
        if not isinstance(self._claiming.target, AtLeast) or mean is None:
            return self._claiming.stop_index
        num_missing_steps = self._in_env_steps(self._claiming.target.num_steps - self._claiming.num_steps)
        return self._claiming.next_index + max(math.ceil(num_missing_steps / mean), 1)

    def awaited(self) -> Iterator[int]:
        """Yield running episodes that the call needs, in their order."""
        ledger, index = self._claiming.ledger, self._claiming.next_index
        num_steps = float(self._claiming.num_steps)
        while (index in ledger.workers or index in ledger.failed) and index != self._claiming.stop_index:
            if index in ledger.sizes:
                num_steps += self._claiming.steps_of(ledger.sizes[index])
            elif index in ledger.workers:
                yield index
                num_steps += (self._estimate.mean or 1) / self._in_env_steps(1)
            index += 1
            if isinstance(self._claiming.target, AtLeast) and num_steps >= self._claiming.target.num_steps:
                break

    def begin(self, num_episodes: int) -> None:
        """Record that episodes have begun."""
        self._num_begun += num_episodes

    def simulate(self, num_steps: int) -> None:
        """Record steps of running episodes; below 0 if more were thrown away."""
        self._num_partial_steps = max(self._num_partial_steps + num_steps, 0)

    def finish(self, size: EpisodeSize) -> None:
        """Record the end of an episode of that size."""
        self._num_partial_steps = max(self._num_partial_steps - size.num_steps, 0)
        self._num_finished_steps += size.num_steps
        self._num_counted_steps += self._claiming.steps_of(size)

    def lose(self, num_lost: int, finished: Collection[EpisodeSize], num_open: int, num_all_open: int) -> None:
        """Record that a worker is gone.

        Args:
            num_lost: number of its episodes that begin again.
            finished: sizes of its finished episodes.
            num_open: number of its runs that had not ended.
            num_all_open: the same number for all workers, including this one.
        """
        self._num_begun -= num_lost
        self._num_finished_steps -= sum(size.num_steps for size in finished)
        self._num_counted_steps -= sum(map(self._claiming.steps_of, finished))
        if num_open:  # the steps of single runs are not known: assume that all have the same number
            self._num_partial_steps -= self._num_partial_steps * num_open // num_all_open

    def _in_env_steps(self, num_steps: int) -> float:
        """Return how many steps of the environment have so many steps as the target counts them, about."""
        if not self._num_counted_steps or self._num_counted_steps == self._num_finished_steps:
            return num_steps
        return num_steps * self._num_finished_steps / self._num_counted_steps
