"""Pools on Ray that lose workers, or run episodes that fail."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from pools import adds_up, calls_of, cartpole_agent, pool_of, sample, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError, WorkerLostError
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, Exactly, Target


@pytest.fixture(scope="session")
def server(ray_server: LocalServer) -> LocalServer:
    """The shared server whose workers are processes, which can be lost."""
    return ray_server


async def test_next_call_begins_after_a_failed_episode(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, allow_module=("sample_envs",)) as pool:
        await pool.update_env([rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")])
        await pool.update_agent([RandomSpec()])
        outcomes = []
        for _ in range(30):
            try:
                outcomes.append(len(await sample(pool, AtLeast(5))))
            except EnvFailedError:
                outcomes.append(0)
        assert 0 < outcomes.count(0) < 30
        assert pool.status().next_index > 30


@pytest.mark.parametrize(
    "target", [AtLeast(80_000), pytest.param(Exactly(800), marks=pytest.mark.slow)], ids=["at-least", "exactly"]
)
async def test_batch_is_the_same_when_workers_are_killed(ray_backend: Backend, target: Target) -> None:
    async with pool_of(ray_backend, worker_buffer_bytes=1 << 20) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = await sample(pool, target, seed=1)
        running = asyncio.create_task(sample(pool, target, seed=1))
        for index, pause in ((1, 0.1), (0, 0.1)):
            await asyncio.sleep(pause)
            assert not running.done()
            victim = pool.status().workers[index].identity.process_id
            os.kill(victim, signal.SIGKILL)
        batch = await running
        assert equal(expected, batch)
        assert batch.account.num_lost_steps > 0
        assert batch.account.num_retried_episodes > 0
        assert adds_up(batch.account)
        assert pool.status().workers[0].identity.process_id != victim


@pytest.mark.slow
async def test_batch_is_the_same_when_a_worker_is_killed_after_its_last_report(ray_backend: Backend) -> None:
    envs = [rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": seconds}) for seconds in (0.0, 0.5)]
    async with pool_of(ray_backend, allow_module=("sample_envs",)) as pool:
        await pool.update_env(envs, per_worker=True)
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, Exactly(1), seed=1, max_episode_length=3)
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, Exactly(1), seed=1, max_episode_length=3))
        await until(lambda: bool(calls) and calls[0].account.workers[0].num_simulated_steps == 3)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        batch = await running
        assert equal(expected, batch)
        assert adds_up(batch.account)


async def test_kept_episodes_run_again_when_their_worker_is_killed(ray_backend: Backend) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([cartpole_agent()])
        first = await sample(pool, AtLeast(3000))
        for worker in pool.status().workers:
            os.kill(worker.identity.process_id, signal.SIGKILL)
        second = await sample(pool, AtLeast(3000))
        assert second.account.num_carried_steps == first.account.num_kept_steps == second.account.num_lost_steps
        assert adds_up(second.account)
        both = await sample(pool, AtLeast(first.num_steps + 3000), seed=first.account.seed)
        assert equal(both, rollserve.EpisodeBatch.concatenate(first, second))


async def test_update_replaces_a_lost_worker(ray_backend: Backend) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = await sample(pool, AtLeast(2000), seed=1)
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        assert (await pool.update_agent([cartpole_agent(1)])).version == 2
        assert (await pool.update_agent([cartpole_agent(0)])).version == 3
        batch = await sample(pool, Exactly(20), seed=1)
        assert set(batch.policy_versions.tolist()) == {3}
        assert equal(expected, await sample(pool, AtLeast(2000), seed=1, policy_version=1))


@pytest.mark.slow
async def test_call_fails_when_an_episode_kills_one_worker_after_the_other(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, allow_module=("sample_envs",), unit_retries=1) as pool:
        await pool.update_env([rollserve.EnvSpec("sample_envs:Deadly")])
        await pool.update_agent([RandomSpec()])
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN, match=r"episode \d+.*\b3\b"):
            await sample(pool, AtLeast(100))


def test_client_does_not_retry_an_episode_that_kills_workers(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Deadly")
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_worker_restarts
    with raises(rollserve.UnavailableError, reason=Reason.WORKER_LOST_AGAIN, match=r"episode \d+.*\b5\b"):
        sampler.obtain_samples(100)
    # Four workers die with the same episode and others, two with it alone, and some with others meanwhile.
    assert sampler.status().counters.num_worker_restarts - before < 2 * (4 + 2) + 2
