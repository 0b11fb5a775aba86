"""Limits of the length of episodes in native vector environments."""

from __future__ import annotations

import dataclasses
import json

import pytest
from native_envs import ALLOWED, CARTPOLE, RIGHT
from pools import pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Fragments, InProcessBackend, Target


@pytest.mark.parametrize("per_call", [False, True])
async def test_length_of_episodes_is_limited(per_call: bool) -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, max_episode_length=None if per_call else 4) as pool:
        await pool.update_agent([RIGHT])
        options = {"max_episode_length": 4} if per_call else {}
        batch = await sample(pool, AtLeast(41), **options)
        assert batch.lengths.tolist() == [4] * 11
        assert batch.truncated.all()
        assert not batch.terminated.any()
        if per_call:
            longer = await sample(pool, AtLeast(41), seed=1)
            assert longer.terminated.all()


UNLIMITED = EnvSpec("sample_envs:UnlimitedCoins-v0", num_rows=4)


@pytest.mark.parametrize("target", [AtLeast(40), Fragments(40)])
async def test_limit_is_rejected_by_native_code_without_limits(target: Target) -> None:
    env = dataclasses.replace(UNLIMITED, vectorization="native")
    async with pool_of(InProcessBackend(), env, workers=1, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        quotes = ("3", UNLIMITED.id, "'rows'")
        with raises(InvalidValueError, field="options.max_episode_length", reason=Reason.INVALID_VALUE, quotes=quotes):
            await sample(pool, target, seed=1, max_episode_length=3)
        assert set((await sample(pool, AtLeast(40), seed=1)).lengths.tolist()) == {1, 30}


async def test_server_with_a_limit_avoids_native_code_without_limits() -> None:
    async with pool_of(InProcessBackend(), UNLIMITED, max_episode_length=3, **ALLOWED) as pool:
        assert pool.status().env.reproducibility is Reproducibility.EPISODE
        await pool.update_agent([RandomSpec()])
        assert set((await sample(pool, AtLeast(40), seed=1)).lengths.tolist()) == {1, 3}
        with raises(InvalidValueError, field="all_workers.environment.vectorization", quotes=("'native'", "3")):
            await pool.update_env([dataclasses.replace(UNLIMITED, vectorization="native")])
        updated = await pool.update_env([CARTPOLE])
        assert updated.description.reproducibility is Reproducibility.BLOCK


@pytest.mark.parametrize("vectorization", [None, "native"])
@pytest.mark.parametrize("limit", ["abc", 0, -1, 2.5, True, [], {}])
async def test_invalid_limit_is_rejected(limit: object, vectorization: rollserve.Vectorization | None) -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1, **ALLOWED) as pool:
        env = EnvSpec("CartPole-v1", {"max_episode_steps": limit}, vectorization=vectorization)
        field, quotes = "all_workers.environment.kwargs_json", ("max_episode_steps", json.dumps(limit))
        with raises(InvalidValueError, field=field, reason=Reason.INVALID_VALUE, quotes=quotes):
            await pool.update_env([env])


async def test_limit_may_be_null() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1, **ALLOWED) as pool:
        await pool.update_agent([RIGHT])
        expected = await sample(pool, AtLeast(100), seed=1)
        await pool.update_env([dataclasses.replace(CARTPOLE, kwargs={"max_episode_steps": None})])
        assert equal(await sample(pool, AtLeast(100), seed=1), expected)
