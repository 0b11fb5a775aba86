"""Assembly of a pool: decided settings, parts, and workers with their environments."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

from rollserve_server.envs import worker_observation_bytes
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.accounts.episode_log import EpisodeLog
from rollserve_server.pool.calls.pool_parts import PoolParts
from rollserve_server.pool.sequences.row_sequences import RowSequences
from rollserve_server.pool.sequences.sequences import Sequences
from rollserve_server.pool.takeover import own_seed
from rollserve_server.pool.versions.env_updates import EnvUpdates
from rollserve_server.pool.versions.eviction import Eviction
from rollserve_server.pool.versions.selection import Selection
from rollserve_server.pool.versions.versions import Versions
from rollserve_server.pool.workers.broadcast import Broadcast

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import Backend
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.state.sampler_state import SamplerState
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["decide", "make_parts", "start_workers"]

_DEFAULT_FACTOR = 4
"""Workers per core that clients may ask for by default: more would fill a machine that has no cores for them."""
_EPOCH_BITS = 40
"""Bits of the numbers that name work; the epoch stands above them, so that servers of one sampler use different
names."""
_SEED_BITS = 53
"""Bits of a random root seed: as many as an integer has in JavaScript."""


def decide(settings: PoolSettings, default: int) -> PoolSettings:
    """Return settings with a seed, numbers of workers and a sampler's memory; `default` is a worker for each core."""
    num_workers = settings.workers or min(default, settings.max_workers or default)
    max_workers = settings.max_workers or max(_DEFAULT_FACTOR * default, num_workers)
    seed = secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed
    health = settings.health
    if health.sampler_observation_bytes is None:
        num_bytes = _DEFAULT_FACTOR * default * worker_observation_bytes(health)
        health = health.model_copy(update={"sampler_observation_bytes": num_bytes})
    changes = {"workers": num_workers, "max_workers": max_workers, "seed": seed, "health": health}
    return settings.model_copy(update=changes)


def make_parts(backend: Backend, settings: PoolSettings, journal: Journal, state: SamplerState | None) -> PoolParts:
    """Make the parts of a pool, without workers.

    Args:
        backend: creates workers.
        settings: settings with a seed and numbers of workers.
        journal: keeps what outlives the server.
        state: what an earlier server left; None for a new run.
    """
    versions = Versions(backend, settings, state)
    assert settings.seed is not None  # noqa: S101  # `decide` has set it
    is_first = state is None and not journal.follows_loss
    seed = settings.seed if is_first else own_seed(settings.seed, journal.epoch)
    ids, max_kept = itertools.count((journal.epoch - 1 << _EPOCH_BITS) + 1), settings.calls.max_calls
    return PoolParts(
        settings,
        run=secrets.token_hex(8) if state is None else state.run,
        seed=settings.seed,
        ids=ids,
        workers=versions.workers,
        versions=versions,
        selection=Selection(versions, settings.agents),
        env_updates=EnvUpdates(versions, journal, settings),
        eviction=Eviction(versions),
        sequences=Sequences(seed, max_kept, ids),
        row_sequences=RowSequences(seed, max_kept, ids),
        journal=journal,
        episode_log=EpisodeLog(settings.metrics),
    )


async def start_workers(parts: PoolParts, env: EnvSpec, state: SamplerState | None) -> None:
    """Start the workers of a pool, or take over the workers that an earlier server left.

    Args:
        parts: parts of the pool.
        env: first environment of a new run.
        state: what an earlier server left; None for a new run.

    Raises:
        WorkerLostError: a worker did not start in time, or none did.
        InvalidValueError: more healthy workers are required than there are; or the environment cannot be made.
        NotFoundError, NotAllowedError: the environment cannot be made.
    """
    num_workers, min_healthy = parts.settings.workers, parts.settings.health.min_healthy_workers
    assert num_workers is not None  # noqa: S101  # `decide` has set it
    if min_healthy > num_workers:
        whose = "the number of workers" if state is None else "the number of workers that the sampler has"
        raise InvalidValueError.of("min_healthy_workers", expected=f"at most {num_workers}, {whose}", got=min_healthy)
    await parts.workers.start(num_workers)
    if state is None:
        await parts.env_updates.update([env], per_worker=False)
    else:
        take_over = parts.versions.take_over
        await Broadcast(parts.workers, take_over, wait_for_lost=False, isolate_failures=True).answers()
        parts.workers.resume_totals(state.snapshot.workers, state.snapshot.departed)
