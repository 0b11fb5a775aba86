"""Pools without a gateway, and batches joined from their deliveries as a client joins them."""

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
from rollserve_server.agents import MlpSpec
from rollserve_server.envs import RowSettings
from rollserve_server.gateway.messages.sampling import account_to_proto
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
    WorkerHandle,
)
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.pool.calls.population import PopulationCall
from rollserve_server.sampling import WorkerConfig

CARTPOLE = rollserve.EnvSpec("CartPole-v1")
CONFIG = PoolConfig(
    num_workers=2,
    rows=RowSettings("rows", num_rows=4),
    worker_buffer_bytes=1 << 26,
    window_bytes=1 << 26,
    seed=7,
    start_seconds=60,
    straggler_factor=0.0,  # test machines may be slow enough to make any episode a straggler
)


class RecordingBackend:
    """A backend that records the handles of its workers, so that tests can call or kill them.

    Attributes:
        handles: handle of the newest worker of each index.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.handles: dict[int, WorkerHandle] = {}

    def create_worker(self, worker_index: int, config: WorkerConfig) -> WorkerHandle:
        handle = self.handles[worker_index] = self._backend.create_worker(worker_index, config)
        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@contextlib.asynccontextmanager
async def pool_of(
    backend: Backend, env: rollserve.EnvSpec = CARTPOLE, *, num_rows: int | None = None, **changes: Any
) -> AsyncIterator[Pool]:
    """Yield a pool that steps environments row by row, unless their spec has another vectorization."""
    if num_rows is not None:
        changes["rows"] = RowSettings("rows", num_rows)
    config = PoolConfig(**{**CONFIG.__dict__, **changes})
    pool = await Pool.start(backend, config, env)
    try:
        yield pool
    finally:
        await pool.close()


def cartpole_agent(seed: int = 0) -> MlpSpec:
    """Return an MLP for CartPole-v1 whose actions are far from uniform, so that seeds differ in their episodes."""
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(space, rollserve.spaces.Discrete(2), seed=seed)
    parameters = {name: 10 * value if name == "2/weight" else value for name, value in agent.parameters.items()}
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, parameters)


async def sample(
    pool: Pool, target: Target, *, max_message_bytes: int = 1 << 22, **options: Any
) -> rollserve.EpisodeBatch:
    """Return the batch that a client joins from the deliveries of one call."""
    reader, parts = StreamReader(pb.ObtainSamplesRequest()), []
    async with contextlib.aclosing(pool.sample(SampleRequest(target, max_message_bytes, **options))) as items:
        async for item in items:
            parts += read(reader, item)
    return join_batches(parts, reader.end())


async def evaluate(pool: Pool, num_episodes: int, *, parts: list[object] | None = None, **options: Any) -> Evaluation:
    """Return the result of an evaluation; append all items before it to `parts`."""
    request = EvaluationRequest(num_episodes, EvaluationOptions(**options))
    return await _ended(pool.evaluate(request), parts)


async def evaluate_population(
    pool: Pool, parameters: Mapping[str, np.ndarray], num_episodes: int, *, shares_episodes: bool = True, **options: Any
) -> Evaluation:
    """Return the result of an evaluation of a population."""
    request = PopulationRequest(parameters, num_episodes, EvaluationOptions(**options), shares_episodes)
    return await _ended(pool.evaluate_population(request), None)


async def _ended(items: AsyncGenerator[Any, None], parts: list[object] | None) -> Evaluation:
    async with contextlib.aclosing(items):
        received = [item async for item in items]
    if parts is not None:
        parts += received[:-1]
    assert isinstance(received[-1], Evaluation)
    return received[-1]


def read(reader: StreamReader, item: object) -> list[rollserve.EpisodeBatch]:
    """Return the batches in an item of a pool's stream, after the reader has read them."""
    batches = []
    if isinstance(item, Delivery):
        for message in item.messages:
            data = item.buffer[message.offset : message.offset + message.size]
            batches.append(reader.read(data.data))
    elif isinstance(item, Account):
        reader.read(pb.ObtainSamplesResponse(account=account_to_proto(item)).SerializeToString())
    return [batch for batch in batches if batch is not None]


def adds_up(account: rollserve.Account | Account) -> bool:
    """Whether carried and simulated steps equal delivered, kept and dropped steps."""
    if isinstance(account, Account):
        account = account_from_proto(account_to_proto(account))
    accounted = account.num_steps + account.num_kept_steps + account.num_dropped_steps
    return account.num_carried_steps + account.num_simulated_steps == accounted


def kill_one(pool: Pool, source: random.Random) -> None:
    """Kill a random worker that the pool takes for healthy."""
    victim = source.choice([worker for worker in pool.status().workers if worker.healthy])
    with contextlib.suppress(ProcessLookupError):  # killed before, and the pool has not noticed yet
        os.kill(victim.identity.process_id, signal.SIGKILL)


def calls_of(pool: Pool) -> list[EpisodeCall]:
    """Return a list to which the pool's calls for episodes are appended as they begin."""
    calls: list[EpisodeCall] = []
    begin = pool._begin_call

    def begin_and_record(*arguments: Any) -> EpisodeCall:
        calls.append(begin(*arguments))
        return calls[-1]

    pool._begin_call = begin_and_record  # type: ignore[method-assign]
    return calls


def population_calls_of(pool: Pool) -> list[PopulationCall]:
    """Return a list to which the pool's evaluations of populations are appended as they begin."""
    calls: list[PopulationCall] = []
    begin = pool._evaluations._begin_population

    async def begin_and_record(*arguments: Any) -> PopulationCall:
        calls.append(await begin(*arguments))
        return calls[-1]

    pool._evaluations._begin_population = begin_and_record  # type: ignore[method-assign]
    return calls


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
