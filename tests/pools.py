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
from rollserve_server.envs import RowSettings
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.pool import (
    Account,
    Backend,
    Delivery,
    Evaluation,
    EvaluationOptions,
    EvaluationRequest,
    Pool,
    PoolConfig,
    PopulationRequest,
    SampleRequest,
    Target,
)
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.pool.calls.population import PopulationCall

CARTPOLE = rollserve.EnvSpec("CartPole-v1")
CONFIG = PoolConfig(
    num_workers=2,
    rows=RowSettings("rows", num_rows=4),
    worker_buffer_bytes=1 << 26,
    window_bytes=1 << 26,
    seed=7,
    start_seconds=60,
    straggler_factor=0.0,  # machines that run tests may be slow enough for anything
)


@contextlib.asynccontextmanager
async def pool_of(
    backend: Backend, env: rollserve.EnvSpec = CARTPOLE, *, num_rows: int | None = None, **changes: Any
) -> AsyncIterator[Pool]:
    """A pool whose environments are stepped row by row unless they say otherwise."""
    if num_rows is not None:
        changes["rows"] = RowSettings("rows", num_rows)
    config = PoolConfig(**{**CONFIG.__dict__, **changes})
    pool = await Pool.start(backend, config, env)
    try:
        yield pool
    finally:
        await pool.close()


async def sample(
    pool: Pool, target: Target, *, max_message_bytes: int = 1 << 22, **options: Any
) -> rollserve.EpisodeBatch:
    """What a client would make of the pool's deliveries."""
    reader, parts = StreamReader(pb.ObtainSamplesRequest()), []
    async with contextlib.aclosing(pool.sample(SampleRequest(target, max_message_bytes, **options))) as items:
        async for item in items:
            parts += read(reader, item)
    return join_batches(parts, reader.end())


async def evaluate(pool: Pool, num_episodes: int, *, parts: list[object] | None = None, **options: Any) -> Evaluation:
    """What an evaluation of the pool ends with; all that comes before is added to `parts`."""
    request = EvaluationRequest(num_episodes, EvaluationOptions(**options))
    return await _ended(pool.evaluate(request), parts)


async def evaluate_population(
    pool: Pool, parameters: Mapping[str, np.ndarray], num_episodes: int, *, shares_episodes: bool = True, **options: Any
) -> Evaluation:
    """The same of a population."""
    request = PopulationRequest(parameters, num_episodes, EvaluationOptions(**options), shares_episodes)
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
    """The calls that begin from now on."""
    calls: list[EpisodeCall] = []
    begin = pool._begin_call

    def begin_and_tell(*arguments: Any) -> EpisodeCall:
        calls.append(begin(*arguments))
        return calls[-1]

    pool._begin_call = begin_and_tell  # type: ignore[method-assign]
    return calls


def population_calls_of(pool: Pool) -> list[PopulationCall]:
    """The same of those that evaluate populations."""
    calls: list[PopulationCall] = []
    begin = pool._evaluations._begin_population

    async def begin_and_tell(*arguments: Any) -> PopulationCall:
        calls.append(await begin(*arguments))
        return calls[-1]

    pool._evaluations._begin_population = begin_and_tell  # type: ignore[method-assign]
    return calls


async def until(condition: Callable[[], bool]) -> None:
    """Waits until something has come true that nothing tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
