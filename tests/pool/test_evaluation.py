"""Evaluations: outcomes of the episodes that a sampling call would deliver, without effect on sampling."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pools import (
    CARTPOLE,
    RecordingBackend,
    adds_up,
    calls_of,
    cartpole_agent,
    evaluate,
    evaluate_population,
    kill_one,
    pool_of,
    sample,
    sample_request,
    until,
)
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import EnvFailedError, NotReadyError
from rollserve_server.pool import AtLeast, Backend, Beginning, Exactly, InProcessBackend, Pool, Progress
from rollserve_server.sampling import Worker
from rollserve_wire.summaries import students_t

NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8, num_episodes_per_row=3)
RAGGED = rollserve.EnvSpec("sample_envs:Ragged")
SAMPLE_ENVS = {"allow_module": ("sample_envs",)}


def summed_rewards(batch: rollserve.EpisodeBatch) -> list[float]:
    """Return the sum of each episode's rewards, added step by step."""
    returns = []
    for episode in batch.split():
        total = 0.0
        for reward in episode.rewards.tolist():
            total += reward
        returns.append(total)
    return returns


ENVS = [
    CARTPOLE,
    NATIVE,
    rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 60}),
    rollserve.EnvSpec("sample_envs:Nested"),
]


@pytest.mark.parametrize("env", ENVS, ids=["rows", "native", "continuous", "nested"])
def test_evaluation_summarizes_the_episodes_of_a_sampling_call(
    sampler: rollserve.Sampler, env: rollserve.EnvSpec
) -> None:
    updated = sampler.update_env(env)
    agent: rollserve.Agent = rollserve.RandomAgent()
    if env is not ENVS[-1]:
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=2)
    version = sampler.update_agent(agent)
    result = sampler.evaluate(30, seed=3, return_episodes=True)
    assert result.episodes is not None
    sampled = sampler.obtain_samples(3000, seed=3)
    assert equal(result.episodes, rollserve.EpisodeBatch.concatenate(*sampled.split()[:30]))
    assert result.returns.tolist() == summed_rewards(result.episodes)
    assert np.array_equal(result.lengths, result.episodes.lengths)
    assert np.array_equal(result.terminated, result.episodes.terminated)
    assert np.array_equal(result.truncated, result.episodes.truncated)
    facts = result.policy_version, result.env_version, result.seed, result.first_episode_index, result.reproducibility
    assert facts == (version, updated.env_version, 3, 0, updated.reproducibility)
    assert result.account.num_episodes == 30
    alone = sampler.evaluate(30, seed=3)
    assert alone.episodes is None
    assert np.array_equal(alone.returns, result.returns)
    assert alone.account.num_discarded_steps == alone.lengths.sum() == result.account.num_steps
    assert all(adds_up(each.account) for each in (result, alone))
    later = sampler.evaluate(20, seed=3, first_episode_index=10)
    assert np.array_equal(later.returns, result.returns[10:])


def test_summaries_have_mean_deviation_and_confidence_interval(sampler: rollserve.Sampler) -> None:
    result = sampler.evaluate(12)
    for values, summary in ((result.returns, result.return_summary), (result.lengths, result.length_summary)):
        assert summary.mean == pytest.approx(values.mean())
        assert summary.std == pytest.approx(values.std(ddof=1))
        margin = 2.200985160 * values.std(ddof=1) / 12**0.5
        assert summary.confidence_interval == pytest.approx((values.mean() - margin, values.mean() + margin))
    single = sampler.evaluate(1).return_summary
    assert (single.std, single.confidence_interval) == (None, None)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # Two-sided quantiles of 95 % from tables.
    [(1, 12.7062047), (2, 4.30265273), (3, 3.18244631), (4, 2.77644511), (10, 2.22813885), (101, 1.98373100),
     (1000, 1.96233908), (131071, 1.95998217)],
)  # fmt: skip
def test_students_t_matches_tables(degrees: int, expected: float) -> None:
    assert students_t(degrees) == pytest.approx(expected, rel=1e-6)


