"""Rests in a long run: all clients pause, and the server keeps as little as possible."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from faults.chaos.updates import Updates

import rollserve

__all__ = ["resting"]

_NUM_VERSIONS = 4  # the number that servers keep by default
_NUM_TINY_CALLS = 6  # more than the work of calls and evaluations that servers keep for the next ones
_WAIT_SECONDS = 180.0
_SETTLING_SECONDS = 5.0


@contextlib.contextmanager
def resting(folder: Path, num_clients: int, updates: Updates, sampler: rollserve.Sampler) -> Iterator[None]:
    """Pause all clients during the block, after small updates and tiny calls have replaced what the server keeps.

    Clients look for the folder `rest` between two calls, free their data, and add a file to confirm it.

    Raises:
        RuntimeError: a client did not pause.
    """
    rest = folder / "rest"
    rest.mkdir()
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while len(list(rest.iterdir())) < num_clients:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"expected {num_clients} clients to rest, got {[path.name for path in rest.iterdir()]}"
                )
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
    """Make tiny calls that replace what the server keeps of former calls."""
    num_rows = sum(worker.num_rows for worker in sampler.status().workers)
    for seed in range(_NUM_TINY_CALLS):
        sampler.obtain_samples(1, seed=seed, max_episode_length=1)
        sampler.obtain_exact_episodes(1, seed=seed, max_episode_length=1)
        sampler.obtain_fragments(num_rows, seed=seed)
        sampler.evaluate(1, seed=seed, max_episode_length=1)
