"""What is sampled between two calls, for the second of them."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from rollserve_server.pool.calls.episodes import EpisodeCall

if TYPE_CHECKING:
    from rollserve_server.pool.sequences.sequences import Sequences
    from rollserve_server.sampling import Order

__all__ = ["Prefetch", "Prefetcher"]


class Prefetch(EpisodeCall):
    """The beginning of a call that may come: runs its episodes, and leaves them with their workers.

    It delivers nothing, so that workers stop at what they may hold. The call that comes goes on with its stream.
    """

    def start(self) -> None:
        """Sets the workers to work."""
        self._drivers = [asyncio.create_task(self._keep_driving(worker)) for worker in range(len(self._workforce))]

    async def end(self) -> None:
        """Gives them no more to do; what they are doing is answered to whoever goes on. May be called again."""
        for driver in self._drivers:
            driver.cancel()
        await asyncio.gather(*self._drivers, return_exceptions=True)

    @property
    def has_failed(self) -> bool:
        """Whether the stream is of no more use. A call is to find out by itself."""
        return self._failure is not None

    def _next_order(self, worker: int, stuck: bool) -> Order | None:
        """See EpisodeCall. One at a time, so that a call or an update which comes waits for no more."""
        order = None if self.sequence.in_flight[worker] else super()._next_order(worker, stuck)
        return order and dataclasses.replace(order, early=False)

    def _begin_duplicates(self, worker: int) -> bool:
        """See EpisodeCall. Nobody waits for any of it."""
        return False

    def _advance_claims(self, *, flush: bool = False) -> bool:
        """See EpisodeCall. Only the call that comes knows what it claims."""
        return False


class Prefetcher:
    """Samples ahead of one call at a time, as long as nothing else begins."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences
        self._prefetch: Prefetch | None = None

    @property
    def is_running(self) -> bool:
        """Whether something was begun and has not been taken back."""
        return self._prefetch is not None

    def begin(self, prefetch: Prefetch) -> None:
        """Begins. What was begun before has to have ended."""
        self._prefetch = prefetch
        prefetch.start()

    async def end(self, *, drop: bool) -> None:
        """Ends what was begun, if anything was; to be awaited before anything else begins.

        Args:
            drop: whether no call can use it any more.
        """
        while (prefetch := self._prefetch) is not None:
            await prefetch.end()
            if prefetch is self._prefetch:  # else somebody else has waited for the same
                self._prefetch = None
                self._sequences.keep_prefetched(prefetch, drop=drop)
                prefetch.count_simulated()