def test_versions_are_evaluated_with_the_same_episodes(sampler: rollserve.Sampler) -> None:
    version = sampler.status().policy_version
    first = sampler.evaluate(10)
    sampler.update_agent(rollserve.ConstantAgent(np.array(1)))
    other = sampler.evaluate(10, return_episodes=True)
    assert other.episodes is not None
    assert other.seed == first.seed != sampler.status().seed
    again = sampler.evaluate(10, policy_version=version)
    assert again.policy_version == version != other.policy_version
    assert np.array_equal(first.returns, again.returns)
    assert not np.array_equal(first.returns, other.returns)
    assert np.array_equal(first.returns, sampler.evaluate(10, policy_version=version, seed=first.seed).returns)


def test_evaluation_takes_exploration_options(sampler: rollserve.Sampler) -> None:
    best = sampler.evaluate(10, deterministic=True, return_episodes=True).episodes
    assert best is not None
    assert not best.agent_infos["log_prob"].any()
    freely = sampler.evaluate(10, temperature=[1, 9], return_episodes=True)
    expected = sampler.obtain_samples(400, seed=freely.seed, temperature=[1, 9])
    assert freely.episodes is not None
    assert equal(freely.episodes, rollserve.EpisodeBatch.concatenate(*expected.split()[:10]))


async def test_evaluation_in_another_environment_changes_no_version(backend: Backend) -> None:
    short = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 5})
    async with pool_of(backend, workers=2) as pool:
        await pool.update_agent([cartpole_agent()])
        before = pool.status()
        result = await evaluate(pool, 9, env=short)
        assert [outcome.length for outcome in result.outcomes] == [5] * 9
        assert result.account.env_version == 0
        after = pool.status()
        assert (after.env_version, after.env_specs) == (before.env_version, before.env_specs)
        field = "options.environment_version"
        with raises(NotReadyError, field=field, reason=Reason.ENVIRONMENT_VERSION, quotes=("1", "-1")):
            await sample(pool, AtLeast(1), env_version=-1)
        own = await evaluate(pool, 9, seed=5)
        assert own.account.env_version == 1
        batch = await sample(pool, AtLeast(1000), seed=5)
        assert [outcome.length for outcome in own.outcomes] == batch.lengths[:9].tolist()


async def test_evaluation_environments_are_kept_apart_from_sampling() -> None:
    """Observations of this environment count its resets."""
    env = rollserve.EnvSpec("sample_envs:Curriculum")

    async def first_observations(pool: Pool, **options: Any) -> list[float]:
        batch = await sample(pool, Exactly(1), **options)
        return batch.observations[:1, 0].tolist()  # type: ignore[no-any-return]

    backend: Any = RecordingBackend(InProcessBackend())
    async with pool_of(backend, env, workers=1, rows=1, **SAMPLE_ENVS) as pool:
        await pool.update_agent([RandomSpec()])
        (before,) = await first_observations(pool)
        lengths = [outcome.length for outcome in (await evaluate(pool, 7, seed=1)).outcomes]
        envs, _ = await backend.handles[0].call(Worker.installed_versions)
        assert len(envs) == 2
        assert await first_observations(pool) == [before + 1]
        await pool.update_agent([RandomSpec()])
        again = await evaluate(pool, 7, seed=1)
        assert [outcome.length for outcome in again.outcomes] == lengths
        assert (await backend.handles[0].call(Worker.installed_versions))[0] == envs
        assert await first_observations(pool) == [before + 2]


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_evaluations_do_not_change_sampling_calls(backend: Backend, env: rollserve.EnvSpec) -> None:
    async def calls(pool: Pool, between: Callable[[], Any]) -> list[rollserve.EpisodeBatch]:
        batches = []
        for target in (AtLeast(500), Exactly(3), AtLeast(300)):
            batches.append(await sample(pool, target))
            await between()
        return batches

    async with pool_of(backend, env) as pool, pool_of(backend, env) as other:
        for each in (pool, other):
            await each.update_agent([cartpole_agent()])

        async def evaluations() -> None:
            results = await asyncio.gather(*(evaluate(pool, 20, env=own) for own in (None, NATIVE, None)))
            assert results[0].outcomes == results[2].outcomes
            assert all(adds_up(result.account) for result in results)

        async def nothing() -> None: ...

        disturbed, expected = await calls(pool, evaluations), await calls(other, nothing)
        assert all(equal(ours, theirs) for ours, theirs in zip(disturbed, expected, strict=True))
        for ours, theirs in zip(disturbed, expected, strict=True):
            assert adds_up(ours.account)
            assert (ours.account.first_episode_index, ours.account.seed) == (
                theirs.account.first_episode_index,
                theirs.account.seed,
            )
        counters, others = pool.status().counters, other.status().counters
        assert (counters.num_completed_calls, counters.num_steps, counters.num_episodes) == (
            others.num_completed_calls,
            others.num_steps,
            others.num_episodes,
        )
        assert pool.status().next_index == other.status().next_index


