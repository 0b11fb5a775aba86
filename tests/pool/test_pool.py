"""The pool on both of its backends: threads of this process, and Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from pools import CARTPOLE, SETTINGS, calls_of, cartpole_agent, pool_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.errors import InvalidValueError, NotReadyError, WorkerLostError
from rollserve_server.pool import (
    AtLeast,
    Backend,
    Delivery,
    Exactly,
    Expectation,
    Fragments,
    InProcessBackend,
    Progress,
)


async def test_policy_versions_rise_by_one_and_are_in_batches(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        assert pool.status().policy_version == 0
        for version in (1, 2, 3):
            assert (await pool.update_agent([cartpole_agent(version)])).version == version
            batch = await sample(pool, AtLeast(100), expected=Expectation(policy_version=version))
            assert set(batch.policy_versions.tolist()) == {version}
        assert (await pool.update_agent([cartpole_agent(9).parameters])).version == 4
        assert (await pool.update_agent([RandomSpec(), cartpole_agent()], per_worker=True)).version == 5
        assert pool.status().agent_kinds == ["random", "mlp"]
        field = "options.expected_policy_version"
        with raises(NotReadyError, field=field, reason=Reason.UNEXPECTED_VERSION, quotes=("4", "5")):
            await sample(pool, AtLeast(1), expected=Expectation(policy_version=4))


async def test_parameters_act_as_the_whole_agent(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent(1)])
        whole = await sample(pool, AtLeast(500), seed=3)
        await pool.update_agent([cartpole_agent(2)])
        other = await sample(pool, AtLeast(500), seed=3)
        await pool.update_agent([cartpole_agent(1).parameters])
        parameters = await sample(pool, AtLeast(500), seed=3)
    assert not np.array_equal(whole.observations, other.observations)
    assert np.array_equal(whole.observations, parameters.observations)
    assert np.array_equal(whole.agent_infos["log_prob"], parameters.agent_infos["log_prob"])


async def test_update_that_one_worker_rejects_changes_no_worker(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
        before = await sample(pool, AtLeast(200), seed=1)
        with raises(InvalidValueError, field="per_worker.updates[1].agent.constant.action"):
            await pool.update_agent([cartpole_agent(5), ConstantSpec({"": np.array(7)})], per_worker=True)
        pendulum = rollserve.EnvSpec("Pendulum-v1")
        with raises(InvalidValueError, field="per_worker.updates[1]", quotes="observation_space"):
            await pool.update_env([CARTPOLE, pendulum], per_worker=True)
        bad = rollserve.EnvSpec("CartPole-v1", {"nope": 1})
        with raises(InvalidValueError, field="per_worker.updates[1].environment.kwargs_json"):
            await pool.update_env([CARTPOLE, bad], per_worker=True)
        status = pool.status()
        assert (status.policy_version, status.env_version) == (1, 1)
        assert equal(before, await sample(pool, AtLeast(200), seed=1))


async def test_running_call_keeps_its_versions(backend: Backend, tmp_path: Path) -> None:
    env = rollserve.EnvSpec("sample_envs:Watched", {"folder": str(tmp_path)})
    slow = tmp_path / "slow"
    async with pool_of(backend, env, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([ConstantSpec({"": np.array(2)})])
        expected = await sample(pool, AtLeast(20_000), seed=1)
        slow.touch()
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, AtLeast(20_000), seed=1))
        await until(lambda: bool(calls))
        assert (await pool.update_agent([ConstantSpec({"": np.array(3)})])).version == 2
        assert (await pool.update_agent([ConstantSpec({"": np.array(4)})])).version == 3
        await pool.update_env([rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 5})])
        assert not running.done()
        slow.unlink()
        assert equal(expected, await running)
        after = await sample(pool, AtLeast(1000), seed=1)
        assert set(after.policy_versions.tolist()) == {3}
        assert after.lengths.max() <= 5
        assert after.account.env_version == 2


async def test_same_calls_in_the_same_order_give_the_same_batches(backend: Backend) -> None:
    """The pools run ahead differently, as they have different numbers of rows."""
    async with pool_of(backend) as one, pool_of(backend, workers=2, rows=3) as other:
        results: list[list[rollserve.EpisodeBatch]] = []
        for pool in (one, other):
            await pool.update_agent([cartpole_agent(1)])
            batches = [await sample(pool, AtLeast(700)), await sample(pool, Exactly(3))]
            batches += [await sample(pool, AtLeast(10), seed=5), await sample(pool, AtLeast(900))]
            await pool.update_agent([cartpole_agent(2)])
            batches += [await sample(pool, AtLeast(700)), await sample(pool, AtLeast(700))]
            results.append(batches)
    assert all(equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    own = [batch.episode_indices for position, batch in enumerate(results[0]) if position != 2]
    assert np.array_equal(np.concatenate(own), np.arange(sum(map(len, own))))


@pytest.mark.parametrize("max_calls", [1, 3])
async def test_concurrent_calls_share_no_episode(backend: Backend, max_calls: int) -> None:
    async with pool_of(backend, max_calls=max_calls) as pool:
        await pool.update_agent([cartpole_agent()])
        targets = [AtLeast(5000), Exactly(20), AtLeast(700), AtLeast(8000), Exactly(3)]
        batches = await asyncio.gather(*(sample(pool, target) for target in targets))
        assert pool.status().counters.num_completed_calls == 5
        seen: set[tuple[int, int]] = set()
        for batch, target in zip(batches, targets, strict=True):
            account = batch.account
            episodes = {(account.seed, int(index)) for index in batch.episode_indices}
            assert seen.isdisjoint(episodes)
            seen |= episodes
            alone = await sample(pool, target, seed=account.seed, first_index=account.first_episode_index)
            assert equal(batch, alone)
        assert len({seed for seed, _ in seen}) == max_calls


async def test_short_call_does_not_wait_for_a_long_one(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
        long = asyncio.create_task(sample(pool, AtLeast(100_000)))
        await asyncio.sleep(0.1)
        for _ in range(3):
            await sample(pool, AtLeast(1000))
        assert not long.done()
        assert (await long).num_steps >= 100_000


async def test_queued_call_reports_progress_and_can_be_cancelled(backend: Backend) -> None:
    async with pool_of(backend, max_calls=1, progress_seconds=0.05) as pool:
        await pool.update_agent([cartpole_agent()])
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


async def test_updates_do_not_change_concurrent_calls(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = {seed: await sample(pool, AtLeast(200), seed=seed) for seed in range(3)}
        done = asyncio.Event()

        async def keep_updating() -> None:
            while not done.is_set():
                await pool.update_agent([cartpole_agent()])
                await pool.update_env([CARTPOLE])

        async def keep_sampling(seed: int) -> None:
            for _ in range(20):
                batch = await sample(pool, AtLeast(200), seed=seed)
                assert np.array_equal(batch.observations, expected[seed].observations)
                with raises(NotReadyError, reason=Reason.UNEXPECTED_VERSION):
                    await sample(pool, AtLeast(1), expected=Expectation(policy_version=0))

        updating = asyncio.create_task(keep_updating())
        await asyncio.gather(*map(keep_sampling, expected))
        done.set()
        await updating


async def test_cancelled_update_changes_nothing(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
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


async def test_pool_is_ready_after_a_cancelled_call(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = await sample(pool, AtLeast(500), seed=2)
        for pause in (0.0, 0.01, 0.05, 0.2):
            call = asyncio.create_task(sample(pool, AtLeast(10_000_000)))
            await asyncio.sleep(pause)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert equal(expected, await sample(pool, AtLeast(500), seed=2))
        # A cancelled call may have been delivered in part, so the own sequence has a new seed.
        batch = await sample(pool, AtLeast(100))
        assert batch.account.seed == pool.status().seed != SETTINGS["seed"]


async def test_small_buffers_and_windows_give_the_same_batch(backend: Backend) -> None:
    async with pool_of(backend) as pool, pool_of(backend, worker_buffer_bytes=1000, call_window_bytes=1000) as small:
        await pool.update_agent([cartpole_agent()])
        await small.update_agent([cartpole_agent()])
        for target in (AtLeast(20_000), Exactly(100)):
            expected = await sample(pool, target, seed=1)
            assert equal(expected, await sample(small, target, seed=1))


async def test_workers_stop_when_the_client_does_not_read(backend: Backend) -> None:
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
        # A step takes 32 bytes here: the window, a fetched buffer and two buffers of workers hold fewer steps.
        assert steps[-1] < 200_000


async def test_counters_include_cancelled_and_failed_calls(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent()])
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


async def test_kept_versions_can_be_sampled(backend: Backend) -> None:
    async with pool_of(backend, keep_versions=3) as pool:
        batches = []
        for version in (1, 2, 3, 4):
            await pool.update_agent([cartpole_agent(version)])
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


async def test_length_of_episodes_is_limited(backend: Backend) -> None:
    async with pool_of(backend, max_episode_length=30) as pool:
        await pool.update_agent([cartpole_agent()])
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


async def test_exact_episodes_may_skip_the_first_ones(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([cartpole_agent(1), cartpole_agent(2)], per_worker=True)
        batch = await sample(pool, Exactly(4), seed=1, first_index=100)
        for num_skipped in (0, 1, 4, 6):
            rest = await sample(pool, Exactly(4, num_skipped), seed=1, first_index=100)
            assert equal(rest, rollserve.EpisodeBatch.concatenate(*batch.split()[num_skipped:]))
        items = [item async for item in pool.sample(sample_request(Exactly(4, 8), 1 << 22, seed=1, first_index=100))]
        assert [type(item).__name__ for item in items] == ["Beginning", "Account"]
        with raises(InvalidValueError, field="skip_episode_count", quotes=("9", "8")):
            await sample(pool, Exactly(4, 9), seed=1)


async def test_pool_fails_to_start_without_room_for_its_workers(ray_backend: Backend) -> None:
    with raises(WorkerLostError, reason=Reason.WORKER_LOST, quotes="2 s"):
        async with pool_of(ray_backend, workers=12, start_seconds=2.0):
            pass


@pytest.mark.slow
def test_ray_options_apply_to_workers() -> None:
    """A process can have one cluster, so the test runs in another process."""
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
async def main():
    workers = [backend.create_worker(i, WorkerSettings()) for i in range(3)]
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


async def test_status_has_the_packages_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["1.3.0", "1.4.0", "1.3.0"])
    found = "rollserve_server.sampling.worker.package_versions"
    monkeypatch.setattr(found, lambda: (("gymnasium", next(versions)), ("numpy", "2.1")))
    async with pool_of(InProcessBackend(), workers=3) as pool:
        assert pool.status().packages == {"gymnasium": "1.3.0 and 1.4.0", "numpy": "2.1"}
