"""Calls that have begun while a test goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from pools import sample, until

import rollserve
from rollserve_server.pool import Pool

__all__ = ["begin_to_sample"]


async def begin_to_sample(pool: Pool, target: Any, **options: Any) -> asyncio.Task[rollserve.EpisodeBatch]:
    """Start a call, and return its task once the workers sample for it."""
    before = pool.status().num_simulated_steps
    running = asyncio.create_task(sample(pool, target, **options))
    await until(lambda: pool.status().num_simulated_steps > before)
    return running