async def test_evaluation_runs_beside_the_maximum_of_calls(backend: Backend) -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.005, "length": 10})
    async with pool_of(backend, slow, rows=1, progress_seconds=0.01, **SAMPLE_ENVS) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        sampling = [asyncio.create_task(sample(pool, AtLeast(10**9))) for _ in range(5)]
        await until(lambda: len(calls) == 4)
        parts: list[object] = []
        result = await evaluate(pool, 5, parts=parts)
        assert [outcome.length for outcome in result.outcomes] == [10] * 5
        assert [type(part) for part in parts if not isinstance(part, Progress)] == [Beginning]
        assert not any(task.done() for task in sampling)
        for task in sampling:
            task.cancel()
        await asyncio.gather(*sampling, return_exceptions=True)


async def test_evaluations_queue_and_can_be_cancelled(backend: Backend) -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.02, "length": 1000})
    async with pool_of(backend, slow, workers=1, rows=1, progress_seconds=0.05, **SAMPLE_ENVS) as pool:
        await pool.update_agent([RandomSpec()])
        running = [asyncio.create_task(evaluate(pool, 100)) for _ in range(2)]
        await asyncio.sleep(0.3)
        parts: list[object] = []
        third = asyncio.create_task(evaluate(pool, 2, parts=parts, max_episode_length=3))
        await asyncio.sleep(0.3)
        assert not third.done()
        for each in running:
            each.cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert [(outcome.length, outcome.truncated) for outcome in (await third).outcomes] == [(3, True)] * 2
        signs = [part for part in parts if isinstance(part, Progress)]
        assert signs[0] == Progress(0)
        assert isinstance(parts[-1], Beginning | Progress)
        # The worker has stopped the cancelled episodes; otherwise this would take 20 s.
        batch = await sample(pool, AtLeast(1), max_episode_length=2)
        assert batch.lengths.tolist()[0] == 2


