"""Fragment calls that break off or lose workers: rows are restored, and the bytes stay the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fragment_calls import AS_CLIENTS, CHEETAH, MODULES, fragments, in_calls, mlp, num_lost_despite_kills
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import CARTPOLE, Reading, RecordingBackend, adds_up, pool_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError, NotReadyError, WorkerLostError
from rollserve_server.pool import Backend, Beginning, Delivery, Fragments, InProcessBackend
from rollserve_server.pool.state import checkpoints as checkpoints_module

SOFT: dict[str, Any] = {"max_episode_length": 20, "soft": True}
BIG = rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": 1 << 16, "length": 90})


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (CARTPOLE, {}),
        pytest.param(CHEETAH, SOFT, marks=pytest.mark.slow),
        pytest.param(CARTPOLE, SOFT, marks=pytest.mark.slow),
        pytest.param(CHEETAH, {}, marks=pytest.mark.slow),
    ],
    ids=["CartPole-v1-hard", "HalfCheetah-v5-soft", "CartPole-v1-soft", "HalfCheetah-v5-hard"],
)
async def test_fragments_are_the_same_when_workers_are_killed(
    ray_backend: Backend, env: rollserve.EnvSpec, options: dict[str, Any]
) -> None:
    calls = [30, 1500, 10, 1500]
    async with pool_of(ray_backend, env, workers=2, rows=2) as pool:
        await pool.update_agent([mlp(env, 1)])
        assert await num_lost_despite_kills(pool, calls, random.Random(env.id), 0.15, **options) > 0


async def test_fragments_are_the_same_when_a_worker_dies_during_delivery(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, BIG, workers=2, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await fragments(pool, 4 * 50, seed=1)
        expected = await fragments(pool, 4 * 200, 50, seed=1)
        for worker in (0, 1):
            reading, num_deliveries = Reading(), 0
            target = Fragments(4 * 200, row_step_count=50)
            async with contextlib.aclosing(pool.sample(sample_request(target, 1 << 22, seed=1))) as items:
                async for item in items:
                    reading.add(item)
                    if isinstance(item, Delivery):
                        num_deliveries += 1
                        if num_deliveries == 2:
                            os.kill(pool.status().workers[worker].identity.process_id, signal.SIGKILL)
            assert adds_up(reading.account())
            assert equal(reading.batch(), expected)


async def test_cancelled_call_does_not_advance_the_rows(backend: Backend) -> None:
    async with pool_of(backend, CHEETAH, workers=2, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        expected = await in_calls(pool, [25, 400, 30], seed=4)
        await fragments(pool, 100, seed=4)
        for delay in (0.0, 0.03, 0.1, 1.0):
            # The call asks for more steps than it can simulate before it is cancelled.
            running = asyncio.create_task(fragments(pool, 100_000, 25, seed=4))
            await asyncio.sleep(delay)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        second = await fragments(pool, 1600, 25, seed=4)
        assert equal(second, expected[1])
        assert second.account.num_cancelled_steps > 0
        assert equal(await fragments(pool, 120, 425, seed=4), expected[2])
        assert pool.status().counters.num_cancelled_calls > 0


async def test_own_sequence_goes_on_after_a_cancelled_call(backend: Backend) -> None:
    async with pool_of(backend, CHEETAH, workers=2, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        first = await fragments(pool, 100)
        async with contextlib.aclosing(pool.sample(sample_request(Fragments(40_000), 1 << 22))) as items:
            async for item in items:
                if isinstance(item, Beginning):
                    assert item.row_step_count == 25
                    assert item.num_rows == 4
                if isinstance(item, Delivery):
                    break
        second = await fragments(pool, 100)
        assert (second.account.seed, second.account.row_step_count) == (first.account.seed, 25)
        assert np.array_equal(second.first_steps, [25] * 4)
        assert np.array_equal(second.observations[::25], first.last_observations)


async def test_last_call_can_be_repeated_without_its_first_steps(backend: Backend) -> None:
    async with pool_of(backend, CHEETAH, workers=2, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        options: dict[str, Any] = {"seed": 4, "columns": AS_CLIENTS}
        _, expected = await in_calls(pool, [25, 200], **options)
        for num_skipped in (0, 1, 37, 400, 401, 799, 800):
            again = await fragments(pool, 800, 25, skip=num_skipped, **options) if num_skipped < 800 else None
            if again is not None:
                assert equal(again, expected.without_first_steps(num_skipped)), num_skipped
            else:
                async with contextlib.aclosing(
                    pool.sample(sample_request(Fragments(800, 800, row_step_count=25), 1 << 22, seed=4))
                ) as items:
                    assert not any(isinstance(item, Delivery) for item in [item async for item in items])
        # The call before the last one cannot be repeated.
        await fragments(pool, 4, 225, seed=4)
        with raises(NotReadyError, reason=Reason.ROW_STEP_COUNT, quotes=("25", "225", "226")):
            await fragments(pool, 800, 25, seed=4)


async def test_call_can_be_repeated_while_it_runs(backend: Backend) -> None:
    """A client does so when its connection broke and the server has not noticed."""
    async with pool_of(backend, CHEETAH, workers=1, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        first = await fragments(pool, 50)
        seed = first.account.seed
        request = sample_request(Fragments(2000), 1 << 14)
        async with contextlib.aclosing(pool.sample(request)) as items:
            async for item in items:
                if isinstance(item, Delivery):
                    break
            again = await fragments(pool, 2000, 25, seed=seed)
        following = await fragments(pool, 50)
        assert (following.account.seed, following.account.row_step_count) == (seed, 1025)
        for row in range(2):
            last = np.flatnonzero(again.episode_indices % 2 == row)[-1]
            begin = np.flatnonzero(following.episode_indices % 2 == row)[0]
            if not (again.terminated | again.truncated)[last]:
                start = (np.cumsum(following.lengths) - following.lengths)[begin]
                assert np.array_equal(again.last_observations[last], following.observations[start])


async def test_call_can_be_repeated_after_an_environment_update(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=1, rows=2) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        await fragments(pool, 50)
        second = await fragments(pool, 50)
        await pool.update_env([CARTPOLE])
        again = await fragments(pool, 50, 25, seed=second.account.seed, env_version=1)
        assert equal(second, again)


async def test_unreproducible_rows_break_off_when_their_worker_is_lost(ray_backend: Backend) -> None:
    env = rollserve.EnvSpec("sample_envs:Unseeded")
    async with pool_of(ray_backend, env, workers=2, rows=4, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        first = await fragments(pool, 80)
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        second = await fragments(pool, 80)
        assert second.account.seed == first.account.seed
        broken_off = second.account.num_broken_off_episodes
        # All open episodes of that worker break off, and none of the other.
        are_open = ~(first.terminated | first.truncated)
        assert first.worker_indices is not None
        assert broken_off == int((are_open & (first.worker_indices == 1)).sum()) > 0
        for row in range(8):
            ends = np.flatnonzero(first.episode_indices % 8 == row)[-1]
            begins = np.flatnonzero(second.episode_indices % 8 == row)[0]
            goes_on = are_open[ends] and row < 4
            assert bool(second.first_steps[begins]) == goes_on
            assert second.episode_indices[begins] == first.episode_indices[ends] + (0 if goes_on else 8)
        third = await fragments(pool, 80)
        assert third.account.num_broken_off_episodes == 0


async def test_call_fails_when_delivered_rows_cannot_be_restored(ray_backend: Backend) -> None:
    """Steps delivered later would not continue those delivered before."""
    env = rollserve.EnvSpec("sample_envs:Unseeded")
    async with pool_of(ray_backend, env, workers=1, rows=4, call_window_bytes=10_000, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await fragments(pool, 4)

        async def sample_and_kill() -> None:
            killed = False
            async with contextlib.aclosing(pool.sample(sample_request(Fragments(80_000), 1 << 12))) as items:
                async for item in items:
                    if isinstance(item, Delivery) and not killed:
                        killed = True
                        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)

        with raises(WorkerLostError, reason=Reason.WORKER_LOST, quotes=("4", "worker 0")):
            await sample_and_kill()
        process_id = pool.status().workers[0].identity.process_id
        assert (await fragments(pool, 40)).num_steps == 40
        assert pool.status().workers[0].identity.process_id == process_id  # no other worker was lost


async def test_rows_break_off_when_their_actions_exceed_the_log() -> None:
    async with pool_of(InProcessBackend(), CHEETAH, workers=1, rows=3) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        expected = await in_calls(pool, [40, 20], seed=1)
        # Room for two rows of three: 40 steps of six floats each.
        with mock.patch.object(checkpoints_module, "_MAX_LOG_BYTES", 2 * 40 * 6 * 4):
            await fragments(pool, 120, seed=1)
            await fragments(pool, 60, 40, seed=1)
            again = await fragments(pool, 60, 40, seed=1)
            assert again.account.num_broken_off_episodes == 1
            same = np.isin(again.episode_indices, expected[1].episode_indices)
            assert same.sum() == 2
            assert np.array_equal(again.first_steps[~same], [0])
            with raises(NotReadyError, reason=Reason.ROW_STEP_COUNT, quotes="worker 0"):
                await fragments(pool, 60, 40, seed=1, skip=1)


async def test_rows_break_off_when_a_replay_ends_otherwise(backend: Backend) -> None:
    """The first look takes the environment for a function of its seed, which it is not."""
    env = rollserve.EnvSpec("sample_envs:ForgetsItsLength")
    async with pool_of(backend, env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert pool.status().env.reproducibility is rollserve.Reproducibility.EPISODE
        await fragments(pool, 400, seed=1)
        await fragments(pool, 2, 200, seed=1)
        again = await fragments(pool, 2, 200, seed=1)
        assert again.account.num_broken_off_episodes == 2
        assert again.episode_indices.tolist() == [2, 3]
        assert again.first_steps.tolist() == [0, 0]


async def test_cancelled_call_stops_within_a_vector_step(backend: Backend) -> None:
    env = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.1, "length": 1000})
    async with pool_of(backend, env, workers=1, rows=4, progress_seconds=0.1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        received: list[object] = []

        async def run() -> None:
            async with contextlib.aclosing(pool.sample(sample_request(Fragments(4000), 1 << 22, seed=1))) as items:
                async for item in items:
                    received.append(item)  # noqa: PERF401  # read while more arrive

        running = asyncio.create_task(run())
        await until(lambda: len(received) > 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        batch = await sample(pool, Fragments(4), seed=1)
        assert 4 <= batch.account.num_cancelled_steps <= 16
        assert adds_up(batch.account)


async def test_oldest_sequences_are_dropped(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=1, rows=1, max_calls=2) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        for seed in range(4):
            await fragments(pool, 5, seed=seed)
        for seed, is_kept in enumerate((False, False, True, True)):
            with contextlib.nullcontext() if is_kept else raises(NotReadyError, reason=Reason.ROW_STEP_COUNT):
                await fragments(pool, 5, 5, seed=seed)


async def test_calls_with_a_seed_keep_the_own_sequence(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=1, rows=1, max_calls=2) as pool:
        await pool.update_agent([mlp(CARTPOLE, 1)])
        limited = await fragments(pool, 5, max_episode_length=3)
        first = await fragments(pool, 5)
        for seed in range(4):
            await fragments(pool, 5, seed=seed)
            await fragments(pool, 5, 5, seed=seed)
        for clock in (5, 10):
            batch = await fragments(pool, 5)
            assert (batch.account.seed, batch.account.row_step_count) == (first.account.seed, clock)
        again = await fragments(pool, 5, max_episode_length=3)
        assert (again.account.seed, again.account.row_step_count) == (limited.account.seed, 5)


async def test_call_closed_at_its_beginning_does_not_advance_the_rows() -> None:
    async with pool_of(InProcessBackend(), CHEETAH, workers=1, rows=2) as pool:
        await pool.update_agent([mlp(CHEETAH, 1)])
        expected = await in_calls(pool, [10, 10], seed=1)
        await fragments(pool, 20, seed=1)
        async with contextlib.aclosing(
            pool.sample(sample_request(Fragments(20, row_step_count=10), 1 << 22, seed=1))
        ) as items:
            assert isinstance(await anext(items), Beginning)
        assert equal(await fragments(pool, 20, 10, seed=1), expected[1])


async def test_rejected_change_keeps_the_row_sequence() -> None:
    env = rollserve.EnvSpec("sample_envs:Tasks")
    async with pool_of(InProcessBackend(), env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        first = await fragments(pool, 2)
        with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes="ValueError: expected a goal"):
            await pool.update_env([rollserve.EnvChange(task=rollserve.Task("set_task", {"goal": -1}))])
        second = await fragments(pool, 2)
        assert (second.account.seed, second.account.row_step_count) == (first.account.seed, 1)
        await pool.update_env([rollserve.EnvChange(task=rollserve.Task("set_task", {"goal": 5}))])
        third = await fragments(pool, 2)
        assert third.account.seed != first.account.seed
        assert third.observations[:, 1].tolist() == [5, 5]
        assert sorted(third.episode_infos["number"].tolist()) == sorted(second.episode_infos["number"].tolist())


@settings(max_examples=30)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["next", "again", "cancel", "begin", "lose"]), st.integers(1, 25)), max_size=12
    ),
    num_rows=st.integers(1, 3),
    soft=st.booleans(),
)
@pytest.mark.slow
def test_fragments_are_a_function_of_their_position(
    operations: list[tuple[str, int]], num_rows: int, soft: bool
) -> None:
    """A call's fragments depend only on the step at which it begins, and on its length."""

    async def run() -> None:
        env = rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 30})
        backend: Any = RecordingBackend(InProcessBackend())
        async with pool_of(backend, env, workers=2, rows=num_rows, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            stride = 2 * num_rows
            options: dict[str, Any] = {"max_episode_length": 11, "soft": True} if soft else {}

            async def true_fragments(clock: int, num_steps: int) -> rollserve.EpisodeBatch:
                """Return the fragments from a fresh pool."""
                async with pool_of(InProcessBackend(), env, workers=2, rows=num_rows, **MODULES) as fresh:
                    await fresh.update_agent([RandomSpec()])
                    if clock:
                        await fragments(fresh, clock * stride, seed=6, **options)
                    return await fragments(fresh, num_steps * stride, clock or None, seed=6, **options)

            clock, before, last_steps = 0, None, 0
            for operation, num_steps in operations:
                match operation:
                    case "begin":
                        begins = 0
                    case "again" if before is not None:
                        begins, num_steps = before, last_steps
                    case _:
                        begins = clock
                if operation == "lose":
                    backend.handles[num_steps % 2].kill()
                if operation == "cancel":
                    running = asyncio.create_task(
                        fragments(pool, num_steps * stride, begins or None, seed=6, **options)
                    )
                    await asyncio.sleep(0.001 * (num_steps % 5))
                    if running.cancel():
                        with contextlib.suppress(asyncio.CancelledError):
                            await running
                        if running.cancelled():
                            continue
                    before, clock, last_steps = begins, begins + num_steps, num_steps
                    continue
                batch = await fragments(pool, num_steps * stride, begins or None, seed=6, **options)
                assert equal(batch, await true_fragments(begins, num_steps))
                before, clock, last_steps = begins, begins + num_steps, num_steps

    asyncio.run(run())
