"""Operators' maxima of steps and seconds of a call."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fragment_calls import MODULES, fragments
from pools import adds_up, evaluate, pool_of, sample
from raw_calls import serving
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import CallTooLongError, OverLimitError
from rollserve_server.pool import AtLeast, Exactly, InProcessBackend

ENDS = rollserve.EnvSpec("sample_envs:Ends", {"length": 10})
SLOW = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.01, "length": 10})


async def test_calls_are_refused_that_ask_for_more_steps_than_allowed() -> None:
    async with pool_of(InProcessBackend(), ENDS, max_call_steps=800, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        before = pool.status().next_index
        for call in (sample(pool, AtLeast(801)), fragments(pool, 808)):
            with raises(OverLimitError, field="step_count", reason=Reason.CALL_TOO_LARGE, quotes="80"):
                await call
        assert pool.status().next_index == before
        assert (await sample(pool, AtLeast(800))).num_steps >= 800
        assert (await fragments(pool, 800)).num_steps == 800


async def test_calls_for_episodes_end_when_they_have_made_more_steps_than_allowed() -> None:
    endless = rollserve.EnvSpec("sample_envs:Ends", {"length": 0})
    async with pool_of(InProcessBackend(), endless, max_call_steps=3000, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for call in (sample, evaluate):
            target = Exactly(1) if call is sample else 1
            with raises(OverLimitError, reason=Reason.CALL_TOO_LARGE, match=r"\b3000\b"):
                await call(pool, target)  # type: ignore[arg-type]
            assert adds_up((await call(pool, target, max_episode_length=7)).account)  # type: ignore[arg-type]


async def test_calls_end_when_their_time_is_over() -> None:
    async with pool_of(InProcessBackend(), SLOW, max_call_seconds=0.5, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        began = time.monotonic()
        for target in (AtLeast(10**9), Exactly(10**6)):
            with raises(CallTooLongError, reason=Reason.CALL_TOO_LONG, match=r"\b0\.5 s"):
                await sample(pool, target)
        assert time.monotonic() - began < 30
        batch = await sample(pool, AtLeast(10))
        assert adds_up(batch.account)
        assert batch.account.num_cancelled_steps > 0


@pytest.mark.slow
def test_client_resumes_calls_whose_time_is_over(tmp_path: Path) -> None:
    options = ("--env", "sample_envs:Slow", "--env-kwargs", '{"step_seconds": 0.01}', "--backend", "in-process")
    workers = ("--workers", "1", "--rows", "2", "--call-window-bytes", "4096")
    with serving(tmp_path, *options, *workers, "--max-call-seconds", "1") as (_, sampler):
        expected = [sampler.obtain_samples(20, seed=3, first_episode_index=index) for index in range(0, 30, 2)]
        batch = sampler.obtain_samples(300, seed=3)
        assert batch.account.num_resumptions > 0
    assert equal(batch, rollserve.EpisodeBatch.concatenate(*expected).joined())
