"""Calls in a process that `multiprocessing` spawns, which has nothing of this one but what is pickled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any

import rollserve


def in_spawned_process(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function in a new process, and return or raise what it returns or raises."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments, **options).result(timeout=120)


def awaited(sampler: rollserve.AsyncSampler, method: str, *arguments: Any, **options: Any) -> Any:
    """Await a method of a sampler in an event loop of its own."""

    async def call() -> Any:
        async with sampler:
            return await getattr(sampler, method)(*arguments, **options)

    return asyncio.run(call())
