"""Calls in which no episode ends: they warn, fail with a reason of their own, and leave the sampler as it was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from fragment_calls import MODULES, fragments
from pools import adds_up, calls_of, evaluate, evaluate_population, pool_of, sample, sample_request, until
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import OverLimitError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Exactly, InProcessBackend, Pool, Progress

ENDLESS = rollserve.EnvSpec("sample_envs:Ends", {"length": 0})
SHORT = 3_000
"""Setting `max_unended_steps` of a pool whose endless calls fail soon."""

Call = Callable[..., Awaitable[Any]]


async def sample_population(pool: Pool, **options: Any) -> Any:
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (2,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(space, rollserve.spaces.Discrete(8), hidden_sizes=(4,), seed=0)
    await pool.update_agent([MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)])
    members = {name: np.stack([value] * 3) for name, value in agent.parameters.items()}
    return await evaluate_population(pool, members, 2, **options)


CALLS: dict[str, Call] = {
    "steps": lambda pool, **options: sample(pool, AtLeast(20), **options),
    "exact episodes": lambda pool, **options: sample(pool, Exactly(1), **options),
    "evaluation": lambda pool, **options: evaluate(pool, 3, **options),
    "population": sample_population,
}


def fails() -> contextlib.AbstractContextManager[Any]:
    return raises(OverLimitError, field="options.max_episode_length", reason=Reason.NO_EPISODE_ENDED, quotes="none")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_call_fails_when_no_episode_ends(call: Call) -> None:
    async with pool_of(InProcessBackend(), ENDLESS, max_unended_steps=SHORT, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with fails():
            await call(pool)
        result = await call(pool, max_episode_length=7)  # nothing of the endless episodes is left
        assert adds_up(result.account)
        if isinstance(result, rollserve.EpisodeBatch):
            assert set(result.lengths) == {7}
            assert result.account.num_cancelled_steps >= SHORT
            assert pool.status().counters.num_failed_calls == 1
        with fails():
            await call(pool)


async def test_call_fails_when_the_first_of_its_episodes_does_not_end() -> None:
    env = rollserve.EnvSpec("sample_envs:OneEndless")
    async with pool_of(InProcessBackend(), env, max_unended_steps=SHORT, worker_buffer_bytes=4096, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with fails():
            await sample(pool, AtLeast(100), seed=3)
        batch = await sample(pool, AtLeast(100), seed=3, max_episode_length=50)
        assert 50 in batch.lengths


async def test_call_warns_once_before_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with pool_of(InProcessBackend(), ENDLESS, max_unended_steps=40_000, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        warnings: list[str] = []
        with caplog.at_level(logging.WARNING), fails():
            async with contextlib.aclosing(pool.sample(sample_request(AtLeast(20)))) as items:
                async for item in items:
                    warnings += [item.warning] if isinstance(item, Progress) and item.warning else []
    assert len(warnings) == 1
    assert "max_episode_length" in warnings[0]
    assert [record.message for record in caplog.records].count("no episode ends") == 1


async def test_calls_may_make_many_steps_before_an_episode_ends() -> None:
    """The steps that a call asks for, and its number of rows, allow it more than the setting says."""
    for length, num_rows, target in ((900, 4, AtLeast(100)), (80, 32, Exactly(32))):
        env = rollserve.EnvSpec("sample_envs:Ends", {"length": length})
        async with pool_of(InProcessBackend(), env, max_unended_steps=SHORT, rows=num_rows, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            assert set((await sample(pool, target)).lengths) == {length}
    env = rollserve.EnvSpec("sample_envs:Ends", {"length": 20_000})
    async with pool_of(InProcessBackend(), env, max_unended_steps=SHORT, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with fails():
            await sample(pool, Exactly(4))


@pytest.mark.parametrize("settings", [{"max_unended_steps": 0}, {"max_episode_length": 4000, "max_unended_steps": 1}])
async def test_call_goes_on_when_nothing_is_to_end_it(settings: dict[str, int]) -> None:
    async with pool_of(InProcessBackend(), ENDLESS, **settings, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, AtLeast(1)))
        if "max_episode_length" in settings:
            assert (await running).lengths[0] == 4000
            return
        await until(lambda: running.done() or (bool(calls) and calls[0].account.num_simulated_steps > 20_000))
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_fragments_need_no_end() -> None:
    async with pool_of(InProcessBackend(), ENDLESS, max_unended_steps=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        first, second = await fragments(pool, 4000), await fragments(pool, 4000)
        assert second.first_steps.tolist() == [500] * 8
        with fails():
            await sample(pool, AtLeast(1))
        again = await fragments(pool, 4000)
        assert again.first_steps.tolist() == [1000] * 8
        assert not equal(first, again)


def test_client_is_warned_and_told_the_reason() -> None:
    options = ("--backend", "in-process", "--workers", "1", "--allow-module", "sample_envs")
    limits = ("--max-unended-steps", "30000", "--env", "sample_envs:Ends", "--env-kwargs", '{"length": 0}')
    with (
        local_server(*options, *limits, environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        calls: list[Callable[[], Any]] = [lambda: sampler.obtain_samples(10), lambda: sampler.evaluate(1)]
        for call in calls:
            with (
                pytest.warns(RuntimeWarning, match="no episode has ended") as caught,
                raises(rollserve.LimitError, reason=Reason.NO_EPISODE_ENDED),
            ):
                call()
            assert len(caught) == 1
        assert len(sampler.obtain_samples(10, max_episode_length=5)) == 2
