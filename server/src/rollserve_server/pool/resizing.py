"""Changes of the number of workers while the pool runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.calls.pool_parts import PoolParts
    from rollserve_server.pool.calls.prefetch import Prefetcher

__all__ = ["resize"]

_log = logging.getLogger(__name__)


async def resize(parts: PoolParts, prefetcher: Prefetcher, num_workers: int) -> int:
    """Change the number of workers, as `Pool.resize` does; return the previous one.

    Workers are added behind the last one, and removed from there: indices stay positions. Calls keep the workers that
    they began with. What is kept from call to call depends on all workers, and ends.
    """
    workers = parts.workers
    workers.check_number(num_workers)
    async with parts.versions.changing_envs, parts.versions.updating:
        previous = len(workers)
        if num_workers != previous:
            parts.versions.check_alike()
            parts.env_updates.check_room(num_workers)
            async with workers.starting(range(previous, num_workers)) as added:
                prefetcher.end(drop=True)
                # Nothing is awaited from here on, so that no call begins with a part of the change; and workers
                # hear what they can forget before they are closed.
                parts.sequences.drop_kept()
                parts.row_sequences.drop_all()
                workers.resize(num_workers, added)
            _log.info("pool resized", extra={"workers": num_workers, "previous": previous})
    return previous