@pytest.mark.parametrize("kind", ["evaluation", "population", "exact episodes"])
async def test_progress_counts_episodes_that_have_ended(kind: str) -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.01, "length": 5})
    num_episodes = 12
    async with pool_of(InProcessBackend(), slow, rows=1, progress_seconds=0.02, **SAMPLE_ENVS) as pool:
        space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (1,), np.dtype(np.float32))
        agent = rollserve.MlpAgent.initial(space, rollserve.spaces.Discrete(2), seed=0)
        await pool.update_agent([MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)])
        parts: list[object] = []
        if kind == "evaluation":
            await evaluate(pool, num_episodes, parts=parts)
        elif kind == "population":
            members = {name: value[None].repeat(3, 0) for name, value in agent.parameters.items()}
            await evaluate_population(pool, members, num_episodes // 3, parts=parts)
        else:
            # The second worker's episodes cannot be delivered before the first one's have ended.
            request = sample_request(Exactly(num_episodes // 2), seed=3)
            async with contextlib.aclosing(pool.sample(request)) as items:
                parts += [item async for item in items]
        counts = [part.num_ended_episodes for part in parts if isinstance(part, Progress)]
        assert counts == sorted(counts)
        assert counts[-1] <= num_episodes
        assert len(set(counts)) > 3, counts


async def test_environments_are_closed_when_an_evaluation_is_cancelled_early() -> None:
    many = rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=2000)
    backend: Any = RecordingBackend(InProcessBackend())
    async with pool_of(backend, CARTPOLE, workers=1) as pool:
        await pool.update_agent([RandomSpec()])

        async def held() -> set[int]:
            envs, _ = await backend.handles[0].call(Worker.installed_versions)
            return envs  # type: ignore[no-any-return]

        running = asyncio.create_task(evaluate(pool, 5, env=many))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(100):
            if await held() == {1}:
                break
            await asyncio.sleep(0.05)
        assert await held() == {1}


@pytest.mark.slow
@pytest.mark.parametrize("env", [CARTPOLE, NATIVE, RAGGED], ids=["rows", "native", "ragged"])
async def test_outcomes_do_not_depend_on_workers_or_kills(ray_backend: Backend, env: rollserve.EnvSpec) -> None:
    spec = RandomSpec() if env is RAGGED else cartpole_agent()
    async with pool_of(InProcessBackend(), env, workers=1, rows=3, **SAMPLE_ENVS) as pool:
        await pool.update_agent([spec])
        expected = await evaluate(pool, 600, seed=4)
    assert [outcome.episode_index for outcome in expected.outcomes] == list(range(600))
    async with pool_of(ray_backend, env, workers=3, rows=8, **SAMPLE_ENVS) as pool:
        await pool.update_agent([spec])
        assert (await evaluate(pool, 600, seed=4)).outcomes == expected.outcomes
        kill_one(pool, random.Random(1))  # its next order is lost
        result = await evaluate(pool, 600, seed=4)
        assert result.outcomes == expected.outcomes
        assert adds_up(result.account)
        assert result.account.num_retried_episodes
        # The replacement of the lost worker has the evaluation's environments, too.
        await until(lambda: all(worker.healthy for worker in pool.status().workers))
        result = await evaluate(pool, 600, seed=4)
        assert result.outcomes == expected.outcomes
        assert all(worker.num_simulated_steps for worker in result.account.workers)


async def test_episodes_belong_to_workers_that_differ(backend: Backend) -> None:
    """Episode i belongs to worker i modulo 2, as in a sampling call."""
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent(1), RandomSpec()], per_worker=True)
        specs = [CARTPOLE, rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 7})]
        await pool.update_env(specs, per_worker=True)
        result = await evaluate(pool, 11, seed=2)
        batch = await sample(pool, AtLeast(2000), seed=2)
        assert [outcome.length for outcome in result.outcomes] == batch.lengths[:11].tolist()
        assert max(outcome.length for outcome in result.outcomes[1::2]) <= 7


async def test_failed_evaluation_changes_nothing(backend: Backend) -> None:
    async with pool_of(backend, **SAMPLE_ENVS) as pool:
        with raises(NotReadyError, reason=Reason.NO_AGENT):
            await evaluate(pool, 1)
        await pool.update_agent([cartpole_agent()])
        with raises(NotReadyError, reason=Reason.AGENT_MISFIT, quotes="mlp.head"):
            await evaluate(pool, 1, env=rollserve.EnvSpec("Pendulum-v1"))
        await pool.update_agent([RandomSpec()])
        with raises(EnvFailedError, quotes="broken by design"):
            await evaluate(pool, 20, env=rollserve.EnvSpec("sample_envs:FailsForSomeSeeds"))
        status = pool.status()
        assert (status.counters.num_failed_calls, status.counters.num_completed_calls) == (0, 0)
        assert len((await evaluate(pool, 5)).outcomes) == 5


def test_evaluation_runs_in_its_environment_though_another_differs_late(thread_sampler: rollserve.Sampler) -> None:
    kwargs = {"map_name": None, "is_slippery": False, "success_rate": 1.0, "reward_schedule": [1, 0, 0]}
    thread_sampler.update_env(rollserve.EnvSpec("FrozenLake-v1"))
    thread_sampler.update_agent(rollserve.ConstantAgent(2))
    for length, lake in enumerate(("SG", "SFG", "SFFG"), 1):
        env = rollserve.EnvSpec("FrozenLake-v1", {**kwargs, "desc": [lake]})
        assert thread_sampler.evaluate(1, env=env).lengths.tolist() == [length]
