"""Fragments: the exact number of steps, each fragment a slice of an episode, in the documented order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re

import numpy as np
import pytest
from faults.backends import SLOW_ON_RAY
from fragment_calls import CHEETAH, MODULES, fragments, in_calls, mlp
from fragment_truth import Truth, expected_places, places_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import CARTPOLE, pool_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve.episode_batch import StepType
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError, InvalidValueError, NotReadyError, OverLimitError
from rollserve_server.pool import AtLeast, Backend, Beginning, Delivery, Fragments, InProcessBackend

RAGGED = rollserve.EnvSpec("sample_envs:Ragged")
NESTED = rollserve.EnvSpec("sample_envs:Nested", {"length": 7})


@SLOW_ON_RAY
@pytest.mark.parametrize("env", [CARTPOLE, CHEETAH, NESTED, RAGGED], ids=lambda env: env.id)
async def test_fragments_are_slices_of_episodes_before_and_after_an_update(
    backend: Backend, env: rollserve.EnvSpec
) -> None:
    async with pool_of(backend, env, **MODULES) as pool:
        await pool.update_agent([mlp(env, 1)])
        for swapped in (False, True):
            if swapped:
                await pool.update_env([env])
            truth = Truth(pool, seed=3)
            calls = [7, 1, 64, 30, 40]
            for num_steps, batch in zip(calls, await in_calls(pool, calls, seed=3), strict=True):
                await truth.check(batch)
                assert batch.worker_indices is not None
                assert np.array_equal(batch.worker_indices, batch.episode_indices % 8 // 4)
                sums = np.zeros(8, np.int64)
                np.add.at(sums, batch.episode_indices % 8, batch.lengths)
                assert sums.tolist() == [num_steps] * 8


@settings(max_examples=8)
@given(
    num_workers=st.integers(1, 3),
    num_rows=st.integers(1, 4),
    calls=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    max_length=st.sampled_from([1, 2, 12]),
    limit=st.sampled_from([None, 1, 2, 5, 12]),  # episodes of even lengths terminate, some of them at the limit
)
def test_fragments_have_the_documented_order(
    num_workers: int, num_rows: int, calls: list[int], max_length: int, limit: int | None
) -> None:
    async def run() -> None:
        env = rollserve.EnvSpec("sample_envs:Ragged", {"max_length": max_length})
        async with pool_of(InProcessBackend(), env, workers=num_workers, rows=num_rows, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            truth = Truth(pool, seed=2, max_episode_length=limit)
            batches = await in_calls(pool, calls, seed=2, max_episode_length=limit)
            most_episodes = sum(calls) * num_workers * num_rows
            lengths = {}
            for batch in batches:
                await truth.check(batch)
                for index in batch.episode_indices.tolist():
                    lengths[index] = await truth.length(index)
            assert max(lengths) < most_episodes
            expected = expected_places(lambda index: lengths.get(index, 1), [num_rows] * num_workers, calls)
            assert [places_of(batch) for batch in batches] == expected

    asyncio.run(run())


async def test_fragments_may_end_with_their_episodes(backend: Backend) -> None:
    for length, calls in ((1, [1, 5]), (4, [4, 8, 2, 2, 3])):
        env = rollserve.EnvSpec("sample_envs:Ends", {"length": length})
        async with pool_of(backend, env, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            truth = Truth(pool, seed=1)
            batches = await in_calls(pool, calls, seed=1)
            for batch in batches:
                await truth.check(batch)
            expected = expected_places(lambda _, length=length: length, [4, 4], calls)  # type: ignore[misc]
            assert [places_of(batch) for batch in batches] == expected
            assert batches[0].terminated.all()
            assert (batches[0].lengths == min(calls[0], length)).all()


async def test_calls_of_one_step_per_row_deliver_fragments_of_one_step(backend: Backend) -> None:
    """160 steps in 20 calls are 160 fragments."""
    async with pool_of(backend, CARTPOLE, workers=2, rows=4) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        truth = Truth(pool, seed=4)
        batches = await in_calls(pool, [1] * 20, seed=4)
        assert sum(map(len, batches)) == 160
        for batch in batches:
            assert batch.lengths.tolist() == [1] * 8
            await truth.check(batch)


async def test_environment_that_truncates_at_the_limit_is_reset(backend: Backend) -> None:
    """The episode ends once, with a reset, with a hard and with a soft horizon."""
    env = rollserve.EnvSpec("sample_envs:Ends", {"length": 3, "terminated": False, "truncated": True})
    async with pool_of(backend, env, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for soft in (False, True):
            for batch in await in_calls(pool, [2, 5], seed=1, max_episode_length=3, soft=soft):
                assert batch.lengths.max() <= 3
                firsts = batch.observations[np.flatnonzero(batch.step_types == StepType.FIRST)]
                assert (firsts[:, 0] == -1).all()  # as after a reset
                assert (batch.truncated == (batch.first_steps + batch.lengths == 3)).all()
                assert not batch.terminated.any()


async def test_episode_that_terminates_at_the_limit_has_both_flags_as_whole_episodes_have(backend: Backend) -> None:
    """A soft horizon does not cut it."""
    env = rollserve.EnvSpec("sample_envs:Ends", {"length": 3, "terminated": True, "truncated": False})
    async with pool_of(backend, env, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await sample(pool, AtLeast(30), seed=1, max_episode_length=3)
        assert whole.terminated.all()
        assert whole.truncated.all()
        for soft in (False, True):
            for batch in await in_calls(pool, [2, 5], seed=1, max_episode_length=3, soft=soft):
                ends = batch.first_steps + batch.lengths == 3
                assert (batch.terminated == ends).all()
                assert (batch.truncated == (ends & (not soft))).all()


async def test_limit_counts_over_the_fragments_of_an_episode(backend: Backend) -> None:
    async with pool_of(backend, CHEETAH, workers=1, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        truth = Truth(pool, seed=5, max_episode_length=25)
        batches = await in_calls(pool, [10] * 6, seed=5, max_episode_length=25)
        for batch in batches:
            await truth.check(batch)
        assert [places_of(batch) for batch in batches] == expected_places(lambda _: 25, [2], [10] * 6)


async def test_soft_horizon_truncates_without_a_reset(backend: Backend) -> None:
    """Episodes end at the limit and the next ones begin in the same state; other ends reset the environment."""
    env = rollserve.EnvSpec("sample_envs:Nested", {"length": 7})
    async with pool_of(backend, env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batches = await in_calls(pool, [2, 1, 4, 9], seed=5, max_episode_length=3, soft=True)
        batch = rollserve.EpisodeBatch.concatenate(*map(without_ragged_infos, batches))
        for row in range(2):
            parts = [part for part in batch.split() if part.episode_indices[0] % 2 == row]
            parts.sort(key=lambda part: (int(part.episode_indices[0]), int(part.first_steps[0])))
            episodes = rollserve.EpisodeBatch.concatenate(*parts).joined()
            assert episodes.lengths.tolist() == [3, 3, 1, 3, 3, 1, 2]
            assert episodes.truncated.tolist() == [True, True, False, True, True, False, False]
            assert episodes.terminated.tolist() == [False, False, True, False, False, True, False]
            assert episodes.episode_indices.tolist() == list(range(row, 14, 2))
            assert episodes.env_seeds is not None
            seeds = episodes.env_seeds.tolist()
            assert seeds[:3] == [seeds[0]] * 3
            assert seeds[3:6] == [seeds[3]] * 3
            assert len(set(seeds)) == 3
            assert episodes.episode_infos["_seed"].tolist() == [True, False, False, True, False, False, True]
            assert episodes.env_infos["step"].tolist() == [*range(1, 8), *range(1, 8), 1, 2]
            # The last observation of a truncated episode is the first one of the next.
            for one, following in itertools.pairwise(episodes.split()):
                if not one.terminated[0]:
                    for leaf, last in one.last_observations.items():  # type: ignore[union-attr]
                        assert np.array_equal(last[0], following.observations[leaf][0])  # type: ignore[index]


def without_ragged_infos(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """Return the batch without the info whose shape varies between fragments."""
    infos = {name: column for name, column in batch.env_infos.items() if "ragged" not in name}
    return dataclasses.replace(batch, env_infos=infos)


async def test_rows_continue_after_an_agent_update(backend: Backend) -> None:
    async with pool_of(backend, CHEETAH, workers=2, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        first = await fragments(pool, 40)
        await pool.update_agent([mlp(CHEETAH, 2)])
        second = await fragments(pool, 40)
        assert first.account.seed == second.account.seed
        assert (first.account.row_step_count, second.account.row_step_count) == (0, 10)
        assert second.first_steps.tolist() == [10] * 4
        assert set(first.policy_versions.tolist()) == {1}
        assert set(second.policy_versions.tolist()) == {2}
        assert np.array_equal(first.last_observations, second.observations[::10])
        # The new policy gets the same noise at the same steps.
        truth = await Truth(pool, seed=first.account.seed).episode(0)
        deviations = [(batch.actions - batch.agent_infos["mean"]) for batch in (truth, second)]
        std = np.exp(second.agent_infos["log_std"][0])
        assert np.allclose(deviations[0][10:20] / std, deviations[1][:10] / std, atol=1e-4)


async def test_environment_update_starts_a_new_sequence(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        first = await fragments(pool, 40)
        assert (await fragments(pool, 40)).first_steps.any()
        await pool.update_env([CARTPOLE])
        second = await fragments(pool, 40)
        assert not second.first_steps.any()
        assert first.account.seed != second.account.seed
        assert second.account.row_step_count == 0


async def test_workers_may_have_agents_and_environments_of_their_own(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=2, rows=1) as pool:
        specs = [rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": steps}) for steps in (3, 4)]
        await pool.update_env(specs, per_worker=True)
        await pool.update_agent([RandomSpec(), RandomSpec()], per_worker=True)
        batch = await fragments(pool, 24)
        assert batch.lengths.tolist() == [3, 3, 3, 3, 4, 4, 4]


async def test_sequences_run_side_by_side(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=2, rows=2, max_calls=8) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        alone = [await in_calls(pool, [50, 3, 200], seed) for seed in range(3)]
        whole = await sample(pool, AtLeast(2000), seed=9)

        async def twice() -> tuple[rollserve.EpisodeBatch, rollserve.EpisodeBatch]:
            return await fragments(pool, 4000), await fragments(pool, 4000)

        *together, again, own, other = await asyncio.gather(
            *(in_calls(pool, [50, 3, 200], seed) for seed in range(3)),
            sample(pool, AtLeast(2000), seed=9),
            twice(),
            twice(),
        )
        assert equal(again, whole)
        for ones, others in zip(alone, together, strict=True):
            assert all(equal(one, another) for one, another in zip(ones, others, strict=True))
        seeds = [batch.account.seed for batch in (*own, *other)]
        assert len(set(seeds)) == 2
        assert sorted(batch.account.row_step_count for batch in (*own, *other)) == [0, 0, 1000, 1000]


async def test_calls_with_a_seed_do_not_advance_the_own_sequence(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        first = await fragments(pool, 80)
        again = await fragments(pool, 80, seed=first.account.seed)
        assert equal(first, again)
        second = await fragments(pool, 80)
        assert (second.account.seed, second.account.row_step_count) == (first.account.seed, 10)
        # A call with the seed and a row step count repeats or continues the own sequence.
        assert equal(second, await fragments(pool, 80, 10, seed=first.account.seed))
        third = await fragments(pool, 80, 20, seed=first.account.seed)
        assert third.account.row_step_count == 20


async def test_fragment_request_is_rejected() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, worker_buffer_bytes=10_000, worker_spill_bytes=0) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        with raises(InvalidValueError, field="step_count", quotes=("20", "16 or 24")):
            await fragments(pool, 20)
        with raises(InvalidValueError, field="step_count", quotes=("3", "8")):
            await fragments(pool, 3)
        with raises(InvalidValueError, field="fragments.soft_horizon", quotes="options.max_episode_length"):
            await fragments(pool, 8, soft=True)
        with raises(InvalidValueError, field="fragments.skip_step_count", quotes=("9", "8")):
            await sample(pool, Fragments(8, 9))
        with raises(InvalidValueError, field="fragments.row_step_count", quotes="options.seed"):
            await fragments(pool, 8, 0)
        with raises(NotReadyError, field="fragments.row_step_count", reason=Reason.ROW_STEP_COUNT):
            await fragments(pool, 8, 5, seed=1)
        before = pool.status()
        with raises(
            OverLimitError, field="step_count", reason=Reason.FRAGMENTS_TOO_LARGE, quotes=("800", "10000")
        ) as over:
            await fragments(pool, 800)
        assert [worker.num_simulated_steps for worker in pool.status().workers] == [
            worker.num_simulated_steps for worker in before.workers
        ]
        largest = max(number for number in map(int, re.findall(r"\d+", over.value.text)) if number < 800)
        assert (await fragments(pool, largest)).num_steps == largest
        with raises(OverLimitError, reason=Reason.FRAGMENTS_TOO_LARGE):
            await fragments(pool, largest + 8)


async def test_each_way_out_of_too_many_steps_helps() -> None:
    limits = {"worker_buffer_bytes": 8000, "worker_spill_bytes": 2000, "rows": 2}
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1, **limits) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(
            OverLimitError,
            field="step_count",
            reason=Reason.FRAGMENTS_TOO_LARGE,
            quotes=("--worker-buffer-bytes", "--worker-spill-bytes"),
        ) as over:
            await fragments(pool, 720)
        found = re.search(r"at most (\d+),.* at least (\d+) workers.* at least (\d+)$", over.value.text)
        assert found is not None
        num_steps, num_workers, num_bytes = map(int, found.groups())
        assert num_steps < 720
        await fragments(pool, num_steps)
        await pool.resize(num_workers)
        await fragments(pool, 720)
        await pool.resize(num_workers - 1)
        with raises(OverLimitError, reason=Reason.FRAGMENTS_TOO_LARGE):
            await fragments(pool, 720)
    for sizes in ((num_bytes, 0), (1, num_bytes - 1)):
        limits = dict(zip(("worker_buffer_bytes", "worker_spill_bytes"), sizes, strict=True))
        async with pool_of(InProcessBackend(), CARTPOLE, workers=1, rows=2, **limits) as pool:
            await pool.update_agent([RandomSpec()])
            await fragments(pool, 720)
    limits = {"worker_buffer_bytes": 20, "worker_spill_bytes": 0, "rows": 2}
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1, **limits) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(OverLimitError, reason=Reason.FRAGMENTS_TOO_LARGE, match="fewer rows"):
            await fragments(pool, 2)


async def test_failed_call_is_followed_by_a_new_own_sequence(backend: Backend) -> None:
    """Otherwise, calls of the own sequence would fail forever."""
    env = rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")
    async with pool_of(backend, env, workers=1, rows=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        seeds = set()
        for _ in range(12):
            try:
                batch = await fragments(pool, 3)
            except EnvFailedError as error:
                assert re.search(r"episode \d+", error.message)  # noqa: PT017
            else:
                seeds.add(batch.account.seed)
        assert len(seeds) > 1


async def test_large_fragments_are_delivered_through_a_small_window(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, call_window_bytes=10_000, workers=3, rows=4) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        small = await fragments(pool, 24_000, seed=1)
    async with pool_of(backend, CARTPOLE, workers=3, rows=4) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        assert equal(await fragments(pool, 24_000, seed=1), small)


async def test_workers_pause_when_short_fragments_fill_their_buffers(backend: Backend) -> None:
    """A fragment of one step takes more bytes than its step; a full worker pauses until it may deliver."""
    env = rollserve.EnvSpec("sample_envs:Ends", {"length": 1})
    options = {"workers": 3, "rows": 4, **MODULES}
    batches = []
    for limits in ({}, {"worker_buffer_bytes": 40_000, "call_window_bytes": 20_000}):
        async with pool_of(backend, env, **options, **limits) as pool:
            await pool.update_agent([RandomSpec()])
            batches.append(await fragments(pool, 12 * 200, seed=1))
            assert len(batches[-1]) == 2400
    assert equal(*batches)


async def test_worker_stops_when_its_buffer_is_full() -> None:
    env = rollserve.EnvSpec("sample_envs:Ends", {"length": 1})
    options = {"workers": 2, "rows": 4, "worker_buffer_bytes": 400_000, "call_window_bytes": 20_000, **MODULES}
    async with pool_of(InProcessBackend(), env, **options) as pool:
        await pool.update_agent([RandomSpec()])
        items_of_call = pool.sample(sample_request(Fragments(8 * 2000), 1 << 12, seed=1))
        async with contextlib.aclosing(items_of_call) as items:
            assert isinstance(await anext(items), Beginning)
            assert isinstance(await anext(items), Delivery)
            await asyncio.sleep(0.5)  # while the client does not read
        # Each fragment takes about 600 bytes beside its step.
        await until(lambda: pool.status().workers[1].num_simulated_steps > 0)
        assert all(worker.num_simulated_steps < 1200 for worker in pool.status().workers)


async def test_server_limit_applies_to_fragments() -> None:
    env = rollserve.EnvSpec("sample_envs:Nested", {"length": 7})
    async with pool_of(InProcessBackend(), env, workers=1, rows=1, max_episode_length=5, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for soft, lengths in ((False, [5, 5, 4]), (True, [5, 2, 5, 2])):
            batch = await fragments(pool, 14, seed=1, soft=soft)
            assert batch.lengths.tolist() == lengths
            assert batch.truncated.tolist() == [length == 5 for length in lengths]
