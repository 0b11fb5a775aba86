"""The pool on both of its backends: threads of this process, and Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from pools import CARTPOLE, SETTINGS, adds_up, calls_of, pool_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import ConstantSpec, MlpSpec, RandomSpec
from rollserve_server.errors import EnvFailedError, InvalidValueError, NotReadyError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Delivery, Exactly, Fragments, Progress, Target
from rollserve_server.pool.backends.ray.backend import RayBackend


def mlp(seed: int = 0) -> MlpSpec:
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(space, rollserve.spaces.Discrete(2), seed=seed)
    # Far from uniform, so that other parameters do other things.
    parameters = {name: 10 * value if name == "2/weight" else value for name, value in agent.parameters.items()}
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, parameters)


async def test_versions_rise_by_one_and_are_stamped(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        assert pool.status().policy_version == 0
        for version in (1, 2, 3):
            assert await pool.update_agent([mlp(version)]) == version
            batch = await sample(pool, AtLeast(100), expected_policy_version=version)
            assert set(batch.policy_versions.tolist()) == {version}
        assert await pool.update_agent([mlp(9).parameters]) == 4
        assert await pool.update_agent([RandomSpec(), mlp()], per_worker=True) == 5
        assert pool.status().agent_kinds == ["random", "mlp"]
        field = "options.expected_policy_version"
        with raises(NotReadyError, field=field, reason=Reason.POLICY_VERSION, quotes=("4", "5")):
            await sample(pool, AtLeast(1), expected_policy_version=4)


async def test_parameters_alone_and_the_whole_agent_do_the_same(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp(1)])
        whole = await sample(pool, AtLeast(500), seed=3)
        await pool.update_agent([mlp(2)])
        other = await sample(pool, AtLeast(500), seed=3)
        await pool.update_agent([mlp(1).parameters])
        parameters = await sample(pool, AtLeast(500), seed=3)
    assert not np.array_equal(whole.observations, other.observations)
    assert np.array_equal(whole.observations, parameters.observations)
    assert np.array_equal(whole.agent_infos["log_prob"], parameters.agent_infos["log_prob"])


async def test_an_update_that_one_worker_cannot_take_changes_none(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        before = await sample(pool, AtLeast(200), seed=1)
        with raises(InvalidValueError, field="per_worker.updates[1].agent.constant.action['']"):
            await pool.update_agent([mlp(5), ConstantSpec({"": np.array(7)})], per_worker=True)
        pendulum = rollserve.EnvSpec("Pendulum-v1")
        with raises(InvalidValueError, field="per_worker.updates[1]", quotes="observation_space"):
            await pool.update_env([CARTPOLE, pendulum], per_worker=True)
        bad = rollserve.EnvSpec("CartPole-v1", {"nope": 1})
        with raises(InvalidValueError, field="per_worker.updates[1].environment.kwargs_json"):
            await pool.update_env([CARTPOLE, bad], per_worker=True)
        status = pool.status()
        assert (status.policy_version, status.env_version) == (1, 1)
        assert equal(before, await sample(pool, AtLeast(200), seed=1))


async def test_a_running_call_finishes_with_the_version_that_it_began_with(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp(1)])
        expected = await sample(pool, AtLeast(60_000), seed=1)
        running = asyncio.create_task(sample(pool, AtLeast(60_000), seed=1))
        await asyncio.sleep(0.1)
        assert await pool.update_agent([mlp(2)]) == 2
        assert await pool.update_agent([mlp(3)]) == 3
        await pool.update_env([rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 10})])
        assert not running.done()
        assert equal(expected, await running)
        after = await sample(pool, AtLeast(1000), seed=1)
        assert set(after.policy_versions.tolist()) == {3}
        assert after.lengths.max() <= 10
        assert after.account is not None
        assert after.account.env_version == 2


async def test_the_same_calls_in_the_same_order_give_the_same(backend: Backend) -> None:
    """Also without seeds of their own, and whatever was begun beyond what was delivered."""
    async with pool_of(backend) as one, pool_of(backend, workers=2, rows=3) as other:
        results: list[list[rollserve.EpisodeBatch]] = []
        for pool in (one, other):
            await pool.update_agent([mlp(1)])
            batches = [await sample(pool, AtLeast(700)), await sample(pool, Exactly(3))]
            batches += [await sample(pool, AtLeast(10), seed=5), await sample(pool, AtLeast(900))]
            await pool.update_agent([mlp(2)])
            batches += [await sample(pool, AtLeast(700)), await sample(pool, AtLeast(700))]
            results.append(batches)
    assert all(equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    own = [batch.episode_indices for position, batch in enumerate(results[0]) if position != 2]
    assert np.array_equal(np.concatenate(own), np.arange(sum(map(len, own))))


@pytest.mark.parametrize("max_calls", [1, 3])
async def test_calls_at_once_are_each_as_if_alone_and_none_gets_what_another_got(
    backend: Backend, max_calls: int
) -> None:
    async with pool_of(backend, max_calls=max_calls) as pool:
        await pool.update_agent([mlp()])
        targets = [AtLeast(5000), Exactly(20), AtLeast(700), AtLeast(8000), Exactly(3)]
        batches = await asyncio.gather(*(sample(pool, target) for target in targets))
        assert pool.status().counters.num_completed_calls == 5
        seen: set[tuple[int, int]] = set()
        for batch, target in zip(batches, targets, strict=True):
            account = batch.account
            assert account is not None
            episodes = {(account.seed, int(index)) for index in batch.episode_indices}
            assert seen.isdisjoint(episodes)
            seen |= episodes
            alone = await sample(pool, target, seed=account.seed, first_index=account.first_episode_index)
            assert equal(batch, alone)
        assert len({seed for seed, _ in seen}) == max_calls


async def test_a_short_call_does_not_wait_for_a_long_one(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        long = asyncio.create_task(sample(pool, AtLeast(300_000)))
        await asyncio.sleep(0.1)
        for _ in range(3):
            await sample(pool, AtLeast(1000))
        assert not long.done()
        assert (await long).num_steps >= 300_000


async def test_a_call_that_waits_for_its_turn_says_so_and_can_be_given_up(backend: Backend) -> None:
    async with pool_of(backend, max_calls=1, progress_seconds=0.05) as pool:
        await pool.update_agent([mlp()])
        long = asyncio.create_task(sample(pool, AtLeast(10_000_000)))
        await asyncio.sleep(0.1)
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(1), 1 << 22))) as items:
            assert await anext(items) == Progress(0)
            assert await anext(items) == Progress(0)
        waiting = asyncio.create_task(sample(pool, AtLeast(1)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        long.cancel()
        for task in (waiting, long):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await sample(pool, AtLeast(100))).num_steps >= 100


async def test_updates_and_calls_at_the_same_time_do_not_disturb_each_other(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        expected = {seed: await sample(pool, AtLeast(200), seed=seed) for seed in range(3)}
        done = asyncio.Event()

        async def keep_updating() -> None:
            while not done.is_set():
                await pool.update_agent([mlp()])
                await pool.update_env([CARTPOLE])

        async def keep_sampling(seed: int) -> None:
            for _ in range(20):
                batch = await sample(pool, AtLeast(200), seed=seed)
                assert np.array_equal(batch.observations, expected[seed].observations)
                with raises(NotReadyError, reason=Reason.POLICY_VERSION):
                    await sample(pool, AtLeast(1), expected_policy_version=0)

        updating = asyncio.create_task(keep_updating())
        await asyncio.gather(*map(keep_sampling, expected))
        done.set()
        await updating


async def test_an_update_that_is_cancelled_has_changed_nothing(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        expected = await sample(pool, AtLeast(500), seed=1)
        for pause in (0.0, 0.001, 0.005):
            before = pool.status().env_version
            updating = asyncio.create_task(pool.update_env([rollserve.EnvSpec("Pendulum-v1")]))
            await asyncio.sleep(pause)
            if updating.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await updating
                assert pool.status().env_version == before
            await pool.update_env([CARTPOLE])
            assert equal(expected, await sample(pool, AtLeast(500), seed=1))


async def test_an_episode_that_fails_is_not_in_the_way_of_the_next_call(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend, allow_module=("sample_envs",)) as pool:
        await pool.update_env([rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")])
        await pool.update_agent([RandomSpec()])
        outcomes = []
        for _ in range(30):
            try:
                outcomes.append(len(await sample(pool, AtLeast(5))))
            except EnvFailedError:
                outcomes.append(0)
        assert 0 < outcomes.count(0) < 30
        assert pool.status().next_index > 30


async def test_a_cancelled_call_leaves_the_pool_ready(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        expected = await sample(pool, AtLeast(500), seed=2)
        for pause in (0.0, 0.01, 0.05, 0.2):
            call = asyncio.create_task(sample(pool, AtLeast(10_000_000)))
            await asyncio.sleep(pause)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert equal(expected, await sample(pool, AtLeast(500), seed=2))
        # What the cancelled calls may have delivered, and their clients may go on with, does not come again.
        batch = await sample(pool, AtLeast(100))
        assert batch.account is not None
        assert batch.account.seed == pool.status().seed != SETTINGS["seed"]


async def test_a_small_buffer_and_a_small_window_only_take_time(backend: Backend) -> None:
    async with pool_of(backend) as pool, pool_of(backend, worker_buffer_bytes=1000, call_window_bytes=1000) as small:
        await pool.update_agent([mlp()])
        await small.update_agent([mlp()])
        for target in (AtLeast(20_000), Exactly(100)):
            expected = await sample(pool, target, seed=1)
            assert equal(expected, await sample(small, target, seed=1))


async def test_what_a_slow_client_leaves_waits_in_bounds(backend: Backend) -> None:
    """While nobody reads, workers stop at what they may hold."""
    env = rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 20})
    async with pool_of(backend, env, worker_buffer_bytes=1 << 16, call_window_bytes=1 << 20) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(10**9), 1 << 22))) as items:
            while not isinstance(await anext(items), Delivery):
                pass
            (call,) = calls
            steps = [0, 1]
            while steps[-1] != steps[-2]:
                await asyncio.sleep(1)
                steps.append(call.account.num_simulated_steps)
        # A step takes 32 bytes here: the window, what is being fetched, and two buffers hold this many at most.
        assert steps[-1] < 200_000


@pytest.mark.parametrize("target", [AtLeast(150_000), Exactly(1500)], ids=["at-least", "exactly"])
async def test_workers_that_are_killed_cost_only_time(ray_backend: RayBackend, target: Target) -> None:
    async with pool_of(ray_backend, worker_buffer_bytes=1 << 20) as pool:
        await pool.update_agent([mlp()])
        expected = await sample(pool, target, seed=1)
        running = asyncio.create_task(sample(pool, target, seed=1))
        for index, pause in ((1, 0.1), (0, 0.1)):
            await asyncio.sleep(pause)
            assert not running.done()
            victim = pool.status().workers[index].identity.process_id
            os.kill(victim, signal.SIGKILL)
        batch = await running
        assert equal(expected, batch)
        assert batch.account is not None
        assert batch.account.num_lost_steps > 0
        assert batch.account.num_retried_episodes > 0
        assert adds_up(batch.account)
        assert pool.status().workers[0].identity.process_id != victim


async def test_a_worker_that_is_killed_after_its_part_of_a_small_call_costs_nothing(ray_backend: RayBackend) -> None:
    envs = [rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": seconds}) for seconds in (0.0, 0.5)]
    async with pool_of(ray_backend, allow_module=("sample_envs",)) as pool:
        await pool.update_env(envs, per_worker=True)
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, Exactly(1), seed=1, max_episode_length=3)
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, Exactly(1), seed=1, max_episode_length=3))
        await until(lambda: bool(calls) and calls[0].account.workers[0].num_simulated_steps == 3)
        os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        batch = await running
        assert equal(expected, batch)
        assert batch.account is not None
        assert adds_up(batch.account)


async def test_what_was_kept_on_a_worker_that_is_killed_runs_again(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([mlp()])
        first = await sample(pool, AtLeast(3000))
        assert first.account is not None
        for worker in pool.status().workers:
            os.kill(worker.identity.process_id, signal.SIGKILL)
        second = await sample(pool, AtLeast(3000))
        assert second.account is not None
        assert second.account.num_carried_steps == first.account.num_kept_steps == second.account.num_lost_steps
        assert adds_up(second.account)
        both = await sample(pool, AtLeast(first.num_steps + 3000), seed=first.account.seed)
        assert equal(both, rollserve.EpisodeBatch.concatenate(first, second))


async def test_an_update_finds_out_that_a_worker_is_lost(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend) as pool:
        await pool.update_agent([mlp()])
        expected = await sample(pool, AtLeast(2000), seed=1)
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        assert await pool.update_agent([mlp(1)]) == 2
        assert await pool.update_agent([mlp(0)]) == 3
        batch = await sample(pool, Exactly(20), seed=1)
        assert set(batch.policy_versions.tolist()) == {3}
        assert equal(expected, await sample(pool, AtLeast(2000), seed=1, policy_version=1))


async def test_what_calls_bring_is_counted_however_they_end(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        messages = []
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(10**9), 1 << 16))) as items:
            async for item in items:
                messages += item.messages if isinstance(item, Delivery) else []
                if len(messages) > 5:
                    break
        counters = pool.status().counters
        assert counters.num_steps == sum(message.num_steps for message in messages)
        assert counters.num_episodes == sum(message.num_episodes for message in messages)
        assert counters.message_bytes == sum(message.size for message in messages)
        assert (counters.num_completed_calls, counters.num_cancelled_calls, counters.num_failed_calls) == (0, 1, 0)
        with raises(InvalidValueError, field="step_count"):
            await sample(pool, Fragments(3))
        assert (counters.num_completed_calls, counters.num_cancelled_calls, counters.num_failed_calls) == (0, 1, 1)


async def test_an_environment_that_kills_its_worker_is_told_of(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend, allow_module=("sample_envs",)) as pool:
        await pool.update_env([rollserve.EnvSpec("sample_envs:Deadly")])
        await pool.update_agent([RandomSpec()])
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN, match=r"episode \d+.*\b3 workers"):
            await sample(pool, AtLeast(100))


def test_clients_do_not_ask_again_for_what_kills_one_worker_after_the_other(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Deadly")
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_worker_restarts
    with raises(rollserve.UnavailableError, reason=Reason.WORKER_LOST_AGAIN, match=r"episode \d+.*\b3 workers"):
        sampler.obtain_samples(100)
    # Four with the same episode, and those that ran others meanwhile.
    assert sampler.status().counters.num_worker_restarts - before < 2 * 4 + 2


async def test_earlier_versions_can_be_sampled_for_a_while(backend: Backend) -> None:
    async with pool_of(backend, keep_versions=3) as pool:
        batches = []
        for version in (1, 2, 3, 4):
            await pool.update_agent([mlp(version)])
            batches.append(await sample(pool, AtLeast(500), seed=1))
        await pool.update_env([rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 5})])
        for version in (2, 3, 4):
            again = await sample(pool, AtLeast(500), seed=1, policy_version=version, env_version=1)
            assert equal(again, batches[version - 1])
        assert (await sample(pool, AtLeast(500), seed=1, policy_version=2)).lengths.max() <= 5
        for options, field, reason, kept in (
            ({"policy_version": 1}, "policy_version", Reason.POLICY_VERSION, "2, 3, 4"),
            ({"policy_version": 5}, "policy_version", Reason.POLICY_VERSION, "2, 3, 4"),
            ({"env_version": 3}, "environment_version", Reason.ENVIRONMENT_VERSION, "1, 2"),
        ):
            with raises(NotReadyError, field=f"options.{field}", reason=reason, quotes=kept):
                await sample(pool, AtLeast(1), **options)


async def test_the_length_of_episodes_can_be_limited(backend: Backend) -> None:
    async with pool_of(backend, max_episode_length=30) as pool:
        await pool.update_agent([mlp()])
        batch = await sample(pool, AtLeast(2000), seed=1)
        assert batch.lengths.max() == 30
        assert np.array_equal(batch.truncated, batch.lengths == 30)
        whole = await sample(pool, AtLeast(20_000), seed=1, max_episode_length=500)
        assert whole.lengths.max() > 30
        for limited, long in zip(batch.split(), whole.split(), strict=False):
            num_steps = min(30, long.num_steps)
            assert limited.num_steps == num_steps
            assert np.array_equal(limited.observations, long.observations[:num_steps])
            assert np.array_equal(limited.last_observations[0], long.next_observations[num_steps - 1])
            assert limited.terminated[0] == (long.terminated[0] and long.num_steps <= 30)


async def test_the_rest_of_exact_episodes_can_be_asked_for(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp(1), mlp(2)], per_worker=True)
        batch = await sample(pool, Exactly(4), seed=1, first_index=100)
        for num_skipped in (0, 1, 4, 6):
            rest = await sample(pool, Exactly(4, num_skipped), seed=1, first_index=100)
            assert equal(rest, rollserve.EpisodeBatch.concatenate(*batch.split()[num_skipped:]))
        items = [item async for item in pool.sample(sample_request(Exactly(4, 8), 1 << 22, seed=1, first_index=100))]
        assert [type(item).__name__ for item in items] == ["Beginning", "Account"]
        with raises(InvalidValueError, field="skip_episode_count", quotes=("9", "8")):
            await sample(pool, Exactly(4, 9), seed=1)


async def test_workers_forget_a_small_exact_call_with_their_answer(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([mlp()])
        calls = calls_of(pool)
        batches = [await sample(pool, Exactly(2), seed=3, max_episode_length=2) for _ in range(20)]
        # A worker that is slow needs another order.
        assert any(call.sequence.handles == [None, None] for call in calls)
        assert all(equal(batch, batches[0]) for batch in batches)
        assert all(batch.account is not None and adds_up(batch.account) for batch in batches)


async def test_workers_for_which_there_is_no_room_are_an_error(ray_backend: RayBackend) -> None:
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, quotes="2 s"):
        async with pool_of(ray_backend, workers=12, start_seconds=2.0):
            pass


def test_options_of_ray_reach_the_workers() -> None:
    """In a process of its own: one can have one cluster."""
    code = """
