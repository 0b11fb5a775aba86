"""Hangs in workers: the pool finds and replaces a worker that hangs, and delivers the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charges import lay
from faults.backends import SLOW_ON_RAY
from pools import adds_up, evaluate, evaluate_population, pool_of, sample, until
from raw_calls import serving
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import InstalledFactory, MlpSpec, PythonSource, RandomSpec
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}
LIMITS: dict[str, Any] = {"step_seconds": 1.0, "reset_seconds": 3.0}


def hanging(folder: Path) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:Hanging", {"folder": str(folder)})


@asynccontextmanager
async def hanging_pool(backend: Backend, folder: Path, **changes: Any) -> AsyncIterator[Pool]:
    async with pool_of(backend, hanging(folder), rows=2, **{**LIMITS, **MODULES, **changes}) as pool:
        await pool.update_agent([RandomSpec()])
        yield pool


def failures(pool: Pool) -> list[str]:
    return [worker.last_failure for worker in pool.status().workers if worker.last_failure]


def num_restarts(pool: Pool) -> int:
    return sum(worker.num_restarts for worker in pool.status().workers)


def check(batch: rollserve.EpisodeBatch, expected: rollserve.EpisodeBatch) -> None:
    assert equal(batch, expected)
    account = batch.account
    assert adds_up(account)
    assert account.retry_reasons == {"worker_hung": account.num_retried_episodes}
    assert account.num_retried_episodes > 0


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        ("in-process", "step"),
        ("in-process", "reset"),
        ("ray", "step"),
        pytest.param("ray", "reset", marks=pytest.mark.slow),
    ],
    indirect=["backend"],
)
async def test_hung_environment_is_replaced(backend: Backend, tmp_path: Path, where: str) -> None:
    async with hanging_pool(backend, tmp_path) as pool:
        expected = await sample(pool, AtLeast(2000), seed=1)
        lay(tmp_path, where)
        check(await sample(pool, AtLeast(2000), seed=1), expected)
        (text,) = failures(pool)
        assert f" {where} of episode " in text
        assert text.endswith(f" {1 if where == 'step' else 3} s")


@SLOW_ON_RAY
@pytest.mark.parametrize("target", [Exactly(40), Fragments(800)], ids=["exactly", "fragments"])
async def test_work_bound_to_a_hung_worker_waits_for_its_replacement(
    backend: Backend, tmp_path: Path, target: Exactly | Fragments
) -> None:
    async with hanging_pool(backend, tmp_path) as pool:
        expected = await sample(pool, target, seed=1)  # type: ignore[arg-type]
        lay(tmp_path, "step")
        check(await sample(pool, target, seed=1), expected)  # type: ignore[arg-type]


@SLOW_ON_RAY
async def test_hung_vector_environment_is_replaced(backend: Backend, tmp_path: Path) -> None:
    env = rollserve.EnvSpec(
        "sample_envs:HangingRows-v0",
        {"folder": str(tmp_path)},
        vectorization="native",
        num_rows=4,
        num_episodes_per_row=2,
    )
    async with pool_of(backend, env, **LIMITS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(1000), seed=1)
        lay(tmp_path, "step")
        check(await sample(pool, AtLeast(1000), seed=1), expected)


async def test_worker_that_hangs_with_the_interpreter_lock_is_replaced(ray_backend: Backend, tmp_path: Path) -> None:
    async with hanging_pool(ray_backend, tmp_path) as pool:
        expected = await sample(pool, AtLeast(2000), seed=1)
        lay(tmp_path, "native step")
        check(await sample(pool, AtLeast(2000), seed=1), expected)
        (text,) = failures(pool)
        assert text.endswith(" 3 s")  # the longest limit, where a step has 1 s


@pytest.mark.slow
async def test_stopped_process_is_replaced_whether_it_works_or_idles(ray_backend: Backend, tmp_path: Path) -> None:
    async with hanging_pool(ray_backend, tmp_path) as pool:
        expected = await sample(pool, AtLeast(8000), seed=1)
        running = asyncio.create_task(sample(pool, AtLeast(8000), seed=1))
        await asyncio.sleep(0.05)
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGSTOP)
        check(await running, expected)
        await until(lambda: pool.status().workers[1].healthy)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGSTOP)
        await until(lambda: not pool.status().workers[0].healthy)
        await until(lambda: pool.status().workers[0].healthy)
        assert len(failures(pool)) == 2


@SLOW_ON_RAY
@pytest.mark.parametrize("where", ["action", "agent"])
async def test_worker_with_a_hung_agent_is_replaced(
    backend: Backend, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", server_environment()["PYTHONPATH"])
    async with hanging_pool(backend, tmp_path) as pool:
        source = PythonSource(InstalledFactory("hanging", {"folder": str(tmp_path)}), {})
        await pool.update_agent([source])
        expected = await sample(pool, AtLeast(500), seed=1)
        lay(tmp_path, where)
        if where == "agent":  # a new version, so that the workers make the agent again; no episode is lost
            await pool.update_agent([source])
        batch = await sample(pool, AtLeast(500), seed=1)
        if where == "action":
            check(batch, expected)
        assert np.array_equal(batch.observations, expected.observations)
        (text,) = failures(pool)
        assert where in text
        assert text.endswith(f" {1 if where == 'action' else 3} s")


@SLOW_ON_RAY
async def test_evaluation_retries_episodes_of_a_hung_worker(backend: Backend, tmp_path: Path) -> None:
    async with hanging_pool(backend, tmp_path) as pool:
        expected = await evaluate(pool, 60)
        lay(tmp_path, "step")
        retried = await evaluate(pool, 60)
        assert retried.outcomes == expected.outcomes
        assert retried.account.retry_reasons["worker_hung"] == retried.account.num_retried_episodes > 0
        assert adds_up(retried.account)


@SLOW_ON_RAY
async def test_population_retries_episodes_of_a_hung_worker(backend: Backend, tmp_path: Path) -> None:
    async with hanging_pool(backend, tmp_path) as pool:
        agent = rollserve.MlpAgent.initial(box(1), rollserve.spaces.Discrete(2), hidden_sizes=(4,), seed=1)
        await pool.update_agent([MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)])
        members = {name: np.stack([value] * 3) for name, value in agent.parameters.items()}
        expected = await evaluate_population(pool, members, 20)
        lay(tmp_path, "step")
        retried = await evaluate_population(pool, members, 20)
        assert retried.outcomes == expected.outcomes
        assert retried.account.retry_reasons["worker_hung"] == retried.account.num_retried_episodes > 0
        assert adds_up(retried.account)


def box(size: int) -> rollserve.spaces.Box:
    return rollserve.spaces.Box(np.float64(-np.inf), np.float64(np.inf), (size,), np.dtype(np.float64))


@SLOW_ON_RAY
@pytest.mark.parametrize("count", [1, 2], ids=["one", "all"])
async def test_env_update_fails_only_if_it_hangs_on_all_workers(backend: Backend, tmp_path: Path, count: int) -> None:
    """A single worker that hangs is replaced, and its replacement gets the update."""
    async with hanging_pool(backend, tmp_path) as pool:
        lay(tmp_path, "construction", count)
        update = rollserve.EnvSpec("sample_envs:Hanging", {"folder": str(tmp_path)}, num_rows=3)
        if count == 1:
            assert (await pool.update_env([update])).version == 2
        else:
            with raises(WorkerLostError, reason=Reason.WORKER_HUNG, match=r"environment.* 3 s"):
                await pool.update_env([update])
            assert pool.status().env_version == 1
        assert len(failures(pool)) == count
        batch = await sample(pool, Exactly(10), seed=1)
        assert batch.account.env_version == 3 - count
        assert adds_up(batch.account)


@SLOW_ON_RAY
async def test_worker_with_many_slow_rows_is_not_replaced(backend: Backend) -> None:
    """Steps of all 6 rows take 2.4 s together, and a step of one row may take 1 s."""
    env = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.4, "length": 1})
    async with pool_of(backend, env, workers=1, rows=6, **LIMITS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, Exactly(6))
        assert batch.account.num_retried_episodes == 0
        assert num_restarts(pool) == 0


@pytest.mark.parametrize("target", [AtLeast(50), Exactly(3)], ids=["at least", "exactly"])
async def test_call_fails_if_an_episode_hangs_in_every_attempt(tmp_path: Path, target: Target) -> None:
    async with hanging_pool(InProcessBackend(), tmp_path, workers=1, unit_retries=1) as pool:
        lay(tmp_path, "step", 2)
        with raises(WorkerLostError, reason=Reason.WORKER_HUNG, match=r"worker 0 .*step of episode \d+ .* 1 s\b"):
            await sample(pool, target, seed=1)
        batch = await sample(pool, target, seed=1)
        assert adds_up(batch.account)


async def test_fragment_call_fails_if_it_hangs_in_every_attempt(tmp_path: Path) -> None:
    async with hanging_pool(InProcessBackend(), tmp_path, workers=1, unit_retries=0) as pool:
        lay(tmp_path, "step")
        with raises(WorkerLostError, reason=Reason.WORKER_HUNG, match=r"step of episode \d+ .* 1 s\b.*\b0\b"):
            await sample(pool, Fragments(100), seed=1)  # type: ignore[arg-type]
        assert (await sample(pool, Fragments(100), seed=1)).num_steps == 100  # type: ignore[arg-type]


def test_client_does_not_retry_a_call_that_hung_in_every_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "charges"
    folder.mkdir()
    options = ("--env", "sample_envs:Hanging", "--env-kwargs", json.dumps({"folder": str(folder)}), "--workers", "1")
    limits = ("--backend", "in-process", "--step-seconds", "1", "--unit-retries", "0", "--rows", "2")
    with serving(tmp_path, *options, *limits) as (_, sampler):
        lay(folder, "step", 4)
        with raises(rollserve.UnavailableError, reason=Reason.WORKER_HUNG, match=r"step of episode \d"):
            sampler.obtain_samples(200, timeout=30)
        assert sampler.status().counters.num_worker_restarts == 1
