"""Batches do not depend on the number of workers and rows, nor on slow or killed workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pytest
from pools import (
    Reading,
    adds_up,
    calls_of,
    lose_worker,
    num_retried_despite_kills,
    pool_of,
    sample,
    sample_request,
    set_start_seconds,
    until,
)
from support import equal

import rollserve
from rollserve_server.activity import Heartbeat
from rollserve_server.agents import AgentSpec, ConstantSpec, MlpSpec, RandomSpec
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import (
    AtLeast,
    Backend,
    Delivery,
    Exactly,
    InProcessBackend,
    Pool,
    RemoteBuffer,
    Target,
    WorkerHandle,
)
from rollserve_server.sampling import Worker, WorkOrder
from rollserve_server.settings import WorkerSettings

_P = ParamSpec("_P")
_R = TypeVar("_R")

PONG = rollserve.EnvSpec(
    "ALE/Pong-v5",
    {"frameskip": 1, "max_episode_steps": 120},
    [
        rollserve.Wrapper("AtariPreprocessing", {"screen_size": 84, "noop_max": 0}),
        rollserve.Wrapper("FrameStackObservation", {"stack_size": 4}),
    ],
)
CASES: dict[str, tuple[rollserve.EnvSpec, int]] = {
    "CartPole": (rollserve.EnvSpec("CartPole-v1"), 5000),
    "native CartPole": (
        rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8, num_episodes_per_row=4),
        5000,
    ),
    "HalfCheetah": (rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 150}), 3000),
    "Pong": (PONG, 600),
}


PARAMETERS = [pytest.param(case, marks=pytest.mark.slow) if case == "Pong" else case for case in CASES]


def agent_for(env: rollserve.EnvSpec, observation_space: Any, action_space: Any) -> AgentSpec:
    if env is PONG:
        return RandomSpec()
    agent = rollserve.MlpAgent.initial(observation_space, action_space, seed=1)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


@contextlib.asynccontextmanager
async def prepared(backend: Backend, case: str, **changes: Any) -> AsyncIterator[tuple[Pool, int]]:
    env, num_steps = CASES[case]
    async with pool_of(backend, env, **changes) as pool:
        spaces = {
            "CartPole": (box(4), rollserve.spaces.Discrete(2)),
            "native CartPole": (box(4), rollserve.spaces.Discrete(2)),
            "HalfCheetah": (box(17), box(6)),
            "Pong": (None, None),
        }
        await pool.update_agent([agent_for(env, *spaces[case])])
        yield pool, num_steps


def box(size: int) -> rollserve.spaces.Box:
    return rollserve.spaces.Box(np.float32(-1), np.float32(1), (size,), np.dtype(np.float32))


class SlowBackend:
    """A backend that delays random reports, so that workers finish in any order."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self._backend = backend
        self._random = random.Random(seed)

    def create_worker(self, worker_index: int, config: WorkerSettings) -> WorkerHandle:
        return SlowWorker(self._backend.create_worker(worker_index, config), self._random)

    async def open_journal(self, check: Any) -> Any:
        return await self._backend.open_journal(check)

    def has_room(self) -> bool:
        return True

    def leaving_nodes(self) -> None:
        return None

    def find_worker(self, worker_index: int) -> None:
        return None

    async def end_other_workers(self) -> None:
        pass

    def default_num_workers(self) -> int:
        return self._backend.default_num_workers()

    def close(self) -> None:
        self._backend.close()


class SlowWorker:
    def __init__(self, worker: WorkerHandle, source: random.Random) -> None:
        self._worker = worker
        self._random = source

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await self._worker.call(method, *args, **kwargs)

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        return await self._worker.call_urgently(method, *args, **kwargs)

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await self._worker.aside(method, *args, **kwargs)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        report, payload = self._worker.work(order)
        return asyncio.ensure_future(self._delayed(report)), payload

    async def _delayed(self, report: asyncio.Future[_R]) -> _R:
        await asyncio.sleep(self._random.choice([0.0, 0.0, 0.0, 0.02, 0.1]))
        return await report

    def stop(self, work_id: int) -> None:
        self._worker.stop(work_id)

    async def heartbeat(self) -> Heartbeat:
        return await self._worker.heartbeat()

    def kill(self, error: WorkerLostError | None = None) -> None:
        self._worker.kill(error)


