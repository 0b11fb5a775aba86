"""Prefetches change the time of later calls, and never their results."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from pools import CARTPOLE, adds_up, calls_of, pool_of, prefetched, sample, until
from support import equal, raises

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, Exactly, InProcessBackend, Pool

NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4)


def accounts(batches: list[rollserve.EpisodeBatch]) -> list[rollserve.Account]:
    return [batch.account for batch in batches if batch.account_or_none is not None]


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_next_call_uses_prefetched_episodes(backend: Backend, env: rollserve.EnvSpec) -> None:
    async with pool_of(backend, env) as pool, pool_of(backend, env, workers=1) as other:
        for each in (pool, other):
            await each.update_agent([RandomSpec()])
        calls = calls_of(pool)
        for target in (AtLeast(3000), Exactly(20)):
            batches = [await sample(pool, target, prefetch=True)]
            for _ in range(2):
                await prefetched(calls[-1])
                batches.append(await sample(pool, target, prefetch=True))
            assert all(adds_up(account) for account in accounts(batches))
            for account in accounts(batches)[1:]:
                assert 0 < account.num_prefetched_steps <= account.num_carried_steps
            if isinstance(target, Exactly):
                assert [account.num_simulated_steps for account in accounts(batches)[1:]] == [0, 0]
                await prefetched(calls[-1])
            else:
                for batch in batches:
                    assert equal(batch, await sample(other, target))
        simulated = sum(worker.num_simulated_steps for worker in pool.status().workers)
        assert simulated >= pool.status().counters.num_steps


async def test_update_discards_prefetched_episodes_and_accounts_for_them(backend: Backend) -> None:
    async with pool_of(backend) as pool, pool_of(backend) as other:
        updates: list[Any] = [
            lambda each: each.update_agent([RandomSpec()]),
            lambda each: each.update_env([rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 30})]),
            lambda each: each.update_env([rollserve.EnvChange(reset_options={"low": -0.01, "high": 0.01})]),
        ]
        calls = calls_of(pool)
        for number, update in enumerate(updates):
            for each in (pool, other):
                await update(each)
            batch = await sample(pool, AtLeast(2000), prefetch=True)
            assert equal(batch, await sample(other, AtLeast(2000)))
            (account,) = accounts([batch])
            assert adds_up(account)
            assert (account.num_prefetched_steps > 0) == (number > 0)
            assert account.num_superseded_steps >= account.num_prefetched_steps
            await until(lambda: calls[-1].account.num_simulated_steps > 0)


async def test_other_calls_are_not_changed_by_a_prefetch(backend: Backend) -> None:
    async with pool_of(backend) as pool, pool_of(backend) as other:
        targets = [AtLeast(500), Exactly(3), AtLeast(900), Exactly(4), AtLeast(10)]
        for each in (pool, other):
            await each.update_agent([RandomSpec()])
        for target in targets:
            batch = await sample(pool, target, prefetch=True)
            seeded = await sample(pool, target, seed=3)
            assert equal(batch, await sample(other, target))
            assert equal(seeded, await sample(other, target, seed=3))
            assert all(adds_up(account) for account in accounts([batch, seeded]))
        both = await asyncio.gather(*(sample(pool, AtLeast(2000), prefetch=True) for _ in range(6)))
        seen = {
            (account.seed, int(index))
            for batch in both
            if (account := batch.account)
            for index in batch.episode_indices
        }
        assert len(seen) == sum(map(len, both))
        assert all(adds_up(account) for account in accounts(both))


async def test_prefetch_stops_when_buffers_are_full() -> None:
    env = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 20})
    async with pool_of(InProcessBackend(), env, worker_buffer_bytes=1 << 14) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        first = await sample(pool, AtLeast(4_000), prefetch=True)
        await prefetched(calls[-1])
        assert 0 < calls[-1].account.num_simulated_steps < 3_000  # a step takes 32 bytes here
        second = await sample(pool, AtLeast(4_000))
        (account,) = accounts([first])
        whole = await sample(pool, AtLeast(first.num_steps + 4_000), seed=account.seed)
        assert equal(whole, rollserve.EpisodeBatch.concatenate(first, second))


async def test_prefetched_episodes_run_again_when_a_worker_is_killed(ray_backend: Backend) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        first = await sample(pool, AtLeast(20_000), prefetch=True)
        await until(lambda: calls[-1].account.num_simulated_steps > 0)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        await until(lambda: calls[-1].account.num_retried_episodes > 0)
        second = await sample(pool, AtLeast(20_000))
        account = accounts([second])[0]
        assert account.num_retried_episodes > 0
        assert adds_up(account)
        whole = await sample(pool, AtLeast(first.num_steps + 20_000), seed=account.seed)
        assert equal(whole, rollserve.EpisodeBatch.concatenate(first, second))


async def outcomes(pool: Pool, *, prefetch: bool) -> list[int | None]:
    """Return the number of steps of each of 30 calls, or None for a failed call."""
    await pool.update_env([rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")])
    await pool.update_agent([RandomSpec()])
    results: list[int | None] = []
    for _ in range(30):
        try:
            batch = await sample(pool, AtLeast(5), prefetch=prefetch)
        except EnvFailedError:
            results.append(None)
        else:
            results.append(batch.num_steps)
            assert all(adds_up(account) for account in accounts([batch]))
            await asyncio.sleep(0.01)
    return results


async def test_prefetched_failure_fails_the_next_call() -> None:
    options: dict[str, Any] = {"allow_module": ("sample_envs",), "workers": 1, "rows": 1}
    async with pool_of(InProcessBackend(), **options) as pool, pool_of(InProcessBackend(), **options) as other:
        expected = await outcomes(other, prefetch=False)
        assert await outcomes(pool, prefetch=True) == expected
        assert None in expected


async def test_clients_request_a_prefetch(sampler: rollserve.Sampler, server: LocalServer) -> None:
    first = sampler.obtain_samples(500, prefetch=True)
    async with rollserve.aconnect(server.address) as asynchronous:
        second = await asynchronous.obtain_samples(500, prefetch=True)
        third = await asynchronous.obtain_samples(500)
        (account, *_) = accounts([first])
        whole = await asynchronous.obtain_samples(
            first.num_steps + second.num_steps + 500, seed=account.seed, first_episode_index=account.first_episode_index
        )
        assert equal(whole, rollserve.EpisodeBatch.concatenate(first, second, third))
        with raises(rollserve.InvalidArgumentError, field="options.prefetch"):
            await asynchronous.obtain_samples(1, seed=3, prefetch=True)
    with raises(rollserve.InvalidArgumentError, field="options.prefetch"):
        sampler.obtain_fragments(8, prefetch=True)
    with raises(TypeError, field="prefetch"):
        sampler.obtain_samples(1, prefetch="yes")  # type: ignore[typeddict-item]
