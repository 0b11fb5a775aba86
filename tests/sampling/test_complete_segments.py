"""Ends of segments: values and recurrent states after the last step, and the rewards before the first."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from fragment_calls import MODULES, fragments, in_calls, of_episodes
from mlp_agents import spec_of
from onnx_models import model, node
from onnx_models import prepared as prepared_model
from pools import CARTPOLE, Reading, calls_of, kill_one, pool_of, prefetched, sample, sample_request
from python_agents import prepared_for_cartpole
from recurrent_truth import NAMES, agent_for, rollout
from support import equal, raises
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import AgentFailedError, InvalidValueError
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend
from rollserve_server.sampling import ColumnFormat

COMPLETE = ColumnFormat(last_values=True, last_states=True, returns_before=True)
WITH_STATES = dataclasses.replace(COMPLETE, all_states=True)
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=2)
ENVPOOL = rollserve.EnvSpec("CartPole-v1", vectorization="envpool", num_rows=2)
ENVS = {"rows": CARTPOLE, "native": NATIVE}


def check_ends(agent: rollserve.MlpAgent, batch: rollserve.EpisodeBatch) -> None:
    """Check the ends of segments, whose episodes begin in the batch, against plain formulas in float64."""
    before: dict[int, list[np.ndarray]] = {}
    rewards: dict[int, float] = {}
    assert batch.last_values is not None
    assert batch.last_values.dtype == np.float32
    assert batch.last_states.keys() == set(NAMES[str(agent.core)])
    for number, segment in enumerate(batch.split()):
        index = int(segment.episode_indices[0])
        parts = before.setdefault(index, [])
        assert sum(map(len, parts)) == segment.first_steps[0]
        assert segment.returns_before[0] == rewards.get(index, 0.0)
        parts.append(segment.observations)
        for reward in segment.rewards.tolist():
            rewards[index] = rewards.get(index, 0.0) + reward
        assert segment.episode_returns[0] == pytest.approx(rewards[index], abs=1e-9)
        expected = rollout(agent, np.concatenate([*parts, segment.last_observations]))
        value = 0.0 if segment.terminated[0] else expected["value"][-1]
        assert batch.last_values[number] == pytest.approx(value, rel=1e-5, abs=1e-5)
        for name in NAMES[str(agent.core)]:
            # The last row is after the last observation, which the episode's state has not seen.
            assert np.allclose(segment.last_states[name][0], expected[name][-2], rtol=0, atol=1e-5)


def in_order(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """Return the segments by episode and step, and without what depends on the number of workers."""
    parts = batch.split()
    order = np.lexsort((batch.first_steps, batch.episode_indices))
    joined = rollserve.EpisodeBatch.concatenate(*(parts[position] for position in order))
    return dataclasses.replace(joined, worker_indices=None)


# Whole episodes.


@pytest.mark.parametrize(("core", "env"), [("gru", "native"), ("lstm", "rows")])
async def test_ends_of_episodes_equal_plain_formulas(core: str, env: str) -> None:
    agent = agent_for(core, value="shared")
    async with pool_of(InProcessBackend(), ENVS[env], workers=2, rows=2, max_episode_length=None) as pool:
        await pool.update_agent([spec_of(agent)])
        for target in (AtLeast(300), Exactly(3)):
            batch = await sample(pool, target, seed=4, columns=COMPLETE)
            check_ends(agent, batch)
            assert not batch.returns_before.any()


async def test_ends_of_truncated_episodes_have_values() -> None:
    agent = agent_for("gru", value="shared")
    async with pool_of(InProcessBackend(), workers=1, rows=3) as pool:
        await pool.update_agent([spec_of(agent)])
        batch = await sample(pool, AtLeast(200), seed=4, columns=COMPLETE, max_episode_length=9)
        check_ends(agent, batch)
        assert batch.truncated.sum() > 5
        assert batch.last_values is not None
        assert batch.last_values[batch.truncated & ~batch.terminated].all()


async def test_ends_of_episodes_are_the_same_with_any_workers_and_messages() -> None:
    batches = []
    for num_workers, num_rows, max_bytes in ((1, 8, 1 << 22), (2, 3, 4096), (3, 1, 1 << 14), (5, 2, 4096)):
        async with pool_of(InProcessBackend(), workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([spec_of(agent_for("lstm", value="separate"))])
            options: dict[str, Any] = {"seed": 5, "max_episode_length": 150, "max_message_bytes": max_bytes}
            batches.append(await sample(pool, AtLeast(600), columns=COMPLETE, **options))
    for batch in batches[1:]:
        assert equal(batch, batches[0])


async def test_ends_are_there_for_episodes_that_calls_without_them_kept() -> None:
    """A call has the ends that it asks for, whatever the call asked for that simulated its episodes."""
    agent = spec_of(agent_for("gru", value="shared"))
    async with pool_of(InProcessBackend(), workers=2, rows=4) as pool:
        await pool.update_agent([agent])
        calls = calls_of(pool)
        plain = await sample(pool, AtLeast(100), prefetch=True)
        await prefetched(calls[-1])
        complete = await sample(pool, AtLeast(200), columns=COMPLETE)
        assert plain.last_values is None
        assert not plain.last_states
        assert complete.account.num_carried_steps
        first, seed = int(complete.episode_indices[0]), complete.account.seed
        again = await sample(pool, AtLeast(200), columns=COMPLETE, seed=seed, first_index=first)
        assert equal(complete, again)


# Fragments.


@pytest.mark.parametrize(("core", "env"), [("gru", "native"), ("lstm", "rows")])
async def test_ends_of_fragments_equal_plain_formulas(core: str, env: str) -> None:
    agent = agent_for(core, value="shared")
    async with pool_of(InProcessBackend(), ENVS[env], workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent)])
        batches = await in_calls(pool, [7, 1, 40, 30], seed=3, columns=COMPLETE)
        batch = rollserve.EpisodeBatch.concatenate(*batches)
        assert (batch.returns_before > 0).sum() >= 8
        check_ends(agent, batch)
        # A repeated call restores its rows: it adds the same rewards up again.
        assert equal(await fragments(pool, 4 * 30, 48, seed=3, columns=COMPLETE), batches[-1])


@pytest.mark.parametrize("env", ENVS)
async def test_ends_of_fragments_do_not_depend_on_messages(env: str) -> None:
    agent = agent_for("lstm", core_size=40, value="shared")
    async with pool_of(InProcessBackend(), ENVS[env], workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent)])
        options: dict[str, Any] = {"seed": 3, "columns": WITH_STATES}
        for calls in ([60], [23, 30]):
            large = await in_calls(pool, calls, **options)
            check_ends(agent, rollserve.EpisodeBatch.concatenate(*large))
            assert all(map(equal, await in_calls(pool, calls, max_message_bytes=6000, **options), large))


@pytest.mark.parametrize("target", [AtLeast(300), Fragments(300)], ids=["episodes", "fragments"])
@pytest.mark.parametrize("env", ENVS)
async def test_messages_have_the_ends_of_their_own_segments(env: str, target: AtLeast | Fragments) -> None:
    """A message that ends within an episode has the values of its last step."""
    async with pool_of(InProcessBackend(), ENVS[env], workers=1, rows=2) as pool:
        await pool.update_agent([spec_of(agent_for("lstm", core_size=40, value="shared"))])
        reading = Reading()
        async for item in pool.sample(sample_request(target, 6000, seed=1, columns=WITH_STATES)):
            reading.add(item)
        num_cut = 0
        for part, following in itertools.pairwise(reading.parts):
            assert part.last_values is not None
            if (part.terminated | part.truncated)[-1] or following.episode_indices[0] != part.episode_indices[-1]:
                continue
            num_cut += 1
            # Native rows act together, and the last bits of their values depend on each other.
            near = 0.0 if env == "rows" else 1e-6
            assert part.last_values[-1] == pytest.approx(following.agent_infos["value"][0], rel=0, abs=near)
            for name, states in part.last_states.items():
                assert np.array_equal(states[-1], following.initial_states[name][0])
            rewards = part.rewards[len(part.rewards) - part.lengths[-1] :]
            assert following.returns_before[0] == part.returns_before[-1] + len(rewards)
        assert num_cut > 5
        whole = await sample(pool, target, seed=1, columns=WITH_STATES)
        assert equal(rollserve.EpisodeBatch.concatenate(*reading.parts).joined(), whole)


async def test_ends_of_fragments_are_the_same_with_any_workers() -> None:
    found: dict[int, rollserve.EpisodeBatch] = {}
    for num_workers, num_rows in ((1, 6), (2, 3), (3, 2), (1, 5), (5, 1)):
        async with pool_of(InProcessBackend(), workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([spec_of(agent_for("gru", value="shared"))])
            batches = await in_calls(pool, [9, 60], seed=5, columns=COMPLETE)
            batch = in_order(rollserve.EpisodeBatch.concatenate(*batches))
            expected = found.setdefault(num_workers * num_rows, batch)
            assert equal(batch, expected)


@pytest.mark.parametrize("env", ENVS)
async def test_ends_are_the_same_when_workers_die(env: str) -> None:
    calls, agent = [5, 30, 80], spec_of(agent_for("lstm", value="shared"))
    options: dict[str, Any] = {"seed": 9, "columns": COMPLETE, "max_message_bytes": 4096}
    async with pool_of(InProcessBackend(), ENVS[env], workers=3, rows=2) as pool:
        await pool.update_agent([agent])
        expected = await in_calls(pool, calls, **options)
        whole = await sample(pool, AtLeast(300), **options)
    num_lost = 0
    for seed in range(2):
        async with pool_of(
            MortalBackend(seed, 3), ENVS[env], workers=3, rows=2, call_window_bytes=5000, unit_retries=1000
        ) as pool:
            await pool.update_agent([agent])
            batches = await in_calls(pool, calls, **options)
            assert all(map(equal, batches, expected))
            batches.append(await sample(pool, AtLeast(300), **options))
            assert equal(batches[-1], whole)
            num_lost += sum(batch.account.num_lost_steps for batch in batches if batch.account_or_none)
    assert num_lost > 0


@pytest.mark.slow
async def test_ends_are_the_same_when_processes_are_killed(ray_backend: Backend) -> None:
    source, calls = random.Random(0), [5, 30, 60]
    for env in ENVS.values():
        async with pool_of(ray_backend, env, workers=2, rows=2) as pool:
            await pool.update_agent([spec_of(agent_for("lstm", value="shared"))])
            expected = await in_calls(pool, calls, seed=9, columns=COMPLETE)
            clock = num_lost = 0
            for num_steps, expected_batch in zip(calls, expected, strict=True):
                batch = await fragments(pool, 4 * num_steps, clock or None, seed=9, columns=COMPLETE)
                assert equal(batch, expected_batch)
                num_lost += batch.account.num_lost_steps
                clock += num_steps
                kill_one(pool, source)
            assert num_lost > 0


# Returns before segments.


@pytest.mark.parametrize("soft", [{}, {"max_episode_length": 13, "soft": True}], ids=["free", "soft"])
@pytest.mark.parametrize("vectorization", ["rows", "envpool"])
async def test_returns_before_are_sums_in_the_order_of_the_steps(vectorization: Any, soft: dict[str, Any]) -> None:
    """Rewards are fractions, whose sum depends on the order in which they are added."""
    env = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 41}, vectorization=vectorization, num_rows=2)
    async with pool_of(InProcessBackend(), env, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        calls, columns = [9, 50, 1, 70], ColumnFormat(returns_before=True)
        batches = await in_calls(pool, calls, seed=3, columns=columns, **soft)
        episodes = await of_episodes(batches)
        for batch in batches:
            for segment in batch.split():
                episode, first = episodes[int(segment.episode_indices[0])], int(segment.first_steps[0])
                before = np.add.accumulate(np.append(0.0, episode.rewards[:first]))[-1]
                assert segment.returns_before[0] == before
        assert any(batch.returns_before.any() for batch in batches)
        small = await in_calls(pool, calls, seed=3, columns=columns, max_message_bytes=4096, **soft)
        assert all(map(equal, small, batches))
        again = await fragments(pool, 4 * 70, 60, seed=3, columns=columns, **soft)
        assert equal(again, batches[-1])


# Agents of other kinds.


async def test_agents_in_python_and_onnx_have_last_values(sandboxes_find_test_agents: None) -> None:
    async with pool_of(InProcessBackend(), workers=2, rows=2) as pool:
        await pool.update_agent([prepared_for_cartpole("valued")])
        for batch in (
            await sample(pool, AtLeast(100), seed=1, columns=COMPLETE, max_episode_length=8),
            await fragments(pool, 120, seed=1, columns=COMPLETE),
        ):
            assert batch.last_values is not None
            assert batch.last_values.dtype == np.float64
            actions = (batch.first_steps + batch.lengths).astype(np.float64)
            assert np.array_equal(batch.last_states["count"][:, 0], actions)
            expected = np.where(batch.terminated, 0.0, batch.last_observations[:, 0] + actions)
            assert np.array_equal(batch.last_values, expected)
            assert expected.any()


async def test_last_values_are_refused_for_agents_without_a_value() -> None:
    async with pool_of(InProcessBackend(), workers=2, rows=2) as pool:
        valued, other = spec_of(agent_for("gru", value="shared")), spec_of(agent_for("gru"))
        for agents, kind in (([other], "mlp"), ([RandomSpec()], "random"), ([valued, other], "mlp")):
            await pool.update_agent(agents, per_worker=len(agents) > 1)
            with raises(InvalidValueError, field="options.return_last_values", quotes=(kind,)):
                await sample(pool, AtLeast(10), columns=COMPLETE)
            # States are simply missing, and a call that discards everything needs nothing.
            states = ColumnFormat(last_states=True)
            assert bool((await sample(pool, AtLeast(10), columns=states)).last_states) == (kind == "mlp")
        await pool.update_agent([valued])
        assert (await sample(pool, AtLeast(10), columns=COMPLETE)).last_values is not None


async def test_models_have_last_values(sandboxes_find_test_agents: None) -> None:
    nodes = [node("MatMul", "observation w", "logits"), node("ReduceSum", "observation axes", "value", keepdims=0)]
    constants = {"w": np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32), "axes": np.array([1])}
    made = model(nodes, {"observation": ["N", 4]}, {"logits": ["N", 2], "value": ["N"]}, constants)
    env = gymnasium.make("CartPole-v1")
    async with pool_of(InProcessBackend(), NATIVE, workers=2) as pool:
        await pool.update_agent([prepared_model(made, env.observation_space, env.action_space)])
        for batch in (
            await sample(pool, AtLeast(100), seed=1, columns=COMPLETE),
            await fragments(pool, 120, seed=1, columns=COMPLETE),
        ):
            assert batch.last_values is not None
            expected = np.where(batch.terminated, 0.0, batch.last_observations.sum(axis=1))
            assert np.allclose(batch.last_values, expected, atol=1e-5)
        assert expected.any()


async def test_value_that_is_no_number_fails_the_call() -> None:
    """The agent acts in all steps; only an observation after the last one is not a number."""
    env = rollserve.EnvSpec("sample_envs:NoNumbers", {"after": 30})
    agent = spec_of(agent_for("gru", 2, 8, value="shared"))
    async with pool_of(InProcessBackend(), env, workers=2, rows=2, **MODULES) as pool:
        await pool.update_agent([agent])
        options: dict[str, Any] = {"seed": 1, "max_episode_length": 30}
        plain = await sample(pool, AtLeast(100), **options)
        assert np.isnan(plain.last_observations[:, 1]).all()
        with pytest.raises(AgentFailedError, match=r"value after a segment of episode \d+: .*nan"):
            await sample(pool, AtLeast(100), columns=COMPLETE, **options)
        with pytest.raises(AgentFailedError, match=r"value after a segment of episode \d+: .*nan"):
            await fragments(pool, 120, columns=COMPLETE, **options)
        shorter = await sample(pool, AtLeast(100), columns=COMPLETE, seed=1, max_episode_length=9)
        assert shorter.last_values is not None
        assert np.isfinite(shorter.last_values).all()
        # The agent is not asked for the values of segments that terminated.
        await pool.update_env([dataclasses.replace(env, kwargs={"after": 100})])
        terminated = await sample(pool, AtLeast(100), columns=COMPLETE, seed=1)
        assert np.isnan(terminated.last_observations[:, 1]).all()
        assert not np.any(terminated.last_values)