import json, ray
from rollserve_server.pool.backends.ray.backend import RayBackend
from rollserve_server.settings import RaySettings
from rollserve_server.sampling import Worker
from rollserve_server.settings import WorkerSettings
import asyncio
settings = RaySettings(
    worker_num_cpus=0.5, worker_memory_bytes=10 << 20, worker_resources={"slot": 2.0}, object_store_bytes=100 << 20
)
backend = RayBackend(settings, num_workers=3)
assert backend.default_num_workers() == 4
before = ray.available_resources()
workers = [backend.create_worker(i, WorkerSettings()) for i in range(3)]
async def main():
    return await asyncio.gather(*(worker.call(Worker.identity) for worker in workers))
identities = asyncio.run(main())
import time
time.sleep(1)
after = ray.available_resources()
used = {name: before[name] - after.get(name, 0) for name in ("CPU", "memory", "slot")}
print(json.dumps([used, len({i.process_id for i in identities}), ray.cluster_resources()["object_store_memory"]]))
backend.close()
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    used, num_processes, store_bytes = json.loads(shown.stdout.splitlines()[-1])
    assert used == {"CPU": 1.5, "memory": 3 * (10 << 20), "slot": 6.0}
    assert num_processes == 3
    assert store_bytes == 100 << 20
    assert not [process for process in psutil.Process().children(recursive=True) if "plasma" in process.name()]
