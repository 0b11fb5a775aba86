"""Prefetch: runs the episodes of the expected next call, and leaves them on their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.pool.calls.episodes import EpisodeCall

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.plan.claiming import Stretch
    from rollserve_server.pool.sequences.sequences import Sequences
    from rollserve_server.sampling import Order

__all__ = ["Prefetch", "Prefetcher"]


class Prefetch(EpisodeCall):
    """The beginning of a call that may come. It delivers nothing, so that workers stop when their buffers are full.

    The call that comes continues its sequence.
    """

    @property
    def has_failed(self) -> bool:
        """Whether the sequence cannot be continued. A call has to find out the reason itself."""
        return self._failure is not None

    def _next_order(self, worker: int, handle: WorkerHandle) -> Order | None:
        # One at a time, so that a call or an update which comes waits for no more. Calls give workers what they lack.
        if self.sequence.in_flight[worker] or self._parts.versions.lacks(handle):
            return None
        return super()._next_order(worker, handle)

    def _expected_stretch(self, worker: int) -> Stretch | None:
        return None  # only the call that comes knows what it claims

    def _begin_duplicates(self, worker: int) -> bool:
        return False  # nobody waits

    def _advance_claims(self, *, flush: bool = False) -> bool:
        return False  # only the call that comes knows what it claims


class Prefetcher:
    """Runs at most one prefetch, as long as nothing else begins."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences
        self._prefetch: Prefetch | None = None

    @property
    def is_running(self) -> bool:
        """Whether a prefetch was begun and has not ended."""
        return self._prefetch is not None

    def begin(self, prefetch: Prefetch) -> None:
        """Begin a prefetch. The previous one must have ended."""
        self._prefetch = prefetch
        prefetch.start()

    def end(self, *, drop: bool) -> None:
        """End the prefetch, if there is one; to be called before anything else begins.

        Args:
            drop: whether no call can use it any more.
        """
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is None:
            return
        prefetch.stop()
        self._sequences.keep_prefetched(prefetch.sequence, prefetch.account, has_failed=prefetch.has_failed, drop=drop)
        prefetch.sequence.workforce.count_simulated(prefetch.account)
