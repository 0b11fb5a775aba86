"""Pools without a gateway, and what a client would make of their deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np

import rollserve
from rollserve._calls.joining import join_batches
from rollserve._calls.stream_reader import StreamReader
from rollserve.account import account_from_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import WorkerLostError
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.pool import (
    Account,
    Backend,
    Delivery,
    Evaluation,
    EvaluationRequest,
    Fragments,
    MessageFormat,
    Pool,
    PopulationRequest,
    SampleRequest,
    SamplingOptions,
    Target,
)
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.pool.calls.population import PopulationCall
from rollserve_server.pool.workers.slot import WorkerSlot
from rollserve_server.sampling import PLAIN, ColumnFormat
from rollserve_server.settings import PoolSettings

CARTPOLE = rollserve.EnvSpec("CartPole-v1")
SETTINGS: dict[str, Any] = {
    "workers": 2,
    "vectorization": "rows",
    "rows": 4,
    "worker_buffer_bytes": 1 << 26,
    "call_window_bytes": 1 << 26,
    "hold_memory": False,
    "seed": 7,
    "start_seconds": 60,
    "straggler_factor": 0.0,  # machines that run tests may be slow enough for anything
}
"""Settings of the tests' pools, by their flat names."""


def settings(**changes: Any) -> PoolSettings:
    """Return the settings of the tests' pools with changes."""
    return PoolSettings.from_flat(SETTINGS | changes)


@contextlib.asynccontextmanager
async def pool_of(backend: Backend, env: rollserve.EnvSpec = CARTPOLE, **changes: Any) -> AsyncIterator[Pool]:
    """Run a pool of two workers with four rows each, and changes to these settings."""
    pool = await Pool.start(backend, settings(**changes), env)
    try:
        yield pool
    finally:
        await pool.close()


def sample_request(
    target: Target | Fragments,
    max_message_bytes: int = 1 << 22,
    *,
    columns: ColumnFormat | None = PLAIN,
    num_workers: int | None = None,
    prefetch: bool = False,
    **options: Any,
) -> SampleRequest:
    """Return a request; `options` are fields of `SamplingOptions`."""
    messages = MessageFormat(max_message_bytes, columns)
    return SampleRequest(target, messages, SamplingOptions(**options), num_workers=num_workers, prefetch=prefetch)


async def sample(
    pool: Pool, target: Target | Fragments, *, max_message_bytes: int = 1 << 22, **options: Any
) -> rollserve.EpisodeBatch:
    """Sample a target, and return the batch that a client would make of the deliveries."""
    reader, parts = StreamReader(pb.ObtainSamplesRequest()), []
    async with contextlib.aclosing(pool.sample(sample_request(target, max_message_bytes, **options))) as items:
        async for item in items:
            parts += read(reader, item)
    return join_batches(parts, reader.end())


async def evaluate(
    pool: Pool,
    num_episodes: int,
    *,
    env: rollserve.EnvSpec | None = None,
    parts: list[object] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate, and return the evaluation; all that is yielded before it is added to `parts`."""
    request = EvaluationRequest(num_episodes, SamplingOptions(**options), env)
    return await _ended(pool.evaluate(request), parts)


async def evaluate_population(
    pool: Pool,
    parameters: Mapping[str, np.ndarray],
    num_episodes: int,
    *,
    env: rollserve.EnvSpec | None = None,
    shares_episodes: bool = True,
    **options: Any,
) -> Evaluation:
    """Evaluate a population, and return the evaluation."""
    request = PopulationRequest(parameters, num_episodes, SamplingOptions(**options), env, shares_episodes)
    return await _ended(pool.evaluate_population(request), None)


async def _ended(items: AsyncGenerator[Any, None], parts: list[object] | None) -> Evaluation:
    async with contextlib.aclosing(items):
        came = [item async for item in items]
    if parts is not None:
        parts += came[:-1]
    assert isinstance(came[-1], Evaluation)
    return came[-1]


def read(reader: StreamReader, item: object) -> list[rollserve.EpisodeBatch]:
    """The batches in what a pool gives, which the reader takes notice of."""
    batches = []
    if isinstance(item, Delivery):
        for message in item.messages:
            data = item.buffer[message.offset : message.offset + message.size]
            batches.append(reader.read(data.data))
    elif isinstance(item, Account):
        reader.read(pb.ObtainSamplesResponse(account=account_to_proto(item)).SerializeToString())
    return [batch for batch in batches if batch is not None]


def adds_up(account: rollserve.Account | Account) -> bool:
    if isinstance(account, Account):
        account = account_from_proto(account_to_proto(account))
    told = account.num_steps + account.num_kept_steps + account.num_dropped_steps
    return account.num_carried_steps + account.num_simulated_steps == told


def kill_one(pool: Pool, source: random.Random) -> None:
    """Kills a worker that nobody has missed yet."""
    victim = source.choice([worker for worker in pool.status().workers if worker.healthy])
    with contextlib.suppress(ProcessLookupError):  # killed before, and nobody has noticed yet
        os.kill(victim.identity.process_id, signal.SIGKILL)


def calls_of(pool: Pool) -> list[EpisodeCall]:
    """Return a list to which the pool's calls for episodes, and its prefetches, are added from now on."""
    calls: list[EpisodeCall] = []
    samplings = pool._samplings
    make = samplings._episode_call

    def make_and_add(*arguments: Any) -> EpisodeCall:
        calls.append(make(*arguments))
        return calls[-1]

    samplings._episode_call = make_and_add  # type: ignore[method-assign,assignment]
    return calls


def population_calls_of(pool: Pool) -> list[PopulationCall]:
    """Return a list to which the pool's evaluations of populations are added from now on."""
    calls: list[PopulationCall] = []
    evaluations = pool._evaluations
    make = evaluations._population_call

    async def make_and_add(*arguments: Any) -> PopulationCall:
        calls.append(await make(*arguments))
        return calls[-1]

    evaluations._population_call = make_and_add  # type: ignore[method-assign]
    return calls


def num_running(pool: Pool) -> int:
    """Return the number of calls that have begun and not ended, evaluations included."""
    return pool._parts.num_calls


def slot_of(pool: Pool, worker: int) -> WorkerSlot:
    """Return the slot of a worker."""
    return pool._parts.workers[worker]


def run_of(pool: Pool) -> str:
    """Return the name of the sampler's run."""
    return pool._parts.run


def kept_versions(pool: Pool) -> tuple[list[int], list[int]]:
    """Return the numbers of the agents and the environments that are kept, oldest first."""
    versions = pool._parts.versions
    return list(versions.agents), list(versions.envs)


def set_start_seconds(pool: Pool, seconds: float) -> None:
    """Change how long the pool's workers may take to start from now on, also to 0, which no setting can be."""
    health = pool._parts.settings.health
    object.__setattr__(health, "start_seconds", seconds)


def lose_worker(pool: Pool, worker: int) -> None:
    """Have the pool take a worker for lost, and replace it."""
    error = WorkerLostError(f"worker {worker} is lost: for a test", worker)
    pool._parts.workers.lose(worker, slot_of(pool, worker).handle, error)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until something has come true that nothing tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
