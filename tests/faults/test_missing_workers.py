"""Calls whose episodes or rows belong to a worker that cannot come back: data, or an error that names the cause."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charges import lay
from faults.killable import NOTICE_SECONDS, KillableBackend, kill_worker
from pools import CARTPOLE, adds_up, calls_of, pool_of, sample, sample_request, until
from raw_calls import serving
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import Backend, Exactly, Fragments, Pool, Progress

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}
SLOW = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.01})
BLOCKS = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4, num_episodes_per_row=2)


@asynccontextmanager
async def worker_given_up(
    env: rollserve.EnvSpec, agents: Sequence[Any], index: int = 1, **changes: Any
) -> AsyncIterator[Pool]:
    """A pool of three workers that has lost one twice, and replaces it no more within the hour."""
    backend = KillableBackend()
    options = {"workers": 3, "worker_restarts_per_hour": 1, **NOTICE_SECONDS, **MODULES, **changes}
    async with pool_of(backend, env, **options) as pool:
        await pool.update_agent(agents, per_worker=len(agents) > 1)
        for _ in range(2):
            await kill_worker(pool, backend, index)
        assert pool.status().workers[index].given_up
        yield pool


async def undisturbed(env: rollserve.EnvSpec, target: Any, **changes: Any) -> rollserve.EpisodeBatch:
    async with pool_of(KillableBackend(), env, workers=3, **MODULES, **changes) as pool:
        await pool.update_agent([RandomSpec()])
        return await sample(pool, target, seed=1)


@pytest.mark.parametrize("env", [CARTPOLE, BLOCKS], ids=["rows", "blocks"])
@pytest.mark.parametrize("index", [0, 1])
async def test_others_run_the_exact_episodes_of_a_worker_that_is_given_up(env: rollserve.EnvSpec, index: int) -> None:
    expected = await undisturbed(env, Exactly(11))
    async with worker_given_up(env, [RandomSpec()], index) as pool:
        batch = await sample(pool, Exactly(11), seed=1)
        rest = await sample(pool, Exactly(11, num_skipped=15), seed=1)
    assert equal(batch, expected)
    assert batch.account.num_reassigned_episodes == 11
    assert batch.account.workers[index].num_episodes == 0
    assert adds_up(batch.account)
    assert rest.episode_indices.tolist() == expected.episode_indices.tolist()[15:]


async def test_others_run_exact_episodes_although_their_buffers_are_full() -> None:
    expected = await undisturbed(CARTPOLE, Exactly(40))
    async with worker_given_up(CARTPOLE, [RandomSpec()], 0, worker_buffer_bytes=4000, call_window_bytes=3000) as pool:
        async with asyncio.timeout(30):
            assert equal(await sample(pool, Exactly(40), seed=1), expected)


async def test_others_run_exact_episodes_of_a_worker_that_is_lost_meanwhile() -> None:
    expected = await undisturbed(SLOW, Exactly(8))
    backend = KillableBackend()
    async with pool_of(backend, SLOW, workers=3, worker_restarts_per_hour=1, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await kill_worker(pool, backend, 2)
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, Exactly(8), seed=1))
        await until(lambda: bool(calls) and calls[0].account.workers[2].num_simulated_steps > 0)
        await kill_worker(pool, backend, 2)
        batch = await running
    assert equal(batch, expected)
    assert batch.account.num_reassigned_episodes > 0
    assert adds_up(batch.account)


@pytest.mark.parametrize("target", [Exactly(2), Fragments(120)], ids=["exactly", "fragments"])
async def test_call_names_a_missing_worker_whose_work_no_other_can_do(target: Any) -> None:
    agents = [ConstantSpec({"": np.array(action)}) for action in (0, 1, 0)]
    async with worker_given_up(CARTPOLE, agents) as pool:
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match=r"worker 1 .* given up"):
            await sample(pool, target, seed=1)


async def test_progress_names_a_missing_worker_once() -> None:
    agents = [ConstantSpec({"": np.array(action)}) for action in (0, 1, 0)]
    async with worker_given_up(CARTPOLE, agents, progress_seconds=0.02) as pool:
        waiting_for = []
        with raises(WorkerLostError, reason=Reason.WORKER_LOST):
            async with contextlib.aclosing(pool.sample(sample_request(Exactly(2), seed=1))) as items:
                async for item in items:
                    waiting_for += [item.waiting_for] if isinstance(item, Progress) and item.waiting_for else []
    assert len(waiting_for) == 1
    assert waiting_for[0].startswith("worker 1: ")


async def test_exact_episodes_of_class_worker_stay_with_their_workers() -> None:
    async with worker_given_up(rollserve.EnvSpec("sample_envs:Unseeded"), [RandomSpec()]) as pool:
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match=r"worker 1 .* given up"):
            await sample(pool, Exactly(2), seed=1)


def licensed(folder: Path, num_licenses: int) -> rollserve.EnvSpec:
    lay(folder, "license", num_licenses)
    return rollserve.EnvSpec("sample_envs:Licensed", {"folder": str(folder)})


async def test_process_that_can_never_make_its_environment_holds_up_no_exact_episodes(
    ray_backend: Backend, tmp_path: Path
) -> None:
    async with pool_of(ray_backend, licensed(tmp_path, 1), start_seconds=60.0, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert sum(worker.healthy for worker in pool.status().workers) == 1
        batch = await sample(pool, Exactly(3), seed=1)
    assert batch.worker_indices is not None
    assert batch.worker_indices.tolist() == [0] * 3 + [1] * 3
    assert batch.account.num_reassigned_episodes == 3


@pytest.mark.slow
def test_calls_of_a_client_end_while_a_worker_cannot_come_back(tmp_path: Path) -> None:
    kwargs = json.dumps(licensed(tmp_path, 2).kwargs)
    options = ("--env", "sample_envs:Licensed", "--env-kwargs", kwargs, "--backend", "in-process")
    with serving(tmp_path, *options, "--workers", "3", "--rows", "2", "--start-seconds", "1") as (_, sampler):
        batch = sampler.obtain_exact_episodes(1, timeout=30)
        assert batch.worker_indices is not None
        assert batch.worker_indices.tolist() == [0, 1, 2]
        for seed in (None, 3):
            with raises(rollserve.UnavailableError, reason=Reason.WORKER_LOST, quotes="no license on this machine"):
                sampler.obtain_fragments(60, seed=seed, timeout=1.5)
        with raises(rollserve.DeadlineError, field="deadline", quotes="no license on this machine") as caught:
            sampler.obtain_fragments(60, timeout=30, deadline=4)
        assert isinstance(caught.value.__cause__, rollserve.UnavailableError)
        assert sampler.obtain_samples(20).num_steps >= 20
