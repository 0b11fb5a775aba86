"""Moments of the discounted returns of fragments, whose episodes begin in earlier calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fragment_calls import fragments, in_calls
from pools import CARTPOLE, pool_of, sample
from support import equal, raises
from unreliable import MortalBackend

import rollserve
from rollserve import Reason, RunningMoments, RunningReturns
from rollserve.transforms import ScaleRewards
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import NotReadyError
from rollserve_server.pool import AtLeast, Fragments, InProcessBackend

DISCOUNT = 0.97
CALLS = [9, 50, 1, 70, 300]
ASKED: dict[str, Any] = {"seed": 3, "return_discount": DISCOUNT}
PENDULUM = rollserve.EnvSpec("Pendulum-v1", {"max_episode_steps": 41}, vectorization="rows")
CHEETAH = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 41}, vectorization="envpool", num_rows=2)
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=2, transforms=(ScaleRewards(-0.3),))
CASES: dict[str, tuple[rollserve.EnvSpec, dict[str, Any]]] = {
    "rows": (PENDULUM, {}),
    "rows, soft": (PENDULUM, {"max_episode_length": 13, "soft": True}),
    "rows, limit": (PENDULUM, {"max_episode_length": 13}),
    "native": (NATIVE, {}),
    "native, soft": (NATIVE, {"max_episode_length": 13, "soft": True}),
    "envpool": (CHEETAH, {}),
    "envpool, transformed": (dataclasses.replace(CHEETAH, transforms=(ScaleRewards(0.1),)), {}),
}


def return_moments(batch: rollserve.EpisodeBatch) -> RunningMoments:
    assert batch.account.return_moments is not None
    return batch.account.return_moments


def vec_normalize(batches: list[rollserve.EpisodeBatch], discount: float) -> list[np.ndarray]:
    """Return R after each step of each batch, as VecNormalize of Stable-Baselines3 has it.

    Its `step_wait` sets `returns = returns * gamma + reward`, and then the returns of ended episodes to 0.
    """
    returns: dict[int, float] = {}
    found = []
    for batch in batches:
        by_step = []
        for segment in batch.split():
            index = int(segment.episode_indices[0])
            for reward in segment.rewards.tolist():
                returns[index] = returns.get(index, 0.0) * discount + reward
                by_step.append(returns[index])
        found.append(np.array(by_step))
    return found


@pytest.mark.parametrize("case", CASES)
async def test_return_moments_are_those_of_vec_normalize_over_the_joined_fragments(case: str) -> None:
    env, options = CASES[case]
    async with pool_of(InProcessBackend(), env, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        batches = await in_calls(pool, CALLS, **ASKED, **options)
        small = await in_calls(pool, CALLS, max_message_bytes=4096, **ASKED, **options)
        again = await fragments(pool, 4 * CALLS[-1], sum(CALLS[:-1]), **ASKED, **options)
        plain = await in_calls(pool, CALLS, seed=3, **options)
    assert any(batch.first_steps.any() for batch in batches)
    client = RunningReturns(DISCOUNT)
    for batch, expected, cut, other in zip(batches, vec_normalize(batches, DISCOUNT), small, plain, strict=True):
        moments = return_moments(batch)
        assert moments.count == batch.num_steps
        assert np.allclose(moments.mean, expected.mean(), rtol=1e-12)
        assert np.allclose(moments.variance, expected.var(), rtol=1e-10, atol=1e-15)
        assert moments == RunningMoments.of_segments(client.add(batch), batch.lengths)
        starts = np.cumsum(batch.lengths) - batch.lengths
        assert batch.discounted_returns_before is not None
        assert np.allclose(
            DISCOUNT * batch.discounted_returns_before + batch.rewards[starts], expected[starts], rtol=1e-12
        )
        assert not batch.discounted_returns_before[batch.first_steps == 0].any()
        assert equal(cut, batch)
        assert return_moments(cut) == moments
        assert other.account.return_moments is other.discounted_returns_before is None
        assert equal(dataclasses.replace(batch, discounted_returns_before=None), other)
    assert client.num_unknown_episodes == 0
    assert equal(again, batches[-1])
    assert return_moments(again) == return_moments(batches[-1])


@pytest.mark.parametrize("case", ["rows", "native", "envpool"])
async def test_return_moments_are_the_same_with_any_number_of_workers(case: str) -> None:
    env = CASES[case][0]
    known: dict[str, Any] = {}
    calls = [3, 4, 60]  # episodes end in the last one alone, whose fragments come in an order of the workers
    for workers in (1, 2, 3, 5):
        rows = 30 // workers if case == "rows" else 2  # a block depends on its number of rows
        async with pool_of(InProcessBackend(), env, workers=workers, rows=rows) as pool:
            await pool.update_agent([RandomSpec()])
            batches = await in_calls(pool, calls, **ASKED)
        for expected, batch in zip(vec_normalize(batches, DISCOUNT), batches, strict=True):
            assert return_moments(batch) == RunningMoments.of_segments(expected, batch.lengths)
        if case == "rows":
            early = [return_moments(batch) for batch in batches[:2]]
            assert known.setdefault("early", early) == early
            last = batches[2]
            assert last.discounted_returns_before is not None
            late = sorted(zip(last.episode_indices.tolist(), last.discounted_returns_before.tolist(), strict=True))
            assert known.setdefault("late", late) == late


@pytest.mark.parametrize(
    "case",
    [
        "rows",
        "native, soft",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("rows, soft", "native", "envpool")),
    ],
)
async def test_lost_workers_change_no_bit_of_return_moments(case: str) -> None:
    env, options = CASES[case]
    options = {**ASKED, **options, "max_message_bytes": 4096}
    async with pool_of(InProcessBackend(), env, workers=3, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await in_calls(pool, CALLS, **options)
    for seed in range(9):
        backend, num_lost = MortalBackend(seed, 4, with_machines=True), 0
        async with pool_of(backend, env, workers=3, rows=2, call_window_bytes=5000, unit_retries=1000) as pool:
            await pool.update_agent([RandomSpec()])
            for batch, known in zip(await in_calls(pool, CALLS, **options), expected, strict=True):
                assert equal(batch, known)
                assert return_moments(batch) == return_moments(known)
                num_lost += batch.account.num_lost_steps
        if num_lost > 0:
            return
    raise AssertionError("no worker was lost while it had steps")


async def test_each_discount_has_a_row_sequence_of_its_own() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        own = [await sample(pool, Fragments(40), return_discount=discount) for discount in (0.9, 0.5, None, 0.9)]
        seeds = [batch.account.seed for batch in own if batch.account_or_none is not None]
        assert len(set(seeds)) == 3
        assert seeds[3] == seeds[0]
        clocks = [batch.account.row_step_count for batch in own if batch.account_or_none is not None]
        assert clocks == [0, 0, 0, 10]
        first = await fragments(pool, 40, **ASKED)
        for discount in (0.5, None):
            with raises(NotReadyError, field="fragments.row_step_count", reason=Reason.ROW_STEP_COUNT):
                await fragments(pool, 40, 10, seed=3, return_discount=discount)
        second = await fragments(pool, 40, 10, **ASKED)
        client = RunningReturns(DISCOUNT)
        for batch in (first, second):
            client.add(batch)
        merged = RunningMoments()
        merged.merge(return_moments(first))
        merged.merge(return_moments(second))
        assert merged == client.moments


async def test_returns_before_segments_of_whole_episodes_continue_over_messages() -> None:
    async with pool_of(InProcessBackend(), PENDULUM, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await sample(pool, AtLeast(300), **ASKED)
        cut = await sample(pool, AtLeast(300), max_message_bytes=4096, **ASKED)
    assert equal(cut, whole)
    assert whole.discounted_returns_before is not None
    assert not whole.discounted_returns_before.any()
    rest = whole.without_first_steps(10)
    assert rest.discounted_returns_before is not None
    assert np.isnan(rest.discounted_returns_before[0])
    assert not rest.discounted_returns_before[1:].any()
