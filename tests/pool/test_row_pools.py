"""Pools whose rows have environments of their own."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
from collections.abc import Callable, Sequence

import pytest
from pools import num_retried_despite_kills, pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvChange, EnvSpec
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_server.pool import AtLeast, Backend, Exactly, InProcessBackend, RowUpdates, Target

MODULES = {"allow_module": ("sample_envs",)}


def cartpoles(*limits: int) -> RowUpdates:
    return RowUpdates(tuple(EnvSpec("CartPole-v1", {"max_episode_steps": limit}) for limit in limits))


async def test_batch_does_not_depend_on_the_number_of_workers(backend: Backend) -> None:
    """The rows are the same on all workers."""
    batches = []
    for num_workers in (1, 3):
        async with pool_of(backend, workers=num_workers) as pool:
            await pool.update_env([cartpoles(3, 30, 500, 7)])
            await pool.update_agent([RandomSpec()])
            batch = await sample(pool, AtLeast(3000), seed=9)
            batches.append(dataclasses.replace(batch, worker_indices=None))
            again = await sample(pool, Exactly(3), seed=9)
            assert (again.lengths[again.episode_indices % 4 == 0] == 3).all()
    assert equal(*batches)
    assert (batches[0].lengths[::4] == 3).all()


@pytest.mark.parametrize(
    "num_steps_between", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 100))]
)
async def test_whole_update_restores_native_vectorization(ray_backend: Backend, num_steps_between: int) -> None:
    """Workers may keep free rows that are stepped one by one, and may be replaced."""
    settings = {"vectorization": "auto", "rows": 3, "native_rows": 8, "episodes_per_row": 4}
    async with pool_of(ray_backend, **settings) as pool:
        await pool.update_agent([RandomSpec()])
        before, expected = pool.status().env, await sample(pool, AtLeast(2000), seed=1)
        await pool.update_env([RowUpdates((EnvChange(reset_options={"low": -0.01}),) * 8)])
        if num_steps_between:
            await sample(pool, AtLeast(num_steps_between))
        updated = (await pool.update_env([EnvSpec("CartPole-v1")])).description
        assert updated == before
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        assert equal(await sample(pool, AtLeast(2000), seed=1), expected)


async def test_whole_update_restores_the_number_of_rows() -> None:
    async with pool_of(InProcessBackend(), vectorization="auto", rows=3, native_rows=8) as pool:
        await pool.update_env([RowUpdates((None,) * 8)])
        updated = await pool.update_env([EnvSpec("CartPole-v1", vectorization="rows")])
        assert updated.description.num_rows == 3
        with raises(InvalidValueError, field="per_worker.updates[1]", quotes=("row_count", "3", "4")):
            await pool.update_env(
                [EnvSpec("CartPole-v1", num_rows=4, vectorization="rows"), EnvChange()], per_worker=True
            )
        with raises(InvalidValueError, field="per_worker.updates[1]", quotes=("vectorization", "rows", "native")):
            await pool.update_env([EnvSpec("CartPole-v1", num_rows=3), EnvChange()], per_worker=True)


@pytest.mark.parametrize("target", [AtLeast, pytest.param(Exactly, marks=pytest.mark.slow)])
@pytest.mark.parametrize("buffer_bytes", [pytest.param(1 << 26, marks=pytest.mark.slow), 3000])
@pytest.mark.slow
async def test_batch_is_the_same_when_workers_are_killed(
    ray_backend: Backend, target: Callable[[int], Target], buffer_bytes: int
) -> None:
    options = {"workers": 2, "worker_buffer_bytes": buffer_bytes, "call_window_bytes": buffer_bytes}
    async with pool_of(ray_backend, **options) as pool:
        await pool.update_agent([RandomSpec()])
        updates: Sequence[RowUpdates] = [cartpoles(2, 500, 40, 9), cartpoles(300, 1, 500, 12)]
        await pool.update_env(updates, per_worker=True)
        request = target(10_000 if target is AtLeast else 300)
        expected = await sample(pool, request, seed=9)
        source = random.Random(buffer_bytes)
        assert await num_retried_despite_kills(pool, request, expected, source, (0.02, 0.15)) > 0


async def test_failed_row_gets_its_own_environment_again(backend: Backend) -> None:
    slow = [EnvSpec("sample_envs:Slow", {"step_seconds": 0.0, "length": length}) for length in (1, 2, 3, 4)]
    async with pool_of(backend, slow[0], workers=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await pool.update_env([RowUpdates((slow[0], EnvSpec("sample_envs:Failing"), slow[2], slow[3]))])
        for _ in range(2):
            with raises(EnvFailedError, quotes=("episode 1 ", "sample_envs:Failing", "step")):
                await sample(pool, AtLeast(10), seed=1)
            batch = await sample(pool, AtLeast(3), seed=1, first_index=2)
            assert batch.lengths.tolist() == [3]
        await pool.update_env([RowUpdates((None, slow[1], None, None))])
        batch = await sample(pool, AtLeast(20), seed=1)
        assert batch.lengths.tolist() == [1, 2, 3, 4] * 2


async def test_new_worker_gets_the_rows_of_all_versions(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, workers=2) as pool:
        await pool.update_agent([RandomSpec()])
        versions = [(await pool.update_env([cartpoles(*limits)])).version for limits in ((1, 2, 3, 4), (4, 3, 2, 1))]
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        for version, lengths in zip(versions, ([1, 2, 3, 4], [4, 3, 2, 1]), strict=True):
            batch = await sample(pool, AtLeast(20), seed=1, env_version=version)
            assert batch.lengths.tolist() == lengths * 2


async def test_reproducibility_is_of_the_least_reproducible_row(backend: Backend) -> None:
    """Rows of each kind are tried, and not only the first ones."""
    async with pool_of(backend, EnvSpec("sample_envs:Tasks"), workers=1, **MODULES) as pool:
        updated = await pool.update_env([RowUpdates((None, None, None, EnvChange(kwargs={"size": 2})))])
        assert updated.description.reproducibility is rollserve.Reproducibility.EPISODE
    wrapper = rollserve.Wrapper("NormalizeReward")
    async with pool_of(backend, workers=1) as pool:
        updated = await pool.update_env([RowUpdates((None, None, None, EnvSpec("CartPole-v1", wrappers=(wrapper,))))])
        assert updated.description.reproducibility is rollserve.Reproducibility.WORKER
        assert updated.description.max_episode_steps == 500
