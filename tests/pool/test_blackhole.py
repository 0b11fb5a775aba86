"""Calls with `blackhole` sample as others do, discard the steps, and count them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from pools import CARTPOLE, adds_up, calls_of, kill_one, pool_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve.account import account_from_proto
from rollserve_server.agents import RandomSpec
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.local import LocalServer
from rollserve_server.pool import (
    Account,
    AtLeast,
    Backend,
    Delivery,
    Exactly,
    Fragments,
    InProcessBackend,
    Pool,
    Target,
)

NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4)


async def measure(pool: Pool, target: Target | Fragments, **options: Any) -> rollserve.Account:
    """Return the account of a call that discards all steps."""
    async with contextlib.aclosing(pool.sample(sample_request(target, 1 << 22, columns=None, **options))) as items:
        (account,) = [item async for item in items if isinstance(item, Delivery | Account)]
    assert isinstance(account, Account)
    return account_from_proto(account_to_proto(account))


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_blackhole_discards_what_a_call_would_deliver(backend: Backend, env: rollserve.EnvSpec) -> None:
    targets: list[Any] = [AtLeast(3000), Exactly(30), Fragments(2400), AtLeast(10)]
    async with pool_of(backend, env) as pool, pool_of(backend, env) as other:
        for each in (pool, other):
            await each.update_agent([RandomSpec()])
        for target in targets:
            account = await measure(pool, target)
            expected = (await sample(other, target)).account
            assert expected is not None
            assert (account.num_steps, account.num_episodes) == (0, 0)
            discarded = account.num_discarded_steps, account.num_discarded_episodes
            assert discarded == (expected.num_steps, expected.num_episodes)
            for name in ("seed", "first_episode_index", "row_step_count"):
                assert getattr(account, name) == getattr(expected, name)
            assert adds_up(account)
        assert pool.status().counters.message_bytes == 0
        # Later calls continue as if the discarded steps had been delivered.
        for target in targets:
            assert equal(await sample(pool, target), await sample(other, target))


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
@pytest.mark.parametrize("num_skipped", [1, 1001, 2399])
async def test_blackhole_does_not_count_skipped_steps(env: rollserve.EnvSpec, num_skipped: int) -> None:
    async with pool_of(InProcessBackend(), env) as pool:
        await pool.update_agent([RandomSpec()])
        account = await measure(pool, Fragments(2400, num_skipped))
        assert account.num_discarded_steps == 2400 - num_skipped
        assert account.num_lost_steps == num_skipped
        assert adds_up(account)


@pytest.mark.slow
@pytest.mark.parametrize("target", [AtLeast(150_000), Fragments(100_000)], ids=["episodes", "fragments"])
async def test_blackhole_counts_the_same_when_a_worker_is_killed(
    ray_backend: Backend, target: Target | Fragments
) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await measure(pool, target, seed=1)
        running = asyncio.create_task(measure(pool, target, seed=1))
        await asyncio.sleep(0.1)
        assert not running.done()
        kill_one(pool, random.Random(0))
        account = await running
        assert account.num_discarded_steps == expected.num_discarded_steps
        assert account.num_discarded_episodes == expected.num_discarded_episodes
        assert account.num_retried_episodes > 0
        assert adds_up(account)


async def test_cancelled_blackhole_is_accounted_for(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        running = asyncio.create_task(measure(pool, AtLeast(10**9)))
        await until(lambda: bool(calls) and calls[0].account.num_discarded_steps > 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        account = (await sample(pool, AtLeast(100))).account
        assert account.num_cancelled_steps >= calls[0].account.num_discarded_steps
        assert adds_up(account)


async def test_blackhole_stream_yields_only_the_account(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with sampler.stream_samples(2000, blackhole=True) as stream:
        assert list(stream) == []
        account = stream.end()
    assert account.num_discarded_steps >= 2000
    assert stream.num_simulated_steps >= 2000
    batch = sampler.obtain_samples(2000, blackhole=False)
    assert batch.account.seed == account.seed
    assert batch.account.first_episode_index == account.first_episode_index + account.num_discarded_episodes
    async with rollserve.aconnect(server.address) as asynchronous:
        exact = asynchronous.stream_exact_episodes(3, blackhole=True)
        assert [part async for part in exact] == []
        assert exact.end().num_discarded_episodes == 6
        fragments = asynchronous.stream_fragments(80, blackhole=True)
        assert [part async for part in fragments] == []
        assert fragments.end().num_discarded_steps == 80
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.INVALID_VALUE, match=r"^blackhole: "):
            await asynchronous.stream_samples(1, blackhole=True).join()


@pytest.mark.parametrize(
    "call",
    [
        lambda sampler: sampler.obtain_samples(1, blackhole=True),
        lambda sampler: sampler.obtain_exact_episodes(1, blackhole=True),
        lambda sampler: sampler.obtain_fragments(8, blackhole=True),
    ],
)
async def test_blackhole_is_rejected_by_calls_that_return_a_batch(call: Callable[[Any], Any]) -> None:
    with rollserve.connect("127.0.0.1:1") as sampler:
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.INVALID_VALUE, match=r"^blackhole: "):
            call(sampler)
        with raises(TypeError, field="blackhole"):
            sampler.stream_samples(1, blackhole=1)  # type: ignore[typeddict-item]
    async with rollserve.aconnect("127.0.0.1:1") as asynchronous:
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.INVALID_VALUE, match=r"^blackhole: "):
            await call(asynchronous)
