"""Fragments of native vector environments, whose rows go on from call to call."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from fragment_calls import AS_CLIENTS, fragments, in_calls, mlp, num_lost_despite_kills, of_episodes
from native_envs import ALLOWED, RIGHT, coins
from pools import adds_up, pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvSpec, Reproducibility
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Backend, InProcessBackend

CARTPOLE = EnvSpec("CartPole-v1", vectorization="native", num_rows=2)
SOFT: dict[str, Any] = {"max_episode_length": 6, "soft": True}
COINS = coins(mode="SameStep", num_steps=9)


async def test_fragments_have_the_steps_of_the_environment_with_next_step_reset() -> None:
    """CartPole's own vector environment resets a row in the step after its episode; fragments have no such step."""
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await fragments(pool, 4 * 300, seed=5)
    plain: Any = gymnasium.make_vec("CartPole-v1", batch.num_steps, "vector_entry_point")
    plain.reset()
    plain.unwrapped.state = np.array(batch.observations, np.float64).T
    states, rewards, terminated, *_ = plain.step(batch.actions)
    assert np.allclose(states, batch.next_observations, rtol=0, atol=1e-6)  # observations are rounded states
    assert np.array_equal(rewards, batch.rewards)
    ends = np.cumsum(batch.lengths) - 1
    assert np.array_equal(terminated[ends], batch.terminated)
    assert terminated.sum() == batch.terminated.sum() > 20
    starts = (np.cumsum(batch.lengths) - batch.lengths)[batch.first_steps == 0]
    assert np.all(np.abs(batch.observations[starts]) <= 0.05)
    assert len(np.unique(batch.observations[starts], axis=0)) == len(starts)


