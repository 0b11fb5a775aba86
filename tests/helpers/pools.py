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
from support import equal

import rollserve
from rollserve._calls.joining import join_batches
from rollserve._calls.responses import read_response
from rollserve.account import account_from_proto
from rollserve_server.agents import MlpSpec
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
    Progress,
    SampleRequest,
    SamplingOptions,
    Target,
    WorkerHandle,
)
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.sampling import PLAIN, ColumnFormat
from rollserve_server.settings import PoolSettings, WorkerSettings
from rollserve_wire.v1 import episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

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
    "straggler_factor": 0.0,  # test machines may be slow enough to make any episode a straggler
}
"""Settings of the tests' pools, by their flat names."""


def settings(**changes: Any) -> PoolSettings:
    """Return the settings of the tests' pools with changes."""
    return PoolSettings.from_flat(SETTINGS | changes)


class RecordingBackend:
    """A backend that records the handles of its workers, so that tests can call or kill them.

    Attributes:
        handles: handle of the newest worker of each index.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.handles: dict[int, WorkerHandle] = {}

    def create_worker(self, worker_index: int, config: WorkerSettings) -> WorkerHandle:
        handle = self.handles[worker_index] = self._backend.create_worker(worker_index, config)
        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


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
    observation_moments: bool = False,
    return_discount: float | None = None,
    **options: Any,
) -> SampleRequest:
    """Return a request; `options` are fields of `SamplingOptions`."""
    return SampleRequest(
        target,
        MessageFormat(max_message_bytes, columns),
        SamplingOptions(**options),
        num_workers=num_workers,
        prefetch=prefetch,
        observation_moments=observation_moments,
        return_discount=return_discount,
    )


def cartpole_agent(seed: int = 0) -> MlpSpec:
    """Return an MLP for CartPole-v1 whose actions are far from uniform, so that seeds differ in their episodes."""
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(space, rollserve.spaces.Discrete(2), seed=seed)
    parameters = {name: 10 * value if name == "2/weight" else value for name, value in agent.parameters.items()}
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, parameters)


async def sample(
    pool: Pool,
    target: Target | Fragments,
    *,
    max_message_bytes: int = 1 << 22,
    progress: list[Progress] | None = None,
    **options: Any,
) -> rollserve.EpisodeBatch:
    """Return the batch that a client joins from the deliveries of one call; append what it hears to `progress`."""
    reading = Reading()
    async with contextlib.aclosing(pool.sample(sample_request(target, max_message_bytes, **options))) as items:
        async for item in items:
            reading.add(item)
            if progress is not None and isinstance(item, Progress):
                progress.append(item)
    return reading.batch()


async def evaluate(
    pool: Pool,
    num_episodes: int,
    *,
    env: rollserve.EnvSpec | None = None,
    parts: list[object] | None = None,
    **options: Any,
) -> Evaluation:
    """Return the result of an evaluation; append all items before it to `parts`."""
    request = EvaluationRequest(num_episodes, SamplingOptions(**options), env)
    return await _ended(pool.evaluate(request), parts)


async def evaluate_population(
    pool: Pool,
    parameters: Mapping[str, np.ndarray],
    num_episodes: int,
    *,
    env: rollserve.EnvSpec | None = None,
    shares_episodes: bool = True,
    parts: list[object] | None = None,
    **options: Any,
) -> Evaluation:
    """Return the result of an evaluation of a population; append all items before it to `parts`."""
    request = PopulationRequest(parameters, num_episodes, SamplingOptions(**options), env, shares_episodes)
    return await _ended(pool.evaluate_population(request), parts)


async def _ended(items: AsyncGenerator[Any, None], parts: list[object] | None) -> Evaluation:
    received = [] if parts is None else parts
    async with contextlib.aclosing(items):
        async for item in items:
            received.append(item)  # tests look at it meanwhile
    result = received.pop()
    assert isinstance(result, Evaluation)
    return result


class Reading:
    """Reads what a pool yields for one call, as a client reads its responses.

    Attributes:
        parts: the batches in the messages so far.
    """

    def __init__(self) -> None:
        self.parts: list[rollserve.EpisodeBatch] = []
        self._account: rollserve.Account | None = None

    def add(self, item: object) -> None:
        """Read an item of the pool's stream."""
        if isinstance(item, Delivery):
            for message in item.messages:
                self.add_response(item.buffer[message.offset : message.offset + message.size].data)
        elif isinstance(item, Account):
            self.add_response(pb.ObtainSamplesResponse(account=account_to_proto(item)).SerializeToString())

    def add_response(self, data: bytes | memoryview) -> None:
        """Read a serialized response."""
        match read_response(data):
            case rollserve.EpisodeBatch() | rollserve.MultiAgentBatch() as batch:
                self.parts.append(batch)  # type: ignore[arg-type]
            case episode_batch_pb2.Account() as account:
                self._account = account_from_proto(account)

    def account(self) -> rollserve.Account:
        """Return the account, which was the last item."""
        assert self._account is not None
        return self._account

    def batch(self) -> rollserve.EpisodeBatch:
        """Return the whole batch, with the account."""
        return join_batches(self.parts, self.account())


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


async def num_retried_despite_kills(
    pool: Pool,
    target: Target,
    expected: rollserve.EpisodeBatch,
    source: random.Random,
    pause: tuple[float, float],
) -> int:
    """Kill a worker in each of two calls, and check their batches; return the number of retried episodes.

    Args:
        pool: the pool.
        target: what the calls deliver with seed 9.
        expected: batch of an undisturbed call.
        source: random numbers for pauses and victims.
        pause: bounds of the seconds from the begin of a call to the kill.
    """
    num_retried = 0
    for _ in range(2):
        running = asyncio.create_task(sample(pool, target, seed=9))
        await asyncio.sleep(source.uniform(*pause))
        kill_one(pool, source)
        batch = await running
        assert equal(batch, expected)
        assert adds_up(batch.account)
        num_retried += batch.account.num_retried_episodes
    return num_retried


def calls_of(pool: Pool) -> list[EpisodeCall]:
    """Return a list to which the pool's calls for episodes, and its prefetches, are appended as they begin."""
    calls: list[EpisodeCall] = []
    samplings = pool._samplings
    make = samplings._episode_call

    def make_and_record(*arguments: Any) -> EpisodeCall:
        calls.append(make(*arguments))
        return calls[-1]

    samplings._episode_call = make_and_record  # type: ignore[method-assign,assignment]
    return calls


async def prefetched(prefetch: EpisodeCall) -> None:
    """Wait until a prefetch that has just begun has sampled all that it wants to."""
    await asyncio.sleep(0.01)  # for its first orders
    await until(lambda: not any(prefetch.in_flight))


def num_running(pool: Pool) -> int:
    """Return the number of calls that have begun and not ended, evaluations included."""
    return pool._parts.num_calls


def run_of(pool: Pool) -> str:
    """Return the name of the sampler's run."""
    return pool._parts.run


def set_start_seconds(pool: Pool, seconds: float) -> None:
    """Change how long the pool's workers may take to start from now on, also to 0, which no setting can be."""
    health = pool._parts.settings.health
    object.__setattr__(health, "start_seconds", seconds)


def lose_worker(pool: Pool, worker: int) -> None:
    """Have the pool take a worker for lost, and replace it."""
    workers, error = pool._parts.workers, WorkerLostError(f"worker {worker} is lost: for a test", worker)
    workers.lose(worker, workers[worker].handle, error)


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
