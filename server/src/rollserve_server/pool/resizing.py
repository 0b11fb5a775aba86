"""Changes of the number of workers while the pool runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, OverLimitError

if TYPE_CHECKING:
    from rollserve_server.pool.calls.pool_parts import PoolParts
    from rollserve_server.pool.calls.prefetch import Prefetcher
    from rollserve_server.pool.sequences.row_sequences import RowSequences
    from rollserve_server.pool.sequences.sequences import Sequences

__all__ = ["Resizing"]

_log = logging.getLogger(__name__)


class Resizing:
    """Adds workers behind the last one, and removes them from there: indices stay positions.

    Calls keep the workers that they began with. What is kept from call to call depends on all workers, and ends.
    """

    def __init__(
        self, parts: PoolParts, sequences: Sequences, row_sequences: RowSequences, prefetcher: Prefetcher
    ) -> None:
        self._parts = parts
        self._sequences = sequences
        self._row_sequences = row_sequences
        self._prefetcher = prefetcher

    async def resize(self, num_workers: int) -> int:
        """Change the number of workers, as `Pool.resize` does; return the previous one."""
        workers, settings = self._parts.workers, self._parts.settings
        if settings.max_workers is not None and num_workers > settings.max_workers:
            raise OverLimitError.of(
                "worker_count",
                expected=f"at most {settings.max_workers}, as --max-workers says",
                got=num_workers,
                reason=Reason.TOO_MANY_WORKERS,
            )
        if num_workers < settings.health.min_healthy_workers:
            expected = f"at least {settings.health.min_healthy_workers}, which must be healthy for calls to begin"
            raise InvalidValueError.of("worker_count", expected=expected, got=num_workers)
        async with self._parts.versions.updating:
            previous = len(workers)
            if num_workers != previous:
                self._parts.versions.check_alike()
                self._parts.env_updates.check_room(num_workers)
                async with workers.starting(range(previous, num_workers)) as added:
                    await self._prefetcher.end(drop=True)
                    # Nothing is awaited from here on, so that no call begins with a part of the change; and workers
                    # hear what they can forget before they are closed.
                    self._sequences.drop_kept()
                    self._row_sequences.drop_all()
                    workers.resize(num_workers, added)
                _log.info("pool resized", extra={"workers": num_workers, "previous": previous})
        return previous