@pytest.mark.parametrize("case", PARAMETERS)
async def test_batch_does_not_depend_on_workers_rows_or_speed(case: str) -> None:
    async with prepared(InProcessBackend(), case, workers=1, rows=1) as (pool, num_steps):
        expected = await sample(pool, AtLeast(num_steps), seed=9)
    for num_workers, num_rows, slow in ((1, 16, False), (2, 4, True), (3, 1, True), (5, 4, True)):
        backend: Backend = InProcessBackend()
        if slow:
            backend = SlowBackend(backend, seed=num_workers)
        async with prepared(backend, case, workers=num_workers, rows=num_rows) as (pool, _):
            batch = await sample(pool, AtLeast(num_steps), seed=9)
            assert equal(batch, expected), (num_workers, num_rows)
            assert adds_up(batch.account)


@pytest.mark.parametrize(
    "case", [case if case == "native CartPole" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
@pytest.mark.parametrize("target", [AtLeast, pytest.param(Exactly, marks=pytest.mark.slow)])
async def test_batch_is_the_same_when_workers_are_killed(
    ray_backend: Backend, case: str, target: Callable[[int], Target]
) -> None:
    async with prepared(ray_backend, case, workers=3, rows=2) as (pool, num_steps):
        request = target(num_steps if target is AtLeast else 2 + num_steps // 500)
        expected = await sample(pool, request, seed=9)
        assert await num_retried_despite_kills(pool, request, expected, random.Random(case), (0.01, 0.1)) > 0


@pytest.mark.slow
async def test_short_episodes_are_as_frequent_as_long_ones(ray_backend: Backend) -> None:
    """Half of the episodes have 1 step, the others 1000; 60 calls deliver each index once and in order."""
    env = rollserve.EnvSpec("sample_envs:OneOrThousand")
    async with pool_of(ray_backend, env, rows=16, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        lengths, next_index = [], 0
        for call in range(60):
            batch = await sample(pool, AtLeast(4000))
            assert batch.episode_indices.tolist() == list(range(next_index, next_index + len(batch)))
            assert batch.num_steps - batch.lengths[-1] < 4000 <= batch.num_steps
            next_index += len(batch)
            lengths += batch.lengths.tolist()
            if call % 3 == 0:
                await pool.update_agent([RandomSpec()])
    share = np.mean(np.array(lengths) == 1)
    # Calls tend to end with a long episode, which shifts the share by at most one episode per call.
    assert abs(share - 0.5) < 3 * 0.5 / np.sqrt(len(lengths)) + 60 / len(lengths)


@pytest.mark.parametrize("hidden_size", [64, 256])
@pytest.mark.slow
async def test_trajectory_does_not_depend_on_the_number_of_rows(hidden_size: int) -> None:
    """A single different bit would change a whole trajectory of continuous actions."""
    agent = rollserve.MlpAgent.initial(box(17), box(6), hidden_sizes=(hidden_size, hidden_size), seed=1)
    spec = MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)
    batches = []
    for num_rows in (1, 3, 4, 16, 64):
        env = rollserve.EnvSpec("HalfCheetah-v5")
        async with pool_of(InProcessBackend(), env, workers=1, rows=num_rows) as pool:
            await pool.update_agent([spec])
            batches.append(await sample(pool, Exactly(16), seed=5))
    assert batches[0].lengths.tolist() == [1000] * 16
    assert all(equal(batch, batches[0]) for batch in batches[1:])


async def test_cancelled_call_stops_within_a_vector_step(backend: Backend) -> None:
    env = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.1, "length": 1000})
    options = {"workers": 1, "rows": 4, "allow_module": ("sample_envs",)}
    async with pool_of(backend, env, **options) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, Exactly(4)))
        await until(lambda: bool(calls))
        (call,) = calls
        await until(lambda: call.account.num_simulated_steps > 0)
        known = call.account.num_simulated_steps
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # The next call has the account of the cancelled one.
        batch = await sample(pool, AtLeast(1), max_episode_length=2)
        assert known <= batch.account.num_cancelled_steps <= known + 4
        assert adds_up(batch.account)


