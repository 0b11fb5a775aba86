"""Changes of the number of workers while the pool runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, OverLimitError

if TYPE_CHECKING:
    from rollserve_server.pool.calls.prefetch import Prefetcher
    from rollserve_server.pool.sequences.row_sequences import RowSequences
    from rollserve_server.pool.sequences.sequences import Sequences
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["Resizing"]

_log = logging.getLogger(__name__)


class Resizing:
    """Adds workers behind the last one, and takes them away from there: indices stay positions.

    Calls keep the workers that they began with. What is kept from call to call is of all workers, and ends.
    """

    def __init__(
        self,
        workers: Workers,
        versions: Versions,
        sequences: Sequences,
        row_sequences: RowSequences,
        prefetcher: Prefetcher,
        max_workers: int | None,
        min_workers: int,
    ) -> None:
        """Takes parts of the pool, how many workers there may be (None: any number), and how many have to be."""
        self._workers = workers
        self._versions = versions
        self._sequences = sequences
        self._row_sequences = row_sequences
        self._prefetcher = prefetcher
        self._max_workers = max_workers
        self._min_workers = min_workers

    async def resize(self, num_workers: int) -> int:
        """See `Pool.resize`."""
        if self._max_workers is not None and num_workers > self._max_workers:
            text = f"{num_workers} came, but the server is set to have at most {self._max_workers}"
            raise OverLimitError(text, reason=Reason.TOO_MANY_WORKERS, field="worker_count")
        if num_workers < self._min_workers:
            expected = f"at least {self._min_workers}, of which calls want as many to be healthy"
            raise InvalidValueError.of("worker_count", expected=expected, got=num_workers)
        async with self._versions.unchanging():
            previous = len(self._workers)
            if num_workers != previous:
                self._versions.check_alike()
                self._versions.check_room(num_workers)
                async with self._workers.starting(range(previous, num_workers)) as added:
                    await self._prefetcher.end(drop=True)
                    # Nothing is awaited from here on, so that no call begins with a part of it; and workers are to hear
                    # of what they can forget before they close.
                    self._sequences.drop_kept()
                    self._row_sequences.drop_all()
                    self._workers.resize(num_workers, added)
                _log.info("pool resized", extra={"workers": num_workers, "previous": previous})
        return previous
