"""Rests in a long run: everybody stops for a moment, and the server has only little to keep."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from faults.chaos.updates import Updates

import rollserve

__all__ = ["resting"]

_NUM_VERSIONS = 4
"""As many as servers keep."""
_NUM_TINY_CALLS = 6
"""More than streams, sequences and environments of evaluations that are kept for the next calls."""
_WAIT_SECONDS = 180.0
_SETTLING_SECONDS = 5.0


@contextlib.contextmanager
def resting(folder: Path, num_clients: int, updates: Updates, sampler: rollserve.Sampler) -> Iterator[None]:
    """A block in which no client does anything, and the server keeps what small updates and tiny calls have left.

    The clients look for the folder `rest` between two calls, let go of what they hold, and add a file of their own.

    Raises:
        RuntimeError: a client does not come to rest.
    """
    rest = folder / "rest"
    rest.mkdir()
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while len(list(rest.iterdir())) < num_clients:
            if time.monotonic() > deadline:
                raise RuntimeError(f"clients do not come to rest: {[path.name for path in rest.iterdir()]} do")
            time.sleep(0.1)
        for _ in range(_NUM_VERSIONS):
            updates.update_env(0.0)
            updates.update_agent(0.0)
        _displace(sampler)
        time.sleep(_SETTLING_SECONDS)
        yield
    finally:
        shutil.rmtree(rest)


def _displace(sampler: rollserve.Sampler) -> None:
    """Has tiny calls take the places of what is kept of those before."""
    num_rows = sum(worker.num_rows for worker in sampler.status().workers)
    for seed in range(_NUM_TINY_CALLS):
        sampler.obtain_samples(1, seed=seed, max_episode_length=1)
        sampler.obtain_exact_episodes(1, seed=seed, max_episode_length=1)
        sampler.obtain_fragments(num_rows, seed=seed)
        sampler.evaluate(1, seed=seed, max_episode_length=1)