@pytest.mark.slow
async def test_rest_of_an_episode_is_delivered_when_its_worker_dies(ray_backend: Backend) -> None:
    """Delivered steps are not delivered again; the rest continues after them."""
    env = rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": 1 << 20, "length": 120})
    async with pool_of(ray_backend, env, workers=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(120), seed=1)
        for num_deliveries in (1, 2):
            reading = Reading()
            async with contextlib.aclosing(pool.sample(sample_request(AtLeast(120), 1 << 22, seed=1))) as items:
                async for item in items:
                    reading.add(item)
                    if isinstance(item, Delivery):
                        num_deliveries -= 1
                        if num_deliveries == 0:
                            os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
            account = reading.account()
            assert account.num_retried_episodes == 1
            assert adds_up(account)
            assert equal(reading.batch(), expected)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.slow
async def test_call_ends_when_workers_die_with_full_buffers(ray_backend: Backend, seed: int) -> None:
    env = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 30})
    options = {"workers": 2, "rows": 1, "worker_buffer_bytes": 5000, "call_window_bytes": 3000}
    async with pool_of(ray_backend, env, **options) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(5000), seed=1)
        reading, kills = Reading(), 2
        source = random.Random(seed)
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(5000), 1 << 22, seed=1))) as items:
            async for item in items:
                reading.add(item)
                if isinstance(item, Delivery) and kills and source.random() < 0.2:
                    kills -= 1
                    await asyncio.sleep(0.3)  # while buffers fill
                    healthy = [worker for worker in pool.status().workers if worker.healthy]
                    os.kill(source.choice(healthy).identity.process_id, signal.SIGKILL)
        account = reading.account()
        assert account.num_retried_episodes > 0
        assert adds_up(account)
        assert equal(reading.batch(), expected)


@pytest.mark.slow
async def test_running_call_keeps_its_version_when_a_worker_is_replaced(ray_backend: Backend, tmp_path: Path) -> None:
    env = rollserve.EnvSpec("sample_envs:Watched", {"folder": str(tmp_path)})
    slow = tmp_path / "slow"
    async with pool_of(ray_backend, env, workers=2, keep_versions=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(20_000), seed=1)
        slow.touch()
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, AtLeast(20_000), seed=1))
        await until(lambda: bool(calls))
        for _ in range(3):
            await pool.update_agent([ConstantSpec({"": np.array(2)})])
            await pool.update_env([rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 5})])
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        assert not running.done()
        slow.unlink()
        assert equal(await running, expected)


async def test_calls_run_beside_updates_with_one_kept_version(backend: Backend) -> None:
    async with prepared(backend, "CartPole", workers=1, keep_versions=1) as (pool, _):
        for _ in range(5):
            results = await asyncio.gather(
                sample(pool, AtLeast(10)),
                pool.update_env([rollserve.EnvSpec("CartPole-v1")]),
                sample(pool, AtLeast(10)),
                pool.update_agent([RandomSpec()]),
                sample(pool, AtLeast(10)),
            )
            assert all(result is not None for result in results)


async def test_kept_episodes_run_again_when_their_worker_is_not_replaced(ray_backend: Backend) -> None:
    env = rollserve.EnvSpec("sample_envs:OneOrThousand")
    async with pool_of(ray_backend, env, workers=2, start_seconds=30, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        first = await sample(pool, AtLeast(3000))
        set_start_seconds(pool, 0.0)  # no replacement is ready in time
        lose_worker(pool, 1)
        second = await sample(pool, AtLeast(3000))
        assert second.episode_indices[0] == first.episode_indices[-1] + 1
        assert adds_up(second.account)