@pytest.mark.parametrize("options", [{}, SOFT, {"max_episode_length": 6}], ids=["free", "soft", "hard"])
@pytest.mark.parametrize("env", [CARTPOLE, COINS], ids=lambda env: env.id)
async def test_fragments_do_not_depend_on_the_calls(backend: Backend, env: EnvSpec, options: dict[str, Any]) -> None:
    async with pool_of(backend, env, **ALLOWED) as pool:
        assert pool.status().env.reproducibility is Reproducibility.BLOCK
        await pool.update_agent([mlp(env, 1)])
        whole = await of_episodes(await in_calls(pool, [150], seed=3, **options))
        batches = await in_calls(pool, [1, 49, 64, 36], seed=3, **options)
        parts = await of_episodes(batches)
        assert parts.keys() == whole.keys()
        for index, episode in whole.items():
            assert equal(parts[index], episode), index
            (length,), ended = episode.lengths, episode.terminated | episode.truncated
            if options:
                assert length <= 6
                assert bool(ended[0]) or length < 6
            if ended[0] and env is COINS:
                assert episode.last_observations["made"][0, 0] == episode.observations["made"][-1, 0] + 1
        num_rows = pool.status().env.num_rows
        for batch in batches:
            assert batch.worker_indices is not None
            assert np.array_equal(batch.worker_indices, batch.episode_indices % (2 * num_rows) // num_rows)
            sums = np.bincount(batch.episode_indices.astype(np.int64) % (2 * num_rows), batch.lengths)
            assert len(set(sums.tolist())) == 1


async def test_soft_horizon_does_not_reset_rows() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        free = await of_episodes(await in_calls(pool, [100], seed=3))
        soft = await of_episodes(await in_calls(pool, [100], seed=3, **SOFT))
        first = free[0]
        pieces = [soft[index] for index in range(0, 2 * -(-first.num_steps // 6), 2)]
        assert np.array_equal(np.concatenate([piece.observations for piece in pieces]), first.observations)
        assert [bool(piece.truncated[0]) for piece in pieces[:-1]] == [True] * (len(pieces) - 1)
        assert pieces[-1].terminated[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, SOFT], ids=["free", "soft"])
async def test_fragments_are_the_same_when_workers_are_killed(ray_backend: Backend, options: dict[str, Any]) -> None:
    calls = [30, 3000, 10, 3000]
    async with pool_of(ray_backend, CARTPOLE, workers=2) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        assert await num_lost_despite_kills(pool, calls, random.Random(7), 0.1, **options) > 0


async def test_last_call_can_be_repeated_after_an_agent_update(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        await fragments(pool, 4 * 20, seed=4)
        await pool.update_agent([mlp(CARTPOLE, 2)])
        second = await fragments(pool, 4 * 50, 20, seed=4, columns=AS_CLIENTS)
        assert set(second.policy_versions.tolist()) == {2}
        await pool.update_agent([RandomSpec()])
        again = await fragments(pool, 4 * 50, 20, seed=4, skip=33, policy_version=2, columns=AS_CLIENTS)
        assert equal(again, second.without_first_steps(33))
        third = await fragments(pool, 4 * 30, 70, seed=4)
        assert set(third.policy_versions.tolist()) == {3}
        assert equal(await fragments(pool, 4 * 30, 70, seed=4), third)


async def test_next_step_reset_is_rejected_for_fragments() -> None:
    async with pool_of(InProcessBackend(), coins(), **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(InvalidValueError, field="fragments", quotes="sample_envs:Coins-v0"):
            await fragments(pool, 8)


async def test_rows_of_an_impure_environment_break_off_together(ray_backend: Backend) -> None:
    env = coins(mode="SameStep", num_steps=50, remembers=True)
    async with pool_of(ray_backend, env, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        first = await fragments(pool, 8 * 5)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        await asyncio.sleep(0.2)
        second = await fragments(pool, 8 * 5)
        assert adds_up(second.account)
        last = {index: index for index in first.episode_indices.tolist()}
        assert second.account.num_broken_off_episodes >= 1
        assert not set(second.episode_indices[second.worker_indices == 0].tolist()) & last.keys()


async def test_fragments_run_beside_whole_episodes() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RIGHT])
        whole = await sample(pool, AtLeast(200), seed=2)
        both = await asyncio.gather(fragments(pool, 400, seed=2), sample(pool, AtLeast(200), seed=2))
        assert equal(both[1], whole)
        assert equal(both[0], await fragments(pool, 400, seed=2))


def info_values(batch: rollserve.EpisodeBatch, name: str) -> dict[int, float]:
    """Return the values of an info by step, in a batch of one episode."""
    column = batch.env_infos[name]
    present = batch.env_infos.get(f"_{name}", np.ones(batch.num_steps, np.bool_))
    return {int(step): float(column[step]) for step in np.flatnonzero(present)}


async def test_infos_are_the_same_in_fragments_and_whole_episodes() -> None:
    """Episodes of the first block are the same in fragments and in whole episodes."""
    env = EnvSpec("sample_envs:Infos-v0", {"mode": "SameStep", "num_steps": 9}, vectorization="native", num_rows=4)
    async with pool_of(InProcessBackend(), env, workers=1, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await sample(pool, AtLeast(200), seed=3)
        batch = await fragments(pool, 200, seed=3)
        messages = await fragments(pool, 200, seed=3)
    assert equal(messages, batch)
    num_compared = 0
    episodes = whole.split()
    for fragment in batch.split():
        (index,) = fragment.episode_indices
        if index >= 32 or not (fragment.terminated | fragment.truncated).any():
            continue
        episode = episodes[index]
        assert fragment.lengths.tolist() == episode.lengths.tolist()
        for name in ("left", "steady", "nested/deep", "kind", "mixed"):
            assert info_values(fragment, name) == info_values(episode, name)
            num_compared += len(info_values(fragment, name))
    assert num_compared > 200
    assert "word" not in batch.env_infos
    assert batch.account.dropped_infos["word"] == 200
    shapes = batch.env_infos["shape"]
    num_present = int(batch.env_infos.get("_shape", np.ones(200, np.bool_)).sum())
    assert 0 < num_present < len(shapes)
    assert num_present + batch.account.dropped_infos["shape"] == 200
