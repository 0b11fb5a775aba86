"""Workers whose processes take too much memory: the pool kills and replaces them, and delivers the same bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from charges import lay
from faults.killable import KillableBackend
from pools import adds_up, pool_of, sample
from support import equal, raises

from rollserve import EnvSpec, Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import OverLimitError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Fragments, Pool, Target

MIB = 1 << 20
BOUND = 500 * MIB
GROWTH = 600 * MIB
pytestmark = pytest.mark.usefixtures("without_recycling")  # a process that was used before may hold memory


@asynccontextmanager
async def bounded_pool(backend: Backend, folder: Path, num_bytes: int = GROWTH, **changes: Any) -> AsyncIterator[Pool]:
    # A machine may need seconds to give a process so much memory: a step must not be taken for hung meanwhile.
    settings = {"rows": 2, "step_seconds": 60.0, "worker_max_memory_bytes": BOUND, "allow_module": ("sample_envs",)}
    env = EnvSpec("sample_envs:Growing", {"folder": str(folder), "num_bytes": num_bytes})
    async with pool_of(backend, env, **{**settings, **changes}) as pool:
        await pool.update_agent([RandomSpec()])
        yield pool


async def test_worker_that_takes_too_much_memory_is_replaced(
    ray_backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rollserve_server")
    async with bounded_pool(ray_backend, tmp_path) as pool:
        expected = await sample(pool, AtLeast(2000), seed=1)
        before = [worker.identity.process_id for worker in pool.status().workers]
        lay(tmp_path, "growth")
        batch = await sample(pool, AtLeast(2000), seed=1)
        assert equal(batch, expected)
        account = batch.account
        assert adds_up(account)
        assert account.num_retried_episodes > 0
        assert account.retry_reasons == {"worker_out_of_memory": account.num_retried_episodes}
        (lost,) = (worker for worker in pool.status().workers if worker.last_failure)
        other = pool.status().workers[1 - lost.index]
        assert other.num_restarts == 0
        assert other.identity.process_id == before[other.index]
        assert f"expected at most {BOUND} bytes of its own (--worker-max-memory-bytes)" in lost.last_failure
        assert "in a step of episode " in lost.last_failure
        assert [vars(record)["error"] for record in caplog.records if record.message == "worker lost"] == [
            lost.last_failure
        ]


@pytest.mark.parametrize(
    ("target", "num_losses"), [(AtLeast(50), 3), (Fragments(100), 1)], ids=["at least", "fragments"]
)
@pytest.mark.slow
async def test_call_fails_if_its_workers_take_too_much_memory_again_and_again(
    ray_backend: Backend, tmp_path: Path, target: Target | Fragments, num_losses: int
) -> None:
    settings = {"workers": 1, "unit_retries": 0, "worker_restarts_per_hour": num_losses}
    async with bounded_pool(ray_backend, tmp_path, **settings) as pool:
        lay(tmp_path, "growth", num_losses)
        with raises(WorkerLostError, reason=Reason.WORKER_OUT_OF_MEMORY, quotes="--worker-max-memory-bytes"):
            await sample(pool, target, seed=1)
        lay(tmp_path, "growth")  # the failed call's restarts are excused, so that one more is allowed
        batch = await sample(pool, AtLeast(50), seed=1)
        assert adds_up(batch.account)
        assert pool.status().workers[0].num_restarts == num_losses + 1


async def test_fragment_call_fails_if_its_memory_grows_too_much_at_different_steps() -> None:
    backend = KillableBackend()
    env = EnvSpec("sample_envs:Slow", {"step_seconds": 0.01, "length": 10})
    settings = {"workers": 1, "rows": 1, "unit_retries": 1, "allow_module": ("sample_envs",)}
    async with pool_of(backend, env, **settings) as pool:
        await pool.update_agent([RandomSpec()])
        call = asyncio.create_task(sample(pool, Fragments(500), seed=1))
        for seconds in (1.5, 0.5):
            await asyncio.sleep(seconds)
            error = WorkerLostError("worker 0 took too much memory", 0, reason=Reason.WORKER_OUT_OF_MEMORY)
            backend.handles[0].kill(error)
        with raises(WorkerLostError, reason=Reason.WORKER_OUT_OF_MEMORY):
            await call


@pytest.mark.slow
async def test_update_refuses_environments_with_which_workers_take_too_much_memory(
    ray_backend: Backend, tmp_path: Path
) -> None:
    async with bounded_pool(ray_backend, tmp_path, rows=4) as pool:
        hoarding = EnvSpec("sample_envs:Hoarding", {"at": "construction", "num_bytes": BOUND // 4})
        expected: dict[str, Any] = {"reason": Reason.ENVIRONMENTS_TOO_LARGE, "quotes": "--worker-max-memory-bytes"}
        with raises(OverLimitError, field="all_workers.environment", **expected):
            await pool.update_env([hoarding])
        assert pool.status().env_version == 1
        assert (await sample(pool, AtLeast(50), seed=1)).num_steps >= 50


async def test_allocation_far_beyond_the_bound_fails_in_the_environment(ray_backend: Backend, tmp_path: Path) -> None:
    async with bounded_pool(ray_backend, tmp_path, num_bytes=8192 * MIB) as pool:
        lay(tmp_path, "growth")
        account = (await sample(pool, AtLeast(2000), seed=1)).account
        assert account.retry_reasons == {"environment_failed": 1}
        assert not any(worker.num_restarts for worker in pool.status().workers)


@pytest.mark.slow
async def test_worker_may_take_any_memory_with_zero(ray_backend: Backend, tmp_path: Path) -> None:
    hoarding = EnvSpec("sample_envs:Hoarding", {"at": "construction", "num_bytes": BOUND // 2})
    async with bounded_pool(ray_backend, tmp_path, worker_max_memory_bytes=0) as pool:
        assert (await pool.update_env([hoarding])).version == 2
