"""Changes of the number of workers while the pool runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, OverLimitError

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
    workers, settings = parts.workers, parts.settings
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
